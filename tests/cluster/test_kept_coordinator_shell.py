"""A coordinator that is asked now and then: connected to at a question, left when nobody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.cluster.simulated import KEY, World, simulate
from waltz.cluster.cluster_shell import StorageEntry, create_cluster, read_store_params
from waltz.cluster.kept_coordinator_shell import KEPT_SECONDS, KeptCoordinator
from waltz.errors import CoordinatorLostError
from waltz.host import Coordinator
from waltz.sim.loop import Process
from waltz.types import Address


class Doors:
    """Connections to the coordinator of a world, each of a process of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.opened: list[Coordinator] = []
        self.closed = 0

    def connect(self) -> Coordinator:
        door = self._world.service.door(Process(f"asks {len(self.opened)}"))
        close = door.close

        async def closing() -> None:
            self.closed += 1
            await close()

        door.close = closing  # type: ignore[method-assign]
        self.opened.append(door)
        return door


Story = Callable[[KeptCoordinator, Doors], Awaitable[None]]


def play(story: Story) -> None:
    async def played(world: World) -> None:
        await world.ask(
            create_cluster,
            name="prod",
            partition_count=2,
            cluster_key=KEY,
            storages=[StorageEntry(Address("s", 1), Address("s", 2))],
        )
        doors = Doors(world)
        kept = KeptCoordinator(doors.connect)
        await story(kept, doors)
        await kept.close()
        assert doors.closed == len(doors.opened)

    simulate(played)


async def ask(kept: KeptCoordinator) -> int:
    return (await kept.ask(read_store_params)).partition_count


def test_questions_that_come_together_and_one_after_the_other_share_a_connection() -> None:
    async def story(kept: KeptCoordinator, doors: Doors) -> None:
        assert await asyncio.gather(*(ask(kept) for _ in range(5))) == [2] * 5
        for _ in range(3):
            await asyncio.sleep(0.9 * KEPT_SECONDS)
            assert await ask(kept) == 2
        assert (len(doors.opened), doors.closed) == (1, 0)

    play(story)


def test_a_connection_is_left_when_nobody_has_asked_for_a_while() -> None:
    async def story(kept: KeptCoordinator, doors: Doors) -> None:
        await ask(kept)
        await asyncio.sleep(1.1 * KEPT_SECONDS)
        assert doors.closed == 1
        assert await ask(kept) == 2
        assert len(doors.opened) == 2

    play(story)


def test_a_question_that_takes_long_keeps_its_connection() -> None:
    async def story(kept: KeptCoordinator, doors: Doors) -> None:
        async def slow(_: Coordinator) -> None:
            await asyncio.sleep(3 * KEPT_SECONDS)

        asking = asyncio.create_task(kept.ask(slow))
        await asyncio.sleep(1)
        await ask(kept)
        await asyncio.sleep(2 * KEPT_SECONDS)
        assert doors.closed == 0
        await asking

    play(story)


def test_after_a_question_that_has_failed_the_next_one_has_a_connection_of_its_own() -> None:
    async def story(kept: KeptCoordinator, doors: Doors) -> None:
        async def lost(_: Coordinator) -> None:
            raise CoordinatorLostError("lost")

        with pytest.raises(CoordinatorLostError):
            await kept.ask(lost)
        assert doors.closed == 1
        assert await ask(kept) == 2
        assert len(doors.opened) == 2

    play(story)
