"""How far behind the log its readers are, by value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from waltz.spark.followed_metrics import OBSERVATIONS_MAX, FollowedLog, FollowedPartition
from waltz.types import PartitionId

P, Q = PartitionId(0), PartitionId(1)


def test_nothing_is_said_of_a_log_that_was_not_asked() -> None:
    log = FollowedLog()
    assert log.partitions(5.0) == ()
    log.is_taken_in({P: 7})
    (partition,) = log.partitions(5.0)
    assert partition == FollowedPartition(P, 7, None, None)
    assert partition.lag_transactions is None


def test_nothing_is_said_of_a_lag_while_it_is_unknown_what_was_taken_in() -> None:
    log = FollowedLog()
    log.log_has({P: 7}, 1.0)
    (partition,) = log.partitions(5.0)
    assert partition == FollowedPartition(P, None, 7, None)
    assert partition.lag_transactions is None


def test_a_transaction_is_behind_since_it_was_first_seen_in_the_log() -> None:
    log = FollowedLog()
    log.is_taken_in({P: 0, Q: 0})
    log.log_has({P: 4, Q: 0}, 1.0)
    log.log_has({P: 4, Q: 0}, 2.0)
    log.log_has({P: 9, Q: 1}, 3.0)
    assert log.partitions(10.0) == (
        FollowedPartition(P, 0, 9, 9.0),
        FollowedPartition(Q, 0, 1, 7.0),
    )
    log.is_taken_in({P: 4})
    assert log.partitions(10.0)[0] == FollowedPartition(P, 4, 9, 7.0)
    log.is_taken_in({P: 9, Q: 1})
    assert [each.lag_seconds for each in log.partitions(10.0)] == [0.0, 0.0]
    assert log.taken_in() == 10


def test_a_batch_may_take_in_more_than_the_log_had_when_it_was_asked() -> None:
    log = FollowedLog()
    log.log_has({P: 4}, 1.0)
    log.is_taken_in({P: 6})
    (partition,) = log.partitions(3.0)
    assert (partition.lag_transactions, partition.lag_seconds) == (0, 0.0)


def test_what_is_remembered_of_a_reader_that_stands_is_bounded() -> None:
    log = FollowedLog()
    log.is_taken_in({P: 0})
    for number in range(OBSERVATIONS_MAX + 10):
        log.log_has({P: number + 1}, float(number))
    assert len(log._seen[P]) == OBSERVATIONS_MAX
    (partition,) = log.partitions(5_000.0)
    assert (partition.lag_transactions, partition.lag_seconds) == (OBSERVATIONS_MAX + 10, 5_000.0)
    log.is_taken_in({P: OBSERVATIONS_MAX + 5})
    assert log.partitions(5_000.0)[0].lag_seconds == 0.0
    log.log_has({P: OBSERVATIONS_MAX + 11}, 6_000.0)
    assert log.partitions(6_001.0)[0].lag_seconds == 1.0


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(0, 6)), max_size=30)


@given(STEPS)
def test_the_lag_is_that_of_a_list_of_all_transactions(steps: list[tuple[bool, int, int]]) -> None:
    """Each transaction with the time at which it was first seen."""
    log, seen, taken, asked, now = FollowedLog(), list[float](), 0, False, 0.0
    log.is_taken_in({P: 0})
    for is_question, count, pause in steps:
        now += pause
        if is_question:
            asked = True
            seen += [now] * count
            log.log_has({P: len(seen)}, now)
        else:
            taken = min(len(seen), taken + count)
            log.is_taken_in({P: taken})
        expected = now - seen[taken] if taken < len(seen) else 0.0
        (partition,) = log.partitions(now)
        assert partition.lag_seconds == (expected if asked else None)
        assert partition.lag_transactions == (len(seen) - taken if asked else None)
