"""A partition's questions to a coordinator that is away, in simulated time."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.simulated import World, create, simulate
from waltz.host import Host
from waltz.store.partition_coordination_shell import CoordinatorEvent, PartitionCoordination
from waltz.types import PartitionId


def test_a_coordinator_that_is_away_is_told_once_per_partition_and_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server may have thousands of partitions, and lack the coordinator for days."""

    async def story(world: World) -> None:
        told: list[CoordinatorEvent] = []

        async def server(host: Host) -> None:
            await create(host.coordinator)
            coordination = PartitionCoordination(host, PartitionId(0), "/waltz", told.append)
            following = asyncio.ensure_future(coordination.follow_assignment())
            for outages in (1, 2):
                await asyncio.sleep(30.0)
                assert told
                world.service.begin_outage()
                await asyncio.sleep(3600.0)
                world.service.end_outage()
                assert caplog.text.count("assignment_unreadable partition=0") == outages
                told.clear()
            following.cancel()

        await world.run(server)

    simulate(story)
