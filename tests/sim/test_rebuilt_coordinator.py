"""A coordinator is made anew under the eyes of clients, which find the versions that they know."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.store_params import decode_counter
from waltz.host import Host
from waltz.sim.faults.coordinator_strikes import (
    NUMBERS_SKIPPED,
    is_settled,
    partition_entries,
    raise_child_version,
    raise_version,
    rebuilt,
)
from waltz.sim.faults.kinds import Rebuilt
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites, until_stopped

PATHS = ClusterPaths()
SHAPE = ClusterShape(
    partition_count=2,
    storage_count=3,
    server_count=2,
    segment_bytes_threshold=20_000,
    spare_count=0,
)


def assignment(sites: Sites) -> PartitionAssignment:
    return PartitionAssignment.decode(
        sites.coordinator.tree.read(PATHS.server_descriptors).data or b""
    )


@pytest.mark.parametrize("refuses", [False, True])
def test_a_client_that_lives_on_finds_the_versions_it_has_seen_and_another_assignment(
    refuses: bool,
) -> None:
    loop = SimulatedLoop(1)
    sites = Sites(loop, 1, RunTrace())
    cluster = SimulatedCluster(sites, SHAPE, UUID(int=1))
    strikes = Strikes(sites)
    told: list[str] = []

    async def watch(host: Host) -> None:
        async def follow() -> None:
            seen = await host.coordinator.read(PATHS.server_descriptors)
            told.append("seen")
            await host.coordinator.changed(PATHS.server_descriptors, seen)
            now = await host.coordinator.read(PATHS.server_descriptors)
            assert (now.version, now.child_version) == (seen.version, seen.child_version)
            assert (now.data != seen.data, now.session != seen.session) == (True, True)
            told.append("changed")
            await asyncio.Event().wait()

        await until_stopped(follow())

    async def scene() -> None:
        await cluster.start()
        while cluster.members() != cluster.assigned():
            await asyncio.sleep(0.1)
        before = assignment(sites)
        tree = sites.coordinator.tree
        counter = decode_counter(tree.read(PATHS.client_id_counter).data or b"")
        sites.add("client", watch, SimulatedDisk())
        await asyncio.sleep(1.0)
        await strikes.strike(
            Rebuilt(
                progress=0.0,
                names=tuple(SHAPE.servers),
                survivors=("client",),
                seconds=0.0,
                refuses=refuses,
                pause_seconds=0.1,
            )
        )
        assert sites.coordinator.effects["versions of the coordinator that are equal again"] == 1
        if not refuses:  # else what it waits for raises before it may begin anew
            await asyncio.sleep(5.0)
            assert told == ["seen", "changed"]
        assert sites.coordinator.tree is not tree
        tree = sites.coordinator.tree
        found = decode_counter(tree.read(PATHS.client_id_counter).data or b"")
        assert found == counter + NUMBERS_SKIPPED
        for server_id, held in assignment(sites).servers.items():
            assert server_id not in before.servers
            assert min(held.values()) > NUMBERS_SKIPPED
        assert strikes.record.counts == {"Rebuilt": 1}

    try:
        loop.run_until_complete(scene())
    finally:
        loop.shut_down()


def test_every_node_begins_at_its_first_version_and_versions_can_be_raised() -> None:
    loop = SimulatedLoop(1)
    sites = Sites(loop, 1, RunTrace())
    cluster = SimulatedCluster(sites, SHAPE, UUID(int=1))

    async def scene() -> None:
        await cluster.start()
        while not is_settled(sites.coordinator.tree, 2):
            await asyncio.sleep(0.1)
        while cluster.members() != cluster.assigned():
            await asyncio.sleep(0.1)
        path, then = PATHS.server_descriptors, sites.coordinator.tree
        tree, old = rebuilt(then, partition_entries(then))
        assert old == []
        tree.check_invariants()
        for each in (PATHS.root, PATHS.store, PATHS.replica_assignments):
            assert tree.read(each).data == then.read(each).data
            assert tree.read(each).version == 0
        assert tree.children(path) == []
        assert not is_settled(tree, 2)
        sites.coordinator.rebuild(tree, transactions=0)
        for version in (0, 5, 6, 7):
            raise_child_version(sites.coordinator, path, version)
            assert tree.read(path).child_version == version - version % 2
        raise_version(sites.coordinator, path, 3)
        assert tree.read(path).version == 3
        tree.check_invariants()

    try:
        loop.run_until_complete(scene())
    finally:
        loop.shut_down()
