"""The mutex of a cluster's metadata, taken by several tools and by one that dies."""

from __future__ import annotations

import asyncio

from tests.cluster.simulated import World, create, simulate
from waltz.cluster.locking_shell import admin_lock
from waltz.host import Coordinator, Host


def test_the_admin_lock_lets_one_in_at_a_time() -> None:
    """CM-24"""

    async def story(world: World) -> None:
        await world.ask(create)
        inside: list[int] = []

        async def change(coordinator: Coordinator, number: int) -> None:
            async with admin_lock(coordinator):
                assert not inside
                inside.append(number)
                await asyncio.sleep(1)
                inside.remove(number)

        await asyncio.gather(*[world.ask(change, number) for number in range(5)])
        assert world.loop.time() >= 5
        assert "adminLock" not in world.tree.children("/waltz/store")

    simulate(story)


def test_the_admin_lock_of_a_dead_tool_does_not_last() -> None:
    async def story(world: World) -> None:
        await world.ask(create)

        async def hold(host: Host) -> None:
            async with admin_lock(host.coordinator):
                await asyncio.sleep(1000)

        async def take(host: Host) -> None:
            async with admin_lock(host.coordinator):
                pass

        holder = world.start(hold, "holder")
        await asyncio.sleep(1)
        world.kill(holder)
        await world.run(take)
        assert world.loop.time() < 20

    simulate(story)
