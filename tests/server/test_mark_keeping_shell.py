"""Marks of consumers on their way into the coordinator, in simulated time."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.simulated import World, create, simulate
from waltz.cluster.consumers_shell import read_consumers
from waltz.host import Host
from waltz.server.clients.mark_keeping_shell import MarkKeeper
from waltz.types import PartitionId, TransactionId


@pytest.mark.parametrize("seed", range(5))
def test_a_mark_that_is_being_written_when_the_server_stops_is_written(seed: int) -> None:
    async def story(world: World) -> None:
        async def server(host: Host) -> None:
            await create(host.coordinator)
            keeper = MarkKeeper(host, "/waltz")
            keeper.note(1, "ledger", PartitionId(0), TransactionId(7))
            await asyncio.sleep(1e-6)  # the write begins
            await keeper.stop()
            (kept,) = (await read_consumers(host.coordinator)).values()
            assert isinstance(kept, dict)
            assert kept[PartitionId(0)].transaction_id == 7

        await world.run(server)

    simulate(story, seed)
