from __future__ import annotations

from collections import Counter

import pytest

from waltz.store.read_router import LATENCY_SECONDS_MAX, ReadRouter
from waltz.types import ReplicaId

A, B, C = ReplicaId("a:1"), ReplicaId("b:1"), ReplicaId("c:1")


def chosen(router: ReadRouter, able: list[ReplicaId], count: int) -> Counter[ReplicaId | None]:
    return Counter(router.choose(able) for _ in range(count))


def test_equal_replicas_share_evenly() -> None:
    """ST-16."""
    assert chosen(ReadRouter(), [A, B, C], 300) == {A: 100, B: 100, C: 100}


def test_a_slow_replica_is_mostly_avoided_and_still_probed() -> None:
    """ST-16."""
    router = ReadRouter()
    counts: Counter[ReplicaId | None] = Counter()
    for _ in range(1000):
        replica_id = router.choose([A, B, C])
        assert replica_id is not None
        router.answered(replica_id, 0.1 if replica_id == C else 0.002)
        counts[replica_id] += 1
    assert 0 < counts[C] < 40
    assert abs(counts[A] - counts[B]) < 20


def test_nobody_able_is_nobody_chosen() -> None:
    assert ReadRouter().choose([]) is None


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
        one.choose([A, B])
        one.answered(A, latency)
    assert [router.choose([A, B]) for _ in range(200)] == [
        capped.choose([A, B]) for _ in range(200)
    ]


def test_a_failed_read_makes_the_other_one_first() -> None:
    router = ReadRouter()
    assert router.choose([A, B]) == A
    router.failed(A)
    assert chosen(router, [A, B], 20)[B] >= 19
