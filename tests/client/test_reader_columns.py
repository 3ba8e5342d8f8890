from __future__ import annotations

from waltz.client.reader.columns import columns_of
from waltz.record import request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import FeedData


def test_columns_lie_side_by_side() -> None:
    ids = [RequestId(ClientId(n), Generation(-1), PartitionId(2), 2**31 - 1) for n in (1, -5)]
    headers = (-(2**31), 7)
    fed = [FeedData(ids[index], TransactionId(10 + index), headers[index]) for index in range(2)]
    columns = columns_of(fed, [b"a", b""])
    assert columns.first_transaction_id == 10
    assert columns.request_ids == b"".join(map(request_id_bytes, ids))
    assert columns.headers.tolist() == list(headers)
    assert columns.headers.dtype.name == "int32"
    assert columns.data == [b"a", b""]
    assert len(columns) == 2
