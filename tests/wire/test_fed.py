"""What the feed brings is the same in every version."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import FeedData
from waltz.wire.columns import Bodies, FeedColumns
from waltz.wire.fed import (
    Fed,
    FedBuffer,
    FedRun,
    fed_together,
    next_of,
)


def request(client: int, number: int) -> RequestId:
    return RequestId(ClientId(client), Generation(3), PartitionId(2), number)


EXPECTED = [
    Fed(request(7, 5), TransactionId(100), 1),
    Fed(request(7, 6), TransactionId(101), -2),
    Fed(request(8, 1), TransactionId(102), 3),
]
RUNS = np.array([[7, 3, 2, 5, 2], [8, 3, 2, 1, 1]], np.int32)
RUN_IDS = [(request(7, 5), 2), (request(8, 1), 1)]
HEADERS = np.array([1, -2, 3], np.int32)


def test_one_by_one_and_together_are_the_same() -> None:
    """CS-15."""
    batch = FeedBatch(PartitionId(2), TransactionId(100), FeedColumns(RUNS, HEADERS, None))
    apart = [FeedData(each.request_id, each.transaction_id, each.header) for each in EXPECTED]
    assert joined(apart) == [batch]
    assert fed_together(batch) == EXPECTED
    assert fed_together(batch).byte_count == 0


def test_data_come_along_if_they_were_asked_for() -> None:
    data = [b"a", b"", b"ccc"]
    bodies = Bodies(data, np.array(list(map(crc32, data)), np.uint32))
    batch = FeedBatch(PartitionId(2), TransactionId(100), FeedColumns(RUNS, HEADERS, bodies))
    assert fed_together(batch) == [
        fed._replace(data=each) for fed, each in zip(EXPECTED, data, strict=True)
    ]


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("end", range(4))
def test_a_part_of_a_run_is_that_part(start: int, end: int) -> None:
    run = FedRun(TransactionId(100), RUN_IDS, HEADERS, [b"a", b"bb", b"ccc"])
    expected = list(run)[start:end]
    assert run[start:end] == expected
    assert run[start:end].byte_count == sum(len(each.data or b"") for each in expected)
    assert run[1] == list(run)[1]


@pytest.mark.parametrize(
    ("expected", "room", "ids"),
    [(100, 9, [100, 101, 102]), (101, 1, [101]), (102, 0, []), (103, 9, []), (99, 9, [])],
)
def test_only_what_comes_next_is_taken_of_a_batch(expected: int, room: int, ids: list[int]) -> None:
    """CI-13."""
    batch = FeedBatch(PartitionId(2), TransactionId(100), FeedColumns(RUNS, HEADERS, None))
    run = next_of(batch, TransactionId(expected), room)
    assert [each.transaction_id for each in run or ()] == ids


def test_a_buffer_gives_back_what_it_was_given_in_order() -> None:
    buffer = FedBuffer()
    run = FedRun(TransactionId(100), RUN_IDS, HEADERS, [b"a", b"bb", b"ccc"])
    buffer.add(run[:1])
    buffer.add(run[1:])
    assert (buffer.count, buffer.byte_count, list(buffer)) == (3, 6, list(run))
    taken = buffer.take(2)
    assert taken == list(run)[:2]
    assert (taken.first_transaction_id, taken.last_transaction_id, len(taken)) == (100, 101, 2)
    assert taken.after(TransactionId(100)) == list(run)[1:2]
    assert taken.after(TransactionId(99)) == taken
    assert (len(taken.after(TransactionId(101))), taken[1]) == (0, list(run)[1])
    assert (buffer.count, buffer.byte_count) == (1, 3)
    assert buffer.take(9) == list(run)[2:]
    assert (buffer.count, buffer.byte_count) == (0, 0)
