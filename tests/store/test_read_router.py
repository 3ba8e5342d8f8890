"""Which replica answers. Row ST-16; hazards R6, R9."""

from __future__ import annotations

from collections import Counter

import pytest

from waltz.store.read_router import (
    LATENCY_SECONDS_MAX,
    READ_AVOID_SECONDS,
    READ_HEDGE_SECONDS_MAX,
    READ_HEDGE_SECONDS_MIN,
    READ_LACKS_MAX,
    ReadRouter,
)
from waltz.types import ReplicaId, TransactionId

A, B, C = ReplicaId("a:1"), ReplicaId("b:1"), ReplicaId("c:1")
FIRST = TransactionId(7)


def chosen(
    router: ReadRouter, able: list[ReplicaId], count: int, now: float = 0.0
) -> Counter[ReplicaId | None]:
    return Counter(router.choose(able, FIRST, now) for _ in range(count))


def test_equal_replicas_share_evenly() -> None:
    """ST-16."""
    assert chosen(ReadRouter(), [A, B, C], 300) == {A: 100, B: 100, C: 100}


def test_a_slow_replica_is_mostly_avoided_and_still_probed() -> None:
    """ST-16."""
    router = ReadRouter()
    counts: Counter[ReplicaId | None] = Counter()
    for _ in range(1000):
        replica_id = router.choose([A, B, C], FIRST, 0.0)
        assert replica_id is not None
        router.answered(replica_id, 0.1 if replica_id == C else 0.002)
        counts[replica_id] += 1
    assert 0 < counts[C] < 40
    assert abs(counts[A] - counts[B]) < 20


def test_nobody_able_is_nobody_chosen() -> None:
    assert ReadRouter().choose([], FIRST, 0.0) is None


def test_one_that_was_passed_over_is_not_flooded_when_it_returns() -> None:
    router = ReadRouter()
    chosen(router, [A, B], 100)
    chosen(router, [A], 100)
    assert chosen(router, [A, B], 10)[B] <= 1


def test_a_new_replica_starts_level() -> None:
    router = ReadRouter()
    chosen(router, [A, B], 100)
    assert chosen(router, [A, B, C], 30) == {A: 10, B: 10, C: 10}


@pytest.mark.parametrize("seconds", [5.0, 100.0])
def test_one_answer_counts_three_seconds_at_most(seconds: float) -> None:
    router, capped = ReadRouter(), ReadRouter()
    for one, latency in ((router, seconds), (capped, LATENCY_SECONDS_MAX)):
        chosen(one, [A, B], 1)
        one.answered(A, latency)
    assert [chosen(router, [A, B], 1) for _ in range(200)] == [
        chosen(capped, [A, B], 1) for _ in range(200)
    ]


def test_one_that_lacked_a_record_is_asked_for_others_at_once_and_for_it_after_a_while() -> None:
    """R9: a repaired record is found; until then others are asked."""
    router = ReadRouter()
    router.failed(A, FIRST, 10.0)
    router.check_invariants()
    assert chosen(router, [A, B], 10, now=10.0) == {B: 10}
    assert chosen(router, [A], 1, now=10.0) == {None: 1}
    assert router.choose([A], TransactionId(8), 10.0) == A
    assert chosen(router, [A], 1, now=10.0 + READ_AVOID_SECONDS) == {A: 1}


def test_what_was_lacking_is_bounded_and_forgotten() -> None:
    router = ReadRouter()
    for first in range(2 * READ_LACKS_MAX):
        router.failed(A, TransactionId(first), 0.0)
    router.check_invariants()
    assert router.choose([A], TransactionId(0), 0.0) == A
    assert router.choose([A], TransactionId(2 * READ_LACKS_MAX - 1), 0.0) is None
    router.failed(B, FIRST, READ_AVOID_SECONDS)
    assert router.choose([A], TransactionId(2 * READ_LACKS_MAX - 1), 0.0) == A


def test_patience_follows_the_smoothed_latency_within_bounds() -> None:
    """R6."""
    router = ReadRouter()
    chosen(router, [A, B], 2)
    usual = router.patience(A)
    for _ in range(20):
        router.answered(A, 0.0001)
        router.answered(B, 100.0)
    assert READ_HEDGE_SECONDS_MIN == router.patience(A) < usual
    assert usual < router.patience(B) == READ_HEDGE_SECONDS_MAX
