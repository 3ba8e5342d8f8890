"""Policies that deny partitions are stored in a run's coordinator, and taken back."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from waltz.access.policy import Policy, Verb, decide
from waltz.access.policy_text import parse_policy
from waltz.access.principals import ANONYMOUS_PRINCIPAL
from waltz.cluster.paths import ClusterPaths
from waltz.sim.faults.kinds import ChangedPolicy
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.sites import Sites
from waltz.types import PartitionId

SHAPE = ClusterShape(
    partition_count=3, storage_count=1, server_count=1, segment_bytes_threshold=20_000
)


@pytest.mark.parametrize("appends_only", [False, True])
@pytest.mark.parametrize("denied", [(1,), (0, 1, 2)])
def test_partitions_are_denied_for_a_while_and_granted_again_though_the_coordinator_is_away(
    denied: tuple[int, ...], appends_only: bool
) -> None:
    loop = SimulatedLoop(1)
    sites = Sites(loop, 1, RunTrace())
    cluster = SimulatedCluster(sites, SHAPE, UUID(int=1), follows_policy=True)
    strikes = Strikes(sites, partition_count=lambda: len(cluster.partition_ids))

    def stored() -> Policy:
        node = sites.coordinator.tree.read(ClusterPaths().policy)
        return parse_policy(node.data or b"", "stored")

    def rights() -> list[tuple[bool, bool]]:
        """Return, per partition, whether everybody may append and read."""

        def may(verb: Verb, number: int) -> bool:
            return decide(stored(), ANONYMOUS_PRINCIPAL, verb, PartitionId(number), 0).is_allowed

        return [(may(Verb.APPEND, each), may(Verb.READ, each)) for each in range(3)]

    async def course() -> None:
        await cluster.start()
        fault = ChangedPolicy(progress=0.0, denied=denied, appends_only=appends_only, seconds=20.0)
        sites.coordinator.begin_outage()
        striking = asyncio.create_task(strikes.strike(fault))
        await asyncio.sleep(5)
        sites.coordinator.end_outage()
        await asyncio.sleep(10)
        assert rights() == [
            (False, appends_only) if each in denied else (True, True) for each in range(3)
        ]
        await striking
        assert rights() == [(True, True)] * 3
        assert stored().version == 2

    try:
        loop.run_until_complete(sites.unless_broken(course()))
        assert loop.failures() == []
        assert strikes.record.counts["ChangedPolicy"] == 1
    finally:
        loop.shut_down()
