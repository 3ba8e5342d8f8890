from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from waltz.errors import ClientAheadError, NotFoundError
from waltz.reader.followed_feed import FeedCursor, FeedPhase
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.before_batches import joined
from waltz.wire.client_protocol import (
    FeedData,
    FeedRequest,
    FeedSuspended,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.columns import FeedColumns
from waltz.wire.fed import Fed
from waltz.wire.message import Message

G3 = Generation(3)
OTHER = RequestId(ClientId(8), Generation(1), PartitionId(2), 1)


def mine(number: int) -> RequestId:
    return RequestId(ClientId(7), G3, PartitionId(2), number)


def fed(*ids: int) -> list[FeedData]:
    return [FeedData(OTHER, TransactionId(number), 0) for number in ids]


def taken(*ids: int) -> list[Fed]:
    return [Fed(OTHER, TransactionId(number), 0) for number in ids]


def together(first: int, count: int) -> FeedBatch:
    runs = np.array([[8, 1, 2, first, count]], np.int32)
    feed = FeedColumns(runs, np.zeros(count, np.int32), None)
    return FeedBatch(PartitionId(2), TransactionId(first), feed)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([together(0, 5)], [3, 4]),
        ([together(3, 9)], [3, 4, 5]),
        ([together(4, 2)], []),
        ([together(3, 1), together(0, 3), together(4, 1)], [3, 4]),
        ([together(0, 3), together(6, 3)], []),
    ],
)
def test_batches_are_cut_to_what_is_next(batches: list[FeedBatch], expected: list[int]) -> None:
    """CI-13."""
    made = cursor(3, 6)
    found, replies = received(made, batches)
    assert [each.transaction_id for each in found] == expected
    assert made.position == 3 + len(expected)
    assert replies == []


def test_what_comes_one_by_one_and_what_comes_together_follow_each_other() -> None:
    """CI-13: a server may be upgraded, and a log does not show it."""
    made = cursor(3, 9)
    runs, _ = made.receive(joined([*fed(2, 3, 4), together(5, 2), *fed(6, 7), together(0, 20)]))
    assert [(run.first_transaction_id, len(run)) for run in runs] == [
        (3, 2),
        (5, 2),
        (7, 1),
        (8, 1),
    ]
    assert made.done


def received(made: FeedCursor, messages: Sequence[Message]) -> tuple[list[Fed], list[Message]]:
    runs, replies = made.receive(joined(messages))
    return [*chain.from_iterable(runs)], replies


def cursor(first: int, end: int | None) -> FeedCursor:
    made = FeedCursor(PartitionId(2), first, end)
    made.client_id = ClientId(7)
    assert made.mount(G3, 0) == MountRequest(mine(1), TransactionId(first - 1), 0)
    return made


def test_a_range_is_fed_by_the_mount_alone() -> None:
    made = cursor(3, 6)
    assert received(made, fed(2, 3, 4, 6)) == (taken(3, 4), [])
    assert not made.done
    assert received(made, [*fed(5, 6), MountResponse(mine(1), MountState.READY)]) == (taken(5), [])
    assert made.done


def test_a_log_that_ends_before_the_range_does_is_an_error() -> None:
    made = cursor(0, 5)
    with pytest.raises(NotFoundError, match="ends before transaction 2; expected it to go on to 4"):
        received(made, [*fed(0, 1), MountResponse(mine(1), MountState.READY)])


def test_a_log_that_ends_before_the_start_is_an_error() -> None:
    with pytest.raises(ClientAheadError, match="transaction 9 of partition 2"):
        cursor(9, 10).receive([MountResponse(mine(1), MountState.CLIENT_AHEAD)])


def test_following_asks_for_more_after_the_mount_and_each_suspension() -> None:
    """CI-26, CI-27."""
    made = cursor(0, None)
    assert made.phase is FeedPhase.MOUNTING
    answer = received(made, [*fed(0), MountResponse(mine(1), MountState.READY)])
    assert answer == (taken(0), [FeedRequest(mine(1), TransactionId(0))])
    assert bool(made.is_caught_up)
    answer = received(made, [*fed(1, 2), FeedSuspended(mine(1))])
    assert answer == (taken(1, 2), [FeedRequest(mine(1), TransactionId(2))])


def test_answers_to_an_older_mount_are_ignored() -> None:
    made = cursor(0, None)
    made.receive([MountResponse(mine(1), MountState.NOT_READY)])
    phases = [made.phase]
    made.mount(G3, 0)
    assert received(made, [MountResponse(mine(1), MountState.READY)]) == ([], [])
    assert [*phases, made.phase] == [FeedPhase.NOT_READY, FeedPhase.MOUNTING]


def test_a_new_connection_goes_on_where_the_old_one_ended() -> None:
    made = cursor(0, 9)
    received(made, fed(0, 1))
    assert made.mount(G3, 1) == MountRequest(mine(2), TransactionId(1), 1)
    assert received(made, fed(1, 2)) == (taken(2), [])
