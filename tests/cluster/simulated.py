"""A world of processes that share a simulated coordinator and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.errors import CoordinatorLostError
from waltz.host import ANY_VERSION, Coordinator, Host, Node
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import (
    Process,
    SimulatedClock,
    SimulatedLoop,
    SimulatedRandom,
    SimulatedWorkers,
)
from waltz.sim.simulated_coordinator import SimulatedCoordinatorService
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.simulated_network import SimulatedNetwork, draw_weather
from waltz.types import Address

T = TypeVar("T")

KEY = UUID("c9e0789e-63ae-41d1-8b53-48ffb21cd9b4")

STORAGES = [
    StorageEntry(Address("vm", port), Address("vm", port + 1)) for port in (47310, 47320, 47330)
]


async def create(
    coordinator: Coordinator,
    *,
    name: str = "golden",
    cluster_key: UUID = KEY,
    root: str = "/waltz",
    storages: list[StorageEntry] = STORAGES,
    partition_count: int = 2,
) -> None:
    await create_cluster(
        coordinator,
        name=name,
        partition_count=partition_count,
        cluster_key=cluster_key,
        storages=storages,
        root=root,
    )


class World:
    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        self.service = SimulatedCoordinatorService(self.loop, Random(f"{seed}/coordinator"))
        self.tree = self.service.tree
        self._random = Random(f"{seed}/world")
        weather = draw_weather(Random(seed))
        self._network = SimulatedNetwork(self.loop, Random(seed), weather, RunTrace())

    def host(self, process: Process) -> Host:
        random = Random(self._random.getrandbits(64))
        return Host(
            clock=SimulatedClock(self.loop, random),
            network=self._network.door(process),
            disk=SimulatedDisk(),
            random=SimulatedRandom(random),
            workers=SimulatedWorkers(self.loop, random),
            coordinator=self.service.door(process),
        )

    async def run(self, main: Callable[[Host], Coroutine[Any, Any, T]], name: str = "tool") -> T:
        """Run `main` as a process of its own to its end, and end its session."""
        process = Process(name)
        host = self.host(process)
        try:
            return await self.loop.spawn(process, main(host))
        finally:
            await host.coordinator.close()

    def start(self, main: Callable[[Host], Coroutine[Any, Any, Any]], name: str) -> Process:
        """Let `main` run as a process of its own."""
        process = Process(name)
        self.loop.spawn(process, main(self.host(process)))
        return process

    def kill(self, process: Process) -> None:
        process.dead = True
        self.service.lose(process)

    async def ask(
        self, call: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any
    ) -> T:
        """Call with a coordinator of its own and return the answer."""
        return await self.run(lambda host: call(host.coordinator, *arguments, **options))

    def nodes(self, root: str) -> Mapping[str, Node]:
        """All nodes at and below `root`."""
        found = {root: self.tree.read(root)}
        for name in self.tree.children(root):
            found.update(self.nodes(f"{root}/{name}"))
        return found


def simulate(story: Callable[[World], Coroutine[Any, Any, T]], seed: int = 1) -> T:
    """Return what `story` returns in a world drawn from `seed`."""
    world = World(seed)
    try:
        outcome = world.loop.run_until_complete(story(world))
        assert not world.loop.failures()
        world.tree.check_invariants()
        return outcome
    finally:
        world.loop.shut_down()


class FailingCoordinator:
    """Loses the connection at call number `failing`, with or without the call taking effect."""

    def __init__(self, inner: Coordinator, failing: int, *, takes_effect: bool) -> None:
        self._inner = inner
        self._calls_left = failing
        self._takes_effect = takes_effect

    async def _pass(self, call: Coroutine[Any, Any, T]) -> T:
        self._calls_left -= 1
        if self._calls_left >= 0:
            return await call
        if self._calls_left == -1 and self._takes_effect:
            await call
        else:
            call.close()
        raise CoordinatorLostError("lost")

    async def read(self, path: str) -> Node:
        return await self._pass(_made(self._inner.read(path)))

    async def children(self, path: str) -> Sequence[str]:
        return await self._pass(_made(self._inner.children(path)))

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return await self._pass(
            _made(self._inner.create(path, data, ephemeral=ephemeral, sequential=sequential))
        )

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        return await self._pass(_made(self._inner.write(path, data, version=version)))

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        await self._pass(_made(self._inner.delete(path, version=version)))

    async def changed(self, path: str, seen: Node | None) -> None:
        await self._pass(_made(self._inner.changed(path, seen)))

    async def close(self) -> None:
        await self._inner.close()


def _made(call: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    return call


async def settled(seconds: float = 30.0) -> None:
    """Let virtual time pass; long enough for sessions to end and pauses to be over."""
    await asyncio.sleep(seconds)
