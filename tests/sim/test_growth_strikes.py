"""Partitions are added to a run's cluster by operators who die of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from waltz.errors import ConfigurationError, CoordinatorLostError, UnavailableError
from waltz.sim.faults.growth_strikes import TRIES_MAX, TRY_AGAIN_SECONDS, Act, add_as_operators
from waltz.sim.faults.kinds import AddedPartitions
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.sites import Sites

SHAPE = ClusterShape(
    partition_count=2, storage_count=3, server_count=1, segment_bytes_threshold=20_000
)


def fault(to: int, *killed_after: float) -> AddedPartitions:
    return AddedPartitions(progress=0.0, to=to, killed_after=killed_after)


class _Door:
    """Operators' way to the cluster, which fails for a while."""

    def __init__(self, failures: Sequence[Exception | None]) -> None:
        self.failures = [*failures]
        self.patience: list[float | None] = []

    async def run(self, _: Act, seconds_max: float | None) -> None:
        self.patience.append(seconds_max)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure


def acted(door: _Door, *killed_after: float) -> float:
    loop = SimulatedLoop(1)
    try:
        loop.run_until_complete(add_as_operators(fault(3, *killed_after), door.run))
        return loop.time()
    finally:
        loop.shut_down()


def test_some_die_of_it_and_then_it_is_tried_until_it_works() -> None:
    door = _Door([None, UnavailableError("x"), CoordinatorLostError("x"), ConfigurationError("x")])
    assert acted(door, 0.1, 0.2) == 2 * TRY_AGAIN_SECONDS
    assert door.patience == [0.1, 0.2, None, None, None]


def test_one_that_is_never_let_is_told() -> None:
    door = _Door([ConfigurationError("never")] * (TRIES_MAX + 1))
    with pytest.raises(ConfigurationError, match="never"):
        acted(door)


@pytest.mark.parametrize("seed", range(5))
def test_the_cluster_has_them_whoever_died(seed: int) -> None:
    loop = SimulatedLoop(seed)
    trace = RunTrace()
    sites = Sites(loop, seed, trace)
    cluster = SimulatedCluster(sites, SHAPE, UUID(int=1))
    strikes = Strikes(sites)

    async def course() -> None:
        assert len(cluster.partition_ids) == 2
        await cluster.start()
        assert len(cluster.partition_ids) == 2
        await asyncio.sleep(5)
        await strikes.strike(fault(4, 0.05 * seed, 0.5, 1.5))
        assert len(cluster.partition_ids) == 4
        assert all(len(names) == 3 for names in cluster.assigned().values())
        await strikes.strike(fault(3))
        assert len(cluster.partition_ids) == 4, "others have more already"

    try:
        loop.run_until_complete(sites.unless_broken(course()))
        assert loop.failures() == []
        assert strikes.record.counts["AddedPartitions"] == 2
    finally:
        loop.shut_down()
