"""A simulated cluster starts, and its disks are read without the product's help."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.placement_shell import change_placement
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
)
from waltz.host import Host
from waltz.sim.applications.application import Application
from waltz.sim.faults.kinds import Stop
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.history import History
from waltz.sim.judges.replicas import agreement
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import ADMIN_PORT, PORT, SimulatedCluster
from waltz.sim.sites import Sites
from waltz.types import Address, PartitionId, ReplicaId

SHAPE = ClusterShape(
    partition_count=1,
    storage_count=3,
    server_count=1,
    segment_bytes_threshold=200,
)


def test_what_a_client_appends_lies_on_every_disk_across_segments() -> None:
    """PM-04, SD-12: three replicas, several segment files each, the same records."""
    loop = SimulatedLoop(1)
    cluster = SimulatedCluster(Sites(loop, 1, RunTrace()), SHAPE, UUID(int=1))
    user = Application("client", History(), RunTrace(), loop.time)

    async def main(host: Host) -> None:
        async with AsyncWaltzClient(host, user) as client:
            for number in range(10):
                assert await client.append(0, b"%d" % number * 20) == number

    async def scene() -> None:
        await cluster.start()
        await cluster.sites.run("client", main)
        await asyncio.sleep(10.0)

    try:
        loop.run_until_complete(scene())
        assert loop.failures() == []
        log = user.history.feed("client", PartitionId(0))
        assert len(log) == 10
        for durable in (True, False):
            replicas = cluster.replicas(durable=durable)
            assert agreement(replicas, {PartitionId(0): log}, cluster.assigned()) == []
            assert [len(found.records[PartitionId(0)]) for found in replicas.values()] == [10] * 3
            assert all(found.marks[PartitionId(0)].session_id == 0 for found in replicas.values())
        names = cluster.sites.disk("storage-0").list_directory("/storage/0")
        assert len(names) > 4
    finally:
        loop.shut_down()


def test_spares_run_and_belong_to_nobody() -> None:
    loop = SimulatedLoop(1)
    cluster = SimulatedCluster(
        Sites(loop, 1, RunTrace()), replace(SHAPE, spare_count=1), UUID(int=1)
    )

    async def scene() -> None:
        await cluster.start()
        assert cluster.members() == {PartitionId(0): set()}
        await asyncio.sleep(10.0)

    try:
        loop.run_until_complete(scene())
        first = {"storage-0", "storage-1", "storage-2"}
        assert cluster.assigned() == cluster.members() == {PartitionId(0): first}
        assert {*cluster.replicas(durable=True)} == {*first, "storage-3"}
    finally:
        loop.shut_down()


def test_everything_can_be_stopped_and_started_again() -> None:
    """SV-31, SN-04: in an orderly way, without a loss."""
    loop = SimulatedLoop(1)
    cluster = SimulatedCluster(Sites(loop, 1, RunTrace()), SHAPE, UUID(int=1))
    strikes = Strikes(cluster.sites)
    names = (*cluster.storages, *cluster.servers)
    user = Application("client", History(), RunTrace(), loop.time)

    async def main(host: Host) -> None:
        async with AsyncWaltzClient(host, user) as client:
            for number in range(3):
                assert await client.append(0, b"%d" % number) == number
                await strikes.strike(
                    Stop(
                        progress=0.0,
                        names=names,
                        pause_seconds=(0.0,) * len(names),
                        one_by_one=number % 2 == 0,
                    )
                )
            assert await client.append(0, b"the end") == 3

    async def scene() -> None:
        await cluster.start()
        await cluster.sites.run("client", main)

    try:
        loop.run_until_complete(scene())
        assert loop.failures() == []
        assert strikes.processes.stubborn == []
        assert strikes.record.counts == {"Stop": 3 * len(names)}
    finally:
        loop.shut_down()


def test_storage_nodes_and_servers_can_come_later() -> None:
    """ST-39, ST-40: a replica more, filled by the server that is there or the one that comes."""
    loop = SimulatedLoop(1)
    cluster = SimulatedCluster(Sites(loop, 1, RunTrace()), SHAPE, UUID(int=1))
    user = Application("client", History(), RunTrace(), loop.time)

    def with_one_more(placement: StoragePlacement) -> StoragePlacement:
        address = Address("storage-3", PORT)
        added = add_storage_node(placement, address, group=4, admin_port=ADMIN_PORT)
        return assign_replicas(added, ReplicaId(str(address)), [PartitionId(0)])

    async def add(host: Host) -> None:
        await change_placement(host.coordinator, with_one_more)
        await host.coordinator.close()

    async def main(host: Host) -> None:
        async with AsyncWaltzClient(host, user) as client:
            assert await client.append(0, b"before") == 0
            cluster.add_storage("storage-3")
            await cluster.sites.run("tool", add)
            cluster.add_server("server-1")
            assert await client.append(0, b"after") == 1

    async def scene() -> None:
        await cluster.start()
        await cluster.sites.run("client", main)
        await asyncio.sleep(10.0)

    try:
        loop.run_until_complete(scene())
        assert loop.failures() == []
        log = user.history.feed("client", PartitionId(0))
        replicas = cluster.replicas(durable=True)
        assert [*replicas] == ["storage-0", "storage-1", "storage-2", "storage-3"]
        assert agreement(replicas, {PartitionId(0): log}, cluster.assigned()) == []
        assert cluster.assigned() == cluster.members() == {PartitionId(0): {*replicas}}
    finally:
        loop.shut_down()
