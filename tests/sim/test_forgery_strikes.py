"""Peers that are nobody in particular come to a run's cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from waltz.sim.faults.kinds import Forgery
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.sites import Sites
from waltz.types import PartitionId

SHAPE = ClusterShape(
    partition_count=1, storage_count=3, server_count=1, segment_bytes_threshold=20_000
)
FORGERY = Forgery(
    progress=0.0, server="server-0", storages=("storage-0", "storage-1", "storage-2"),
    partition_id=0, client_id=1, shows_token=True, sessions=(1000, 2**63 - 1), seconds=3.0,
)  # fmt: skip


@pytest.mark.parametrize("shows_token", [True, False])
def test_a_forger_is_heard_and_leaves_nothing_behind(shows_token: bool) -> None:
    loop = SimulatedLoop(1)
    trace = RunTrace()
    sites = Sites(loop, 1, trace)
    cluster = SimulatedCluster(sites, SHAPE, UUID(int=1))
    strikes = Strikes(sites)

    async def course() -> float:
        await cluster.start()
        await asyncio.sleep(5)
        began = loop.time()
        await strikes.strike(replace(FORGERY, shows_token=shows_token))
        return loop.time() - began

    try:
        lasted = loop.run_until_complete(sites.unless_broken(course()))
        assert loop.failures() == []
        assert FORGERY.seconds < lasted < FORGERY.seconds + 10
        assert strikes.record.counts["Forgery"] == 1
        assert cluster.assigned()[PartitionId(0)] == {*FORGERY.storages}
        replicas = cluster.replicas(durable=True).values()
        assert {replica.marks[PartitionId(0)].session_id for replica in replicas} == {0}
    finally:
        loop.shut_down()


def test_nobody_there_is_no_error() -> None:
    """Before anything of the cluster runs."""
    loop = SimulatedLoop(1)
    sites = Sites(loop, 1, RunTrace())
    strikes = Strikes(sites)
    try:
        loop.run_until_complete(sites.unless_broken(strikes.strike(FORGERY)))
        assert loop.failures() == []
    finally:
        loop.shut_down()
