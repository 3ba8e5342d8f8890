"""What foreign processes do to the nodes of the coordinator."""

from __future__ import annotations

import asyncio

from tests.cluster.simulated import World, simulate
from waltz.host import Node
from waltz.sim.faults.coordinator_strikes import rewrite
from waltz.sim.loop import Process


def test_foreign_writes_change_versions_and_nothing_else() -> None:
    async def story(world: World) -> None:
        service = world.service
        assert rewrite(service, 0.5) is None
        door = service.door(Process("one"))
        for path in ("/a", "/a/b", "/c"):
            await door.create(path, None if path == "/a" else path.encode())
        waiting = asyncio.ensure_future(door.changed("/c", await door.read("/c")))
        assert [rewrite(service, choice) for choice in (0.0, 0.7, 1.0)] == ["/a/b", "/c", "/c"]
        await waiting
        assert await door.read("/c") == Node(b"/c", 2, 0)

    simulate(story)
