"""The coordinator of a simulated cluster: one tree, a session per process, and ways to lose it.

Owns sessions, delays and unreachability; the tree's rules are those of the embedded coordinator.
How long a call takes, and whether one that is cut off still takes effect, is drawn from the given
random source. Knows nothing of what the nodes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, TypeVar

from waltz.cluster.tree import Tree
from waltz.errors import CoordinatorLostError
from waltz.host import ANY_VERSION, Node
from waltz.limits import COORDINATOR_CALL_SECONDS_MAX, COORDINATOR_SESSION_SECONDS
from waltz.sim.loop import WORLD, Process

T = TypeVar("T")

DELAY_SECONDS_MAX: Final = 0.005
"""One way, to the coordinator or back."""


class SimulatedCoordinatorService:
    """The tree of a run, and which process can reach it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.tree = Tree()
        self._doors: dict[Process, SimulatedCoordinator] = {}
        self._waiting: dict[_Waiter, None] = {}
        self._sessions_count = 0

    def door(self, process: Process) -> SimulatedCoordinator:
        """The coordinator as `process`, one incarnation, sees it."""
        return self._doors.setdefault(process, SimulatedCoordinator(self, process.name))

    def lose(self, process: Process) -> None:
        """Cut the process off, because it died or for a while. Its session ends in time."""
        if process in self._doors:
            self._doors[process].isolate()

    def heal(self, process: Process) -> None:
        """Let the process reach the coordinator again."""
        self._doors[process].heal()

    def expire(self, process: Process) -> None:
        """End the session of a process now; its next call begins another one."""
        self._doors[process].end_session()

    def next_session(self, name: str) -> str:
        self._sessions_count += 1
        return f"{name}#{self._sessions_count}"

    def apply(self, call: Callable[[Tree], T]) -> T:
        """Make a call on the tree and wake whoever waits for what it changed."""
        try:
            return call(self.tree)
        finally:
            for waiter in [w for w in self._waiting if self.tree.differs(w.path, w.seen)]:
                self._waiting.pop(waiter)
                waiter.wake()

    def wait(self, waiter: _Waiter) -> None:
        self._waiting[waiter] = None

    def forget(self, waiter: _Waiter) -> None:
        self._waiting.pop(waiter, None)

    def cut_off(self, coordinator: SimulatedCoordinator) -> None:
        """Let all waits of one door end with CoordinatorLostError."""
        for waiter in [w for w in self._waiting if w.coordinator is coordinator]:
            self._waiting.pop(waiter)
            waiter.wake()


class _Waiter:
    __slots__ = ("_future", "coordinator", "path", "seen")

    def __init__(self, coordinator: SimulatedCoordinator, path: str, seen: Node | None) -> None:
        self.coordinator = coordinator
        self.path = path
        self.seen = seen
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def woken(self) -> None:
        await self._future


class SimulatedCoordinator:
    """Implements `host.Coordinator` for one process.

    A session begins with the first call after the last one ended.
    """

    def __init__(self, service: SimulatedCoordinatorService, name: str) -> None:
        self._service = service
        self._name = name
        self._session: str | None = None
        self._closed = False
        self._isolations_count = 0
        self.is_isolated = False

    # What `host.Coordinator` promises

    async def read(self, path: str) -> Node:
        return await self._call(lambda tree, _: tree.read(path))

    async def children(self, path: str) -> Sequence[str]:
        return await self._call(lambda tree, _: tree.children(path))

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        return await self._call(
            lambda tree, session: tree.create(
                path, data, owner=session if ephemeral else None, sequential=sequential
            )
        )

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        return await self._call(lambda tree, _: tree.write(path, data, version=version))

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        await self._call(lambda tree, _: tree.delete(path, version=version))

    async def changed(self, path: str, seen: Node | None) -> None:
        await self._delay()
        while not self._service.tree.differs(path, seen):
            self._check_reachable()
            waiter = _Waiter(self, path, seen)
            self._service.wait(waiter)
            try:
                await waiter.woken()
            finally:
                self._service.forget(waiter)
        await self._delay()
        self._check_reachable()

    async def close(self) -> None:
        if not self._closed and not self.is_isolated:
            await self._delay()
            self.end_session()
        self._closed = True

    # What befalls it

    def isolate(self) -> None:
        """Cut the process off; waits end, and the session too unless it is healed in time."""
        if self.is_isolated:
            return
        self.is_isolated = True
        self._isolations_count += 1
        self._service.cut_off(self)
        self._expire_later(self._isolations_count)

    def heal(self) -> None:
        self.is_isolated = False

    def end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._service.apply(lambda tree: tree.end_session(session))

    def _expire_later(self, isolation: int) -> None:
        def expire() -> None:
            if self.is_isolated and self._isolations_count == isolation:
                self.end_session()

        # In the name of the world: the dead do not run timers.
        self._service.loop.call_later(COORDINATOR_SESSION_SECONDS, expire, context=WORLD)

    async def _call(self, call: Callable[[Tree, str], T]) -> T:
        await self._delay()
        if self.is_isolated:
            await asyncio.sleep(COORDINATOR_CALL_SECONDS_MAX)
        self._check_reachable()
        if self._session is None:
            self._session = self._service.next_session(self._name)
        session = self._session
        outcome = self._service.apply(lambda tree: call(tree, session))
        await self._delay()
        self._check_reachable()
        return outcome

    async def _delay(self) -> None:
        await asyncio.sleep(self._service.random.uniform(0.0, DELAY_SECONDS_MAX))

    def _check_reachable(self) -> None:
        if self.is_isolated or self._closed:
            raise CoordinatorLostError(f"{self._name} cannot reach the coordinator")
