"""The feed of one partition by itself: the marks, the batch in hand, and when more is asked for."""

from __future__ import annotations

import pytest

from tests.client.partition_world import request
from tests.client.test_partition_batches import feed as fed_batch
from waltz.client.partitions.partition_feed import PartitionFeed
from waltz.types import TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.client_protocol import FeedRequest

MOUNT = request(1)


def batch(first: int, count: int = 1) -> FeedBatch:
    return fed_batch(first, [(1, first, count)])


def feed(apply_count_max: int = 10, buffer_count_max: int = 4) -> PartitionFeed:
    return PartitionFeed(apply_count_max, buffer_count_max)


def test_only_what_comes_next_is_kept() -> None:
    """CI-13."""
    made = feed()
    assert made.take(batch(1)) is None
    assert len(made.take(batch(0, 2)) or ()) == 2
    assert made.take(batch(1)) is None
    assert (made.fed, made.high_water_mark) == (1, -1)
    made.check_invariants()


def test_one_batch_is_handed_over_at_a_time_and_what_is_left_of_it_first() -> None:
    made = feed()
    made.take(batch(0, 2))
    handed = made.hand_over()
    assert handed is not None
    assert [each.transaction_id for each in handed] == [0, 1]
    made.take(batch(2))
    assert made.hand_over() is None
    made.finish(TransactionId(0), 5.0)
    assert made.hand_over() is None, "it has to wait"
    made.retry()
    again = made.hand_over()
    assert again is not None
    assert [each.transaction_id for each in again] == [1]
    made.finish(TransactionId(1), None)
    assert (made.high_water_mark, made.is_empty) == (1, False)
    made.check_invariants()
    with pytest.raises(AssertionError):
        made.finish(TransactionId(2), None)


def test_more_is_asked_for_once_half_of_the_buffer_is_free() -> None:
    made = feed()
    made.take(batch(0, 3))
    assert made.has_room
    assert made.ask(MOUNT) is None
    made.hand_over()
    assert made.ask(MOUNT) == FeedRequest(MOUNT, TransactionId(2))
    assert not made.is_due
    made.suspend()
    assert made.is_due


def test_what_is_missed_is_asked_for_again_at_the_second_nudge_without_a_word() -> None:
    made = feed()
    for _ in range(2):
        assert not made.is_due
        made.nudge(is_behind=True)
    assert made.is_due


def test_a_mark_is_taken_over_while_nothing_is_under_way() -> None:
    """PM-27."""
    made = feed()
    made.begin_after(TransactionId(6))
    assert (made.fed, made.high_water_mark) == (6, 6)
    made.take(batch(7))
    made.begin_after(TransactionId(9))
    assert (made.fed, made.high_water_mark) == (7, 6)


@pytest.mark.parametrize("is_applying", [False, True])
def test_the_rest_is_handed_over_at_once_when_the_partition_is_granted_again(
    is_applying: bool,
) -> None:
    """Denied data is asked for again after a minute, or when its partition is granted: also if the
    denial is told only then."""
    made = feed()
    made.take(batch(0, 2))
    made.hand_over()
    if is_applying:
        made.grant()
    made.finish(TransactionId(0), 60.0)
    if not is_applying:
        assert made.hand_over() is None, "it has to wait"
        made.grant()
    handed = made.hand_over()
    assert handed is not None
    assert [each.transaction_id for each in handed] == [1]
    made.finish(TransactionId(0), 60.0)
    assert made.hand_over() is None, "it was handed over after the grant"
    made.check_invariants()
