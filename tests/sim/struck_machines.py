"""Two machines for the tests of strikes: one counts, the other talks with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

from waltz.host import Connection, Host
from waltz.sim.faults.kinds import (
    Fault,
)
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites, until_stopped
from waltz.types import Address

FILE = "/data/0.seg"
HERE = Address("node", 7000)


class World:
    """A machine that counts bytes on its disk, and one that talks with it."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.trace = RunTrace()
        self.sites = Sites(self.loop, seed, self.trace)
        self.strikes = Strikes(self.sites)
        self.starts: list[str] = []
        self.ticks: list[float] = []
        """When the node wrote a byte and synced it."""
        self.errors: list[str] = []
        self.heard: list[float] = []
        """When the node heard of its caller."""

    async def start(self) -> None:
        self.sites.add("node", self._node, SimulatedDisk(["/data"]))
        self.sites.add("caller", self._caller, SimulatedDisk())
        await asyncio.sleep(1.0)

    async def strike(self, fault: Fault) -> float:
        """Return how long it lasted."""
        before = self.loop.time()
        await self.strikes.strike(fault)
        return self.loop.time() - before

    async def _node(self, host: Host) -> None:
        self.starts.append("node")
        await host.network.listen(HERE, self._hear)
        await until_stopped(self._count(host))

    async def _count(self, host: Host) -> None:
        exists = host.disk.exists(FILE)
        file = host.disk.open(FILE, create=not exists)
        host.disk.sync_directory("/data")

        def append() -> None:
            file.write_at(file.size(), b"x")
            file.sync()

        while True:
            try:
                await host.workers.run_blocking(append)
                self.ticks.append(self.loop.time())
            except OSError as error:
                self.errors.append(str(error))
            await asyncio.sleep(0.1)

    async def _hear(self, connection: Connection) -> None:
        while await connection.read():
            self.heard.append(self.loop.time())

    async def _caller(self, host: Host) -> None:
        self.starts.append("caller")
        connection = await host.network.connect(HERE)
        while True:
            connection.write(b"x")
            await asyncio.sleep(0.1)

    def silence(self, since: float, moments: list[float]) -> float:
        """The longest time without one of `moments` since then."""
        later = [since, *(moment for moment in moments if moment >= since), self.loop.time()]
        return max(after - before for before, after in pairwise(later))

    @property
    def size(self) -> int:
        return len(self.sites.disk("node").content(FILE))


Scene = Callable[[World], Coroutine[Any, Any, None]]


def play(scene: Scene, seeds: int = 5, *, records: bool = False) -> None:
    for seed in range(seeds):
        world = World(seed)
        if records:
            world.sites.network.record()

        async def run(world: World = world) -> None:
            await world.start()
            await scene(world)
            assert not world.sites.broken.done()

        try:
            world.loop.run_until_complete(run())
            assert world.loop.failures() == []
        finally:
            world.loop.shut_down()
