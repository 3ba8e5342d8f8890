"""Commits per second from marks: right, never negative, and nothing after a pause."""

from __future__ import annotations

from waltz.console.marks_history import SAMPLES_MAX, MarksHistory
from waltz.types import PartitionId, TransactionId

ZERO = PartitionId(0)


def noted(*samples: tuple[float, int]) -> MarksHistory:
    history = MarksHistory()
    for at, mark in samples:
        history.note(at, {ZERO: TransactionId(mark)}, 1)
    return history


def test_a_rate_needs_two_marks() -> None:
    assert noted((0.0, 10)).rates(0.0) == {}
    assert noted((0.0, 10), (2.0, 30)).rates(2.0) == {ZERO: 10.0}
    assert noted((0.0, 10), (2.0, 10)).rates(2.0) == {ZERO: 0.0}


def test_a_rate_is_that_of_the_last_seconds() -> None:
    history = noted(*((float(at), 0) for at in range(60)), (60.0, 400))
    assert history.rates(60.0) == {ZERO: 100.0}


def test_a_mark_that_falls_begins_anew() -> None:
    assert noted((0.0, 10), (1.0, 5)).rates(1.0) == {}
    assert noted((0.0, 10), (1.0, 5), (2.0, 6)).rates(2.0) == {ZERO: 1.0}


def test_after_a_pause_the_rates_begin_anew() -> None:
    assert noted((0.0, 10), (1.0, 20)).rates(40.0) == {}
    assert noted((0.0, 10), (100.0, 2000)).rates(100.0) == {}


def test_the_series_is_bounded_and_has_the_newest() -> None:
    history = noted(*((float(at), 2 * at) for at in range(2 * SAMPLES_MAX)))
    series = history.series(0)
    assert len(series) == SAMPLES_MAX - 1
    assert series[-1] == (2.0 * SAMPLES_MAX - 1, 2.0)
    assert history.series(7) == []


def test_a_large_cluster_has_shorter_series() -> None:
    history = MarksHistory()
    for at in range(50):
        history.note(float(at), {ZERO: TransactionId(at)}, 100_000)
    assert len(history.series(0)) == 9


def test_the_total_is_kept_where_it_is_known() -> None:
    history = MarksHistory()
    for at, rate in ((0.0, 1.0), (1.0, None), (2.0, 3.0)):
        history.note_total(at, rate)
    assert history.total() == [(0.0, 1.0), (2.0, 3.0)]
    history.note_total(100.0, 5.0)
    assert history.total() == [(100.0, 5.0)]
