"""The watch finds what is not so of consumers, and nothing else."""

from __future__ import annotations

import pytest

from waltz.cluster.consumer_marks import KeptMark, encode_kept
from waltz.operators.client_questions_shell import Lag
from waltz.operators.named_consumers_shell import ConsumerPartition, ConsumersView, NamedConsumer
from waltz.sim.judges.consumer_watch import ConsumerWatch
from waltz.types import PartitionId, TransactionId

P = PartitionId(0)


def watch(applied: int = 5, *, knows_times: bool = True) -> ConsumerWatch:
    """Of a log whose transactions 0 to 3 were committed at 10 s, and 4 to 9 at 20 s."""
    found = ConsumerWatch(lambda _: {P: TransactionId(applied)}, knows_times=knows_times)
    found.see_commits(P, TransactionId(3), 10.0)
    found.see_commits(P, TransactionId(9), 20.0)
    return found


def node(mark: int) -> bytes:
    return encode_kept({P: KeptMark(TransactionId(mark), 1)})


def view(mark: int, lag: Lag | None, end: int = 9) -> ConsumersView:
    last = TransactionId(end)
    partition = ConsumerPartition(P, None, TransactionId(mark), True, last, lag)
    return ConsumersView((NamedConsumer("a", (partition,), ()),), 0.1, {}, True)


def test_a_mark_that_was_applied_may_be_kept_and_may_grow() -> None:
    found = watch()
    for version, mark in enumerate((3, 5, 5)):
        found.see_node("a", node(mark), version)
    assert (found.violations, found.kept_count) == ([], 3)


def test_a_kept_mark_that_was_not_applied_that_falls_or_is_none_is_found() -> None:
    found = watch()
    found.see_node("a", node(6), 0)
    assert "6 is kept as the mark of a in partition 0, which has applied 5" in found.violations[0]
    found.see_node("a", node(4), 1)
    assert "fell from 6" in found.violations[1]
    found.see_node("a", b"?", 2)
    assert len(found.violations) == 3


@pytest.mark.parametrize(
    ("mark", "lag"),
    [
        (3, Lag(10.0, 10.0)),  # 4 was committed at 20 s; it is looked at from 29.5 to 31 s
        (3, Lag(9.6, 9.6)),
        (3, Lag(11.0, 11.0)),
        (3, Lag(0.0, None)),
        (2, Lag(20.0, 20.0)),
        (-1, Lag(0.0, 99.0)),
        (3, None),
    ],
)
def test_a_lag_whose_bounds_hold_the_truth_is_right(mark: int, lag: Lag | None) -> None:
    found = watch()
    found.see_view(view(mark, lag), 30.0, 31.0)
    assert found.violations == []


def test_who_has_applied_all_does_not_lag() -> None:
    found = watch(9)
    found.see_view(view(9, Lag(0.0, 0.0)), 30.0, 31.0)
    assert found.violations == []
    found.see_view(view(9, Lag(10.0, 10.25)), 30.0, 31.0)
    assert "it lagged 0.000 to 0.000 s" in found.violations[0]


@pytest.mark.parametrize("lag", [Lag(0.0, 0.0), Lag(0.0, 9.0), Lag(11.1, 20.0), Lag(12.0, None)])
def test_a_lag_that_cannot_be_is_found_unless_clocks_drift(lag: Lag) -> None:
    for knows_times in (True, False):
        found = watch(knows_times=knows_times)
        found.see_view(view(3, lag), 30.0, 31.0)
        assert bool(found.violations) == knows_times


@pytest.mark.parametrize("lag", [Lag(-0.1, None), Lag(2.0, 1.0)])
def test_a_lag_that_is_negative_is_found_whatever_clocks_do(lag: Lag) -> None:
    found = watch(knows_times=False)
    found.see_view(view(3, lag), 30.0, 31.0)
    assert len(found.violations) == 1


@pytest.mark.parametrize("lag", [Lag(0.0, 10.0), Lag(0.0, None)])
def test_an_idle_log_that_may_lag_is_found_whatever_clocks_do(lag: Lag) -> None:
    found = watch(9, knows_times=False)
    found.see_view(view(9, lag), 30.0, 31.0)
    assert len(found.violations) == 1


def test_a_told_mark_that_was_not_applied_and_an_end_that_is_not_there_are_found() -> None:
    found = watch()
    found.see_view(view(6, None, end=10), 30.0, 31.0)
    assert len(found.violations) == 2
