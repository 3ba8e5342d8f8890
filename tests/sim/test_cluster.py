"""A simulated cluster starts, and its disks are read without the product's help."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

from waltz.client.shell import AsyncWaltzClient
from waltz.host import Host
from waltz.sim.cluster import ClusterShape, SimulatedCluster, draw_shape
from waltz.sim.history import History
from waltz.sim.loop import SimulatedLoop
from waltz.sim.sites import Sites
from waltz.sim.trace import Trace
from waltz.sim.workloads import Application
from waltz.types import PartitionId

SHAPE = ClusterShape(
    partition_count=1,
    storage_count=3,
    server_count=1,
    segment_bytes_threshold=200,
    syncs_late=False,
)


def test_equal_seeds_draw_equal_shapes() -> None:
    for seed in range(20):
        shape = draw_shape(Random(seed), syncs_late=False, server_count_min=1)
        assert shape == draw_shape(Random(seed), syncs_late=False, server_count_min=1)
        assert draw_shape(Random(seed), syncs_late=False, server_count_min=2).server_count == 2
    assert draw_shape(Random(1), syncs_late=True, server_count_min=1).syncs_late


def test_what_a_client_appends_lies_on_every_disk_across_segments() -> None:
    """PM-04, SD-12: three replicas, several segment files each, the same records."""
    loop = SimulatedLoop(1)
    cluster = SimulatedCluster(Sites(loop, 1, Trace()), SHAPE, UUID(int=1))
    user = Application("client", History(), Trace(), loop.time)

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
        assert [replica[PartitionId(0)] for replica in cluster.replicas().values()] == [log] * 3
        names = cluster.sites.disk("storage-0").list_directory("/storage/0")
        assert len(names) > 4
    finally:
        loop.shut_down()
