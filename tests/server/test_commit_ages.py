"""The age of a commit as a server knows it, against everything that was ever committed."""

from __future__ import annotations

from bisect import bisect_right
from random import Random

import pytest

from waltz.server.commit_ages import (
    COMMIT_AGES_MAX,
    FINE_SECONDS,
    JOINED_SECONDS,
    NO_LAG,
    RESOLUTION_SECONDS,
    CommitAges,
    Lag,
)
from waltz.types import NOTHING, TransactionId


class Oracle:
    """Remembers the time of every commit, next to ages that are fed the same."""

    def __init__(self, entries_max: int = COMMIT_AGES_MAX) -> None:
        self.ages = CommitAges(entries_max)
        self.mark = NOTHING
        self.firsts: list[int] = []
        self.times: list[float] = []

    def commit(self, count: int, now: float) -> None:
        first = TransactionId(self.mark + 1)
        if now >= self.ages.next_at:
            self.ages.note(first, now)
        self.firsts.append(first)
        self.times.append(now)
        self.mark = TransactionId(self.mark + count)

    def truth(self, mark: int, now: float) -> float:
        """The lag as everybody would say it who knows all."""
        if mark == self.mark:
            return 0.0
        return now - self.times[bisect_right(self.firsts, mark + 1) - 1]

    def check(self, mark: int, now: float, width_max: float) -> None:
        lag = self.ages.lag_of(TransactionId(mark), self.mark, now)
        truth = self.truth(mark, now)
        assert lag is not None
        assert lag.most is not None
        assert 0.0 <= lag.least <= truth + 1e-6
        assert truth <= lag.most + 1e-6
        assert lag.most - lag.least <= width_max + 1e-6


@pytest.mark.parametrize("rate", [0.1, 1.0, 3.0, 50.0, 1_000.0, 50_000.0])
def test_lag_is_within_a_second_of_the_truth_at_every_rate(rate: float) -> None:
    random, oracle, now = Random(7), Oracle(), 1_000.0
    size = max(1, int(rate / 100))
    for _ in range(6_000):
        now += random.expovariate(rate / size)
        oracle.commit(random.randint(1, 2 * size - 1), now)
        if random.random() < 0.05:
            asked_at = now + random.random() / rate
            for mark in (oracle.mark, oracle.mark - 1, random.randint(-1, oracle.mark)):
                if oracle.truth(mark, asked_at) < FINE_SECONDS:
                    oracle.check(max(mark, -1), asked_at, JOINED_SECONDS)
    oracle.ages.check_invariants()


def test_an_idle_log_has_no_lag_and_one_waiting_transaction_has_all_of_it() -> None:
    """The time since the last commit is no lag: nobody is behind on a log that is idle."""
    oracle = Oracle()
    oracle.commit(1, 10.0)
    for now in (10.0, 11.0, 1e6):
        assert oracle.ages.lag_of(TransactionId(0), oracle.mark, now) == NO_LAG
    oracle.commit(1, 1e6)
    assert oracle.ages.lag_of(TransactionId(0), oracle.mark, 1e6) == Lag(0.0, 0.0)
    oracle.check(0, 1e6 + 5.0, RESOLUTION_SECONDS)
    oracle.check(-1, 1e6 + 5.0, RESOLUTION_SECONDS)


def test_nothing_is_said_of_marks_that_the_log_does_not_have() -> None:
    oracle = Oracle()
    assert oracle.ages.lag_of(NOTHING, NOTHING, 5.0) == NO_LAG
    assert oracle.ages.lag_of(NOTHING, None, 5.0) is None
    oracle.commit(3, 10.0)
    assert oracle.ages.lag_of(TransactionId(3), oracle.mark, 11.0) is None
    assert oracle.ages.lag_of(TransactionId(-2), oracle.mark, 11.0) is None


def test_what_was_there_before_the_server_is_at_least_as_old_as_its_session() -> None:
    ages = CommitAges()
    ages.find(TransactionId(0), 50.0)
    ages.note(TransactionId(10), 60.0)
    assert ages.lag_of(TransactionId(4), TransactionId(12), 70.0) == Lag(20.0, None)
    assert ages.lag_of(TransactionId(8), TransactionId(12), 70.0) == Lag(20.0, None)
    found = ages.lag_of(TransactionId(9), TransactionId(12), 70.0)
    assert found == Lag(10.0 - RESOLUTION_SECONDS, 10.0)


def test_what_a_new_session_found_lies_between_the_last_commit_and_the_finding() -> None:
    ages = CommitAges()
    ages.note(TransactionId(0), 60.0)
    ages.find(TransactionId(5), 80.0)
    ages.note(TransactionId(9), 81.0)
    ages.check_invariants()
    assert ages.lag_of(TransactionId(4), TransactionId(9), 90.0) == Lag(10.0, 30.0)
    assert ages.lag_of(TransactionId(3), TransactionId(9), 90.0) == Lag(29.75, 30.0)
    assert ages.lag_of(TransactionId(8), TransactionId(9), 90.0) == Lag(8.75, 9.0)


def test_old_times_get_coarser_and_their_number_is_bounded() -> None:
    """A month of commits: every second on the first day of it, then now and then."""
    random, oracle, now = Random(3), Oracle(), 0.0
    for step in range(120_000):
        now += random.uniform(0.2, 1.2) if step < 86_400 else random.expovariate(1 / 60)
        oracle.commit(1, now)
        assert len(oracle.ages) <= COMMIT_AGES_MAX
    oracle.ages.check_invariants()
    for _ in range(2_000):
        mark = random.randint(-1, oracle.mark)
        oracle.check(mark, now, max(JOINED_SECONDS, 0.02 * oracle.truth(mark, now)))


def test_a_bound_that_is_too_small_widens_the_intervals_and_keeps_them_true() -> None:
    random, oracle, now = Random(5), Oracle(16), 0.0
    for _ in range(5_000):
        now += random.expovariate(0.5)
        oracle.commit(random.randint(1, 5), now)
        oracle.ages.check_invariants()
        oracle.check(random.randint(-1, oracle.mark), now, float("inf"))


def test_what_has_no_beginning_keeps_none_when_it_is_joined() -> None:
    oracle = Oracle(8)
    oracle.ages.find(TransactionId(0), 0.0)
    oracle.mark = TransactionId(99)
    for second in range(1, 200):
        oracle.commit(1, float(second))
    lag = oracle.ages.lag_of(TransactionId(50), oracle.mark, 300.0)
    assert lag is not None
    assert lag.most is None
    assert lag.least <= 300.0
