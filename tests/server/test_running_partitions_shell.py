"""The partitions of a real server, assigned and taken away, spoken to frame by frame."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.test_server_shell import PARTITIONS, Caller, World, play
from waltz.host import Host
from waltz.types import NOTHING, Generation, TransactionId
from waltz.wire.client_protocol import FeedData, HighWaterMarkRequest, HighWaterMarkResponse
from waltz.wire.message import Message


def test_partition_under_a_higher_generation_starts_afresh() -> None:
    """SV-03: others may have written in between, so its clients mount again."""

    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        caller.append(b"before")
        await caller.hear(FeedData)
        assert world.server is not None
        before = world.server._partitions.running[PARTITIONS[1]]
        world.server._partitions.assign(
            {PARTITIONS[0]: Generation(2), PARTITIONS[1]: Generation(1)}
        )
        assert world.server._partitions.running[PARTITIONS[1]] is before
        with pytest.raises(EOFError):
            await caller.hear(Message)
        again = await Caller.connect(host)
        await again.mount(0)
        again.append(b"stale", 0)
        again.generation = 2
        request_id = again.append(b"after", 0)
        assert (await again.hear(FeedData)) == FeedData(request_id, TransactionId(1), 5)

    play(scene)


def test_clients_that_missed_that_a_partition_was_away_mount_again() -> None:
    """SV-03: a client that cannot reach the coordinator sees neither the loss nor the return."""

    async def scene(world: World, host: Host) -> None:
        caller, other = await Caller.connect(host, 7), await Caller.connect(host, 8)
        await caller.mount()
        await other.mount(partition=PARTITIONS[1])
        assert world.server is not None
        kept = {PARTITIONS[1]: Generation(1)}
        world.server._partitions.assign(kept)
        await asyncio.sleep(1.0)
        world.server._partitions.assign(kept | {PARTITIONS[0]: Generation(3)})
        with pytest.raises(EOFError):
            await caller.hear(Message)
        mark = HighWaterMarkRequest(other.id(PARTITIONS[1]))
        assert (await other.ask(mark, HighWaterMarkResponse)).transaction_id == NOTHING

    play(scene)
