"""What the feed brings is the same in every version."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from waltz.client.fed import Fed, fed_one, fed_together
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.client_protocol import FeedData
from waltz.wire.columns import Bodies, FeedColumns


def request(client: int, number: int) -> RequestId:
    return RequestId(ClientId(client), Generation(3), PartitionId(2), number)


EXPECTED = [
    Fed(request(7, 5), TransactionId(100), 1),
    Fed(request(7, 6), TransactionId(101), -2),
    Fed(request(8, 1), TransactionId(102), 3),
]
RUNS = np.array([[7, 3, 2, 5, 2], [8, 3, 2, 1, 1]], np.int32)
HEADERS = np.array([1, -2, 3], np.int32)


def test_one_by_one_and_together_are_the_same() -> None:
    """CS-15."""
    batch = FeedBatch(PartitionId(2), TransactionId(100), FeedColumns(RUNS, HEADERS, None))
    apart = [FeedData(each.request_id, each.transaction_id, each.header) for each in EXPECTED]
    assert fed_together(batch) == list(map(fed_one, apart)) == EXPECTED


def test_data_come_along_if_they_were_asked_for() -> None:
    data = [b"a", b"", b"ccc"]
    bodies = Bodies(data, np.array(list(map(crc32, data)), np.uint32))
    batch = FeedBatch(PartitionId(2), TransactionId(100), FeedColumns(RUNS, HEADERS, bodies))
    assert fed_together(batch) == [
        fed._replace(data=each) for fed, each in zip(EXPECTED, data, strict=True)
    ]
