from __future__ import annotations

from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from waltz.client.fed import Fed
from waltz.client.reader.columns import columns_of, columns_of_records
from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId


def test_columns_lie_side_by_side() -> None:
    ids = [RequestId(ClientId(n), Generation(-1), PartitionId(2), 2**31 - 1) for n in (1, -5)]
    headers = (-(2**31), 7)
    fed = [Fed(ids[index], TransactionId(10 + index), headers[index]) for index in range(2)]
    columns = columns_of(fed, [b"a", b""])
    assert columns.first_transaction_id == 10
    assert columns.request_ids == b"".join(map(request_id_bytes, ids))
    assert columns.headers.tolist() == list(headers)
    assert columns.headers.dtype.name == "int32"
    assert columns.data == [b"a", b""]
    assert len(columns) == 2


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_data_of_records_are_cut_out_of_where_they_lie(
    data: list[bytes], drawn: st.DataObject
) -> None:
    """B-6."""
    new = [NewRecord(n.to_bytes(16, "big"), -n, each, crc32(each)) for n, each in enumerate(data)]
    columns = columns_of_records(pack_records(TransactionId(10), new))
    assert columns.first_transaction_id == 10
    assert columns.request_ids == b"".join(each.request_id for each in new)
    assert columns.headers.tolist() == [each.header for each in new]
    assert columns.data == data
    assert list(columns.data) == [columns.data[n] for n in range(len(columns))] == data
    start, end = sorted(drawn.draw(st.tuples(*[st.integers(0, len(data))] * 2)))
    assert columns.data[start:end] == data[start:end]
    assert columns.data != [*data, b"more"]
