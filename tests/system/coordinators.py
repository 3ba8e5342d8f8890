"""The three coordinators behind one stage, so that one test plays on each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kazoo.client import KazooClient

from tests.cluster.simulated import World
from tests.zookeepers import RunningZooKeeper
from waltz.errors import CoordinatorLostError, NodeExistsError
from waltz.host import Coordinator, Host
from waltz.sim.loop import Process
from waltz.sim.simulated_coordinator import SimulatedCoordinator
from waltz.system.embedded import EmbeddedCoordinator
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.system.zookeeper import ZooKeeperCoordinator
from waltz.types import Address

T = TypeVar("T")

SESSION_SECONDS = 10.0

CALL_SECONDS_MAX = 60.0
"""A call that is to be answered."""

OUTAGE_CALL_SECONDS_MAX = 2.0
"""A call that nobody answers."""


class Stage(Protocol):
    """A coordinator, processes that use it, and what may befall them."""

    def host(self) -> Host:
        """The doors of one more process."""
        ...

    async def expire(self, coordinator: Coordinator) -> None:
        """End the session of a process that has called, behind its back."""
        ...

    async def begin_outage(self) -> None: ...
    async def end_outage(self) -> None: ...


Story = Callable[[Stage], Coroutine[Any, Any, None]]
Play = Callable[[Story], None]


async def answered(call: Callable[[], Awaitable[T]]) -> T:
    """Return what `call` returns, made again for as long as the coordinator is lost."""
    while True:
        try:
            return await call()
        except CoordinatorLostError:
            await asyncio.sleep(0.02)


async def created(door: Coordinator, path: str, data: bytes | None, *, ephemeral: bool) -> None:
    """Make a node; a call that was lost, and is made again, may have made it already."""
    with contextlib.suppress(NodeExistsError):
        await answered(lambda: door.create(path, data, ephemeral=ephemeral))


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return once `condition` holds; the test's own time limit is the bound."""
    while not await answered(condition):
        await asyncio.sleep(0.02)


class SimulatedStage:
    def __init__(self, world: World) -> None:
        self._world = world
        self._count = 0

    def host(self) -> Host:
        self._count += 1
        return self._world.host(Process(f"process-{self._count}"))

    async def expire(self, coordinator: Coordinator) -> None:
        assert isinstance(coordinator, SimulatedCoordinator)
        coordinator.session.end()

    async def begin_outage(self) -> None:
        self._world.service.begin_outage()

    async def end_outage(self) -> None:
        self._world.service.end_outage()


def play_simulated(story: Story) -> None:
    world = World(1)
    try:
        world.loop.run_until_complete(story(SimulatedStage(world)))
        assert not world.loop.failures()
        world.tree.check_invariants()
    finally:
        world.loop.shut_down()


def have_patience(hosts: Iterable[Host], seconds: float) -> None:
    for host in hosts:
        assert isinstance(host.coordinator, EmbeddedCoordinator | ZooKeeperCoordinator)
        host.coordinator._call_seconds_max = seconds


class EmbeddedStage:
    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._server = EmbeddedCoordinatorServer(self._path, session_seconds=SESSION_SECONDS)
        self._hosts: list[Host] = []

    async def start(self) -> None:
        await self._server.start(Address("127.0.0.1", 0))

    def host(self) -> Host:
        coordinator = EmbeddedCoordinator(self._server.address, call_seconds_max=CALL_SECONDS_MAX)
        host = replace(real_host(None), coordinator=coordinator)
        self._hosts.append(host)
        return host

    async def expire(self, coordinator: Coordinator) -> None:
        assert isinstance(coordinator, EmbeddedCoordinator)
        assert coordinator._session is not None
        self._server._end_session(self._server._sessions[coordinator._session])

    async def begin_outage(self) -> None:
        have_patience(self._hosts, OUTAGE_CALL_SECONDS_MAX)
        await self._server.stop()

    async def end_outage(self) -> None:
        have_patience(self._hosts, CALL_SECONDS_MAX)
        address = self._server.address
        self._server = EmbeddedCoordinatorServer(self._path, session_seconds=SESSION_SECONDS)
        await self._server.start(address)

    async def close(self) -> None:
        for host in self._hosts:
            await host.coordinator.close()
        await self._server.stop()


def play_embedded(path: Path, story: Story) -> None:
    async def main() -> None:
        stage = EmbeddedStage(path)
        await stage.start()
        try:
            await story(stage)
        finally:
            await stage.close()

    asyncio.run(main())


async def expire_session(zookeeper: RunningZooKeeper, coordinator: Coordinator) -> None:
    """End a session as its time-out would: who knows its password may close it.

    The owner connects again at once, and takes it back if it is there before the close. So this is
    repeated until the owner has another session.
    """
    assert isinstance(coordinator, ZooKeeperCoordinator)
    session = coordinator._client.client_id

    def close() -> None:
        thief = KazooClient(str(zookeeper.address), client_id=session)
        thief.start()
        thief.stop()
        thief.close()

    while getattr(coordinator._client, "client_id", None) == session:
        await asyncio.to_thread(close)
        await asyncio.sleep(0.1)


class ZooKeeperStage:
    """Works below a node of its own, which its processes see as the root."""

    def __init__(self, zookeeper: RunningZooKeeper, chroot: str) -> None:
        self._zookeeper = zookeeper
        self._connect_string = f"{zookeeper.address}{chroot}"
        self._hosts: list[Host] = []

    def host(self) -> Host:
        coordinator = ZooKeeperCoordinator(
            self._connect_string,
            session_seconds=SESSION_SECONDS,
            call_seconds_max=CALL_SECONDS_MAX,
        )
        host = replace(real_host(None), coordinator=coordinator)
        self._hosts.append(host)
        return host

    async def expire(self, coordinator: Coordinator) -> None:
        await expire_session(self._zookeeper, coordinator)

    async def begin_outage(self) -> None:
        have_patience(self._hosts, OUTAGE_CALL_SECONDS_MAX)
        await asyncio.to_thread(self._zookeeper.kill)

    async def end_outage(self) -> None:
        have_patience(self._hosts, CALL_SECONDS_MAX)
        await asyncio.to_thread(self._zookeeper.start)

    async def close(self) -> None:
        for host in self._hosts:
            await host.coordinator.close()


def play_zookeeper(zookeeper: RunningZooKeeper, chroot: str, story: Story) -> None:
    async def main() -> None:
        maker = ZooKeeperCoordinator(str(zookeeper.address))
        await maker.create(chroot, None)
        await maker.close()
        stage = ZooKeeperStage(zookeeper, chroot)
        try:
            await story(stage)
        finally:
            await stage.close()

    asyncio.run(main())
