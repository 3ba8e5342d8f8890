"""Payloads, keys, locks, and intended times."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from tests.bench.results import workload
from waltz.bench.load import Keys, Pace, payloads

SECOND = 1_000_000_000


def random() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("size", [0, 1, 128, 129])
def test_payloads_have_the_size_and_their_second_half_is_empty(size: int) -> None:
    found = payloads(workload(data_bytes=size), random())
    assert {len(each) for each in found} == {size}
    assert all(each.endswith(bytes(size // 2)) for each in found)


def test_without_keys_no_two_transactions_of_any_client_meet() -> None:
    shape = workload(write_locks=2, read_locks=1)
    drawn = [Keys(shape, client, random()).draw(1000) for client in (1, 2)]
    assert len(np.unique(np.concatenate(drawn))) == 2 * 1000 * 3


def test_locks_are_drawn_row_by_row_and_differ_within_a_transaction() -> None:
    shape = workload(write_locks=2, read_locks=2, keys=5)
    keys, rows = Keys(shape, 1, random()), Keys(shape, 1, random()).draw(65_536 // 4)
    for row in rows[:100]:
        assert [lock.id for lock in keys.locks()] == list(dict.fromkeys(row.tolist()))
    assert Keys(workload(), 1, random()).locks() == []


def test_skewed_keys_have_the_shares_that_zipf_says() -> None:
    shape = workload(write_locks=1, keys=100, skew=1.0)
    counted = Counter(Keys(shape, 1, random()).draw(200_000).ravel().tolist())
    whole = sum(1 / rank for rank in range(1, 101))
    assert set(counted) == set(range(100))
    for rank in (1, 2, 10, 100):
        assert counted[rank - 1] / 200_000 == pytest.approx(1 / rank / whole, rel=0.1)


def test_calls_are_due_at_their_intended_times_however_late_one_is_asked_for() -> None:
    """PM-05: nobody is spared the wait that a pause has caused."""
    start = time.monotonic_ns() - 10 * SECOND
    pace = Pace(start, start + SECOND, 4.0)
    due = [pace.next() for _ in range(5)]
    assert due == [start, start + SECOND // 4, start + SECOND // 2, start + 3 * SECOND // 4, None]


def test_a_call_that_is_not_due_yet_is_waited_for() -> None:
    start = time.monotonic_ns() + SECOND // 50
    assert Pace(start, start + SECOND, 1.0).next() == start
    assert time.monotonic_ns() >= start


def test_without_a_rate_a_call_is_due_when_it_is_asked_for() -> None:
    now = time.monotonic_ns()
    due = Pace(now, now + 3600 * SECOND, None).next()
    assert due is not None
    assert now <= due <= time.monotonic_ns()
    assert Pace(now - SECOND, now, None).next() is None
