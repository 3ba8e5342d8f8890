from __future__ import annotations

from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from waltz.reader.transaction_columns import (
    TransactionColumns,
    columns_of,
    columns_of_records,
    join_columns,
    records_of,
)
from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.fed import FedRun


def test_columns_lie_side_by_side() -> None:
    first, other = (
        RequestId(ClientId(n), Generation(-1), PartitionId(2), number)
        for n, number in ((1, 2**31 - 1), (-5, 7))
    )
    headers = [-(2**31), 7, 9]
    run = FedRun(TransactionId(10), [(first, 1), (other, 2)], np.array(headers, np.int32))
    columns = columns_of(run, [b"a", b"", b"c"])
    assert columns.first_transaction_id == 10
    ids = [first, other, other._replace(sequence_number=8)]
    assert columns.request_ids == b"".join(map(request_id_bytes, ids))
    assert columns.headers.tolist() == headers
    assert columns.headers.dtype.name == "int32"
    assert columns.data == [b"a", b"", b"c"]
    assert len(columns) == 3


def test_columns_that_follow_each_other_are_joined() -> None:
    parts = [
        columns_of(
            FedRun(
                TransactionId(at),
                [(RequestId(ClientId(1), Generation(0), PartitionId(0), at), count)],
                np.arange(at, at + count, dtype=np.int32),
            ),
            [b"%d" % number for number in range(at, at + count)],
        )
        for at, count in ((10, 2), (12, 1), (13, 3))
    ]
    joined = join_columns(parts)
    assert (joined.first_transaction_id, len(joined)) == (10, 6)
    assert joined.headers.tolist() == list(range(10, 16))
    assert joined.data == [b"%d" % number for number in range(10, 16)]
    assert joined.request_ids == b"".join(part.request_ids for part in parts)
    assert join_columns(parts[:1]) is parts[0]


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


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_columns_are_the_records_that_they_came_from(
    data: list[bytes], drawn: st.DataObject
) -> None:
    new = [NewRecord(n.to_bytes(16, "big"), -n, each, crc32(each)) for n, each in enumerate(data)]
    records = pack_records(TransactionId(10), new)
    columns = columns_of_records(records)
    assert records_of(columns) == records
    assert records_of(columns).block is records.block
    # From an older server there is no block; a part of one is laid out anew.
    parts = TransactionColumns(TransactionId(10), columns.request_ids, columns.headers, data)
    assert records_of(parts) == records
    start = drawn.draw(st.integers(0, len(data) - 1))
    end = drawn.draw(st.integers(start + 1, len(data)))
    some = TransactionColumns(
        TransactionId(10 + start),
        columns.request_ids[16 * start : 16 * end],
        columns.headers[start:end],
        columns.data[start:end],
    )
    assert records_of(some) == records.slice(TransactionId(10 + start), end - start)
