"""Nodes of consumers in a coordinator that several servers write at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.cluster.simulated import World, create, simulate
from waltz.cluster.consumer_marks import CONSUMERS_MAX, KeptMark
from waltz.cluster.consumers_shell import forget_consumer, keep_marks, read_consumers
from waltz.errors import CoordinationError, NoNodeError, RemoteProtocolError
from waltz.host import Coordinator
from waltz.types import PartitionId, TransactionId


def told(*marks: int) -> dict[PartitionId, KeptMark]:
    return {
        PartitionId(number): KeptMark(TransactionId(mark), 100 + mark)
        for number, mark in enumerate(marks)
        if mark >= 0
    }


def test_marks_of_several_servers_come_together_and_only_grow() -> None:
    async def keep(coordinator: Coordinator) -> None:
        await asyncio.gather(
            *[keep_marks(coordinator, "orders", told(mark, -1)) for mark in range(8)],
            *[keep_marks(coordinator, "orders", told(-1, mark)) for mark in range(8)],
            keep_marks(coordinator, "export", told(3)),
        )
        await keep_marks(coordinator, "orders", told(2, 2))

    async def story(world: World) -> None:
        await world.ask(create)
        assert await world.ask(read_consumers) == {}
        await world.ask(keep)
        assert await world.ask(read_consumers) == {"orders": told(7, 7), "export": told(3)}
        assert await world.ask(forget_consumer, "orders")
        assert not await world.ask(forget_consumer, "orders")
        await world.ask(keep_marks, "orders", told(1))
        assert await world.ask(read_consumers) == {"orders": told(1), "export": told(3)}

    simulate(story)


def test_a_consumer_more_than_there_may_be_is_refused_and_room_can_be_made() -> None:
    async def fill(coordinator: Coordinator) -> None:
        await keep_marks(coordinator, "c0", told(1))
        for number in range(1, CONSUMERS_MAX):
            await coordinator.create(f"/waltz/consumers/c{number}", b"{}")
        with pytest.raises(CoordinationError, match="waltz consumers forget makes room"):
            await keep_marks(coordinator, "late", told(1))
        await keep_marks(coordinator, "c7", told(2))
        await forget_consumer(coordinator, "c8")
        await keep_marks(coordinator, "late", told(1))

    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(fill)

    simulate(story)


def test_a_node_that_cannot_be_read_is_left_as_it_is() -> None:
    async def spoil(coordinator: Coordinator) -> None:
        await keep_marks(coordinator, "orders", told(1))
        await coordinator.write("/waltz/consumers/orders", b"not ours", version=0)
        with pytest.raises(RemoteProtocolError):
            await keep_marks(coordinator, "orders", told(5))
        (found,) = (await read_consumers(coordinator)).values()
        assert isinstance(found, RemoteProtocolError)
        assert (await coordinator.read("/waltz/consumers/orders")).data == b"not ours"

    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(spoil)

    simulate(story)


def test_there_is_no_consumer_without_a_cluster() -> None:
    async def story(world: World) -> None:
        with pytest.raises(NoNodeError):
            await world.ask(keep_marks, "orders", told(1))

    simulate(story)
