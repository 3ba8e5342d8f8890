"""The coordinator of a simulated cluster: one tree, a session per process, and ways to lose it.

Owns sessions, delays and unreachability; the tree's rules are those of the embedded coordinator.
How long a call takes, and whether one that is cut off still takes effect, is drawn from the given
random source. A message arrives even if its sender has died or been paused since. Knows nothing of
what the nodes mean.

As strict as the real ones: a wait for a change outlives its connection, and asks the next one for
the versions that were seen; a coordinator that was rebuilt knows no session, and may refuse each
process that has seen later transactions, as ZooKeeper does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from waltz.cluster.tree import Tree
from waltz.errors import CoordinatorLostError, WaltzError
from waltz.host import ANY_VERSION, Node
from waltz.limits import (
    COORDINATOR_CALL_SECONDS_MAX,
    COORDINATOR_RETRY_SECONDS_MAX,
    COORDINATOR_RETRY_SECONDS_MIN,
    COORDINATOR_SESSION_SECONDS,
)
from waltz.sim.loop import WORLD, Process

T = TypeVar("T")

DELAY_SECONDS_MAX: Final = 0.005
"""Seconds one way, to the coordinator or back."""


class SimulatedCoordinatorService:
    """The tree of a run, and which process can reach it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.tree = Tree()
        self.transactions = 0
        """Changes of the tree so far, as ZooKeeper numbers them; fewer after a rebuild."""
        self._doors: dict[Process, SimulatedCoordinator] = {}
        self._waiting: dict[_Waiter, None] = {}
        self._sessions_count = 0
        self._outages_count = 0
        self.effects: Counter[str] = Counter()
        """Effects of faults on calls, by kind."""
        self.traffic = CoordinatorTraffic(random, self.effects)

    def door(self, process: Process) -> SimulatedCoordinator:
        """The coordinator as `process`, one incarnation, sees it."""
        return self._doors.setdefault(process, SimulatedCoordinator(self, process))

    # Faults of one process

    def lose(self, process: Process) -> None:
        """Cut the process off, because it died or for a while. Its session ends in time."""
        if process in self._doors:
            self._doors[process].session.isolate()

    def heal(self, process: Process) -> None:
        """Let the process reach the coordinator again."""
        if process in self._doors:
            self._doors[process].session.heal()

    def freeze(self, process: Process) -> None:
        """Hear nothing more from the process, which stands still; its session ends in time."""
        if process in self._doors:
            self._doors[process].session.fall_silent()

    def thaw(self, process: Process) -> None:
        if process in self._doors:
            self._doors[process].session.speak_again()

    def expire(self, process: Process) -> None:
        """End the session of a process now; its next call begins another one."""
        if process in self._doors:
            self._doors[process].session.end()

    # Faults of all

    @property
    def is_down(self) -> bool:
        return self._outages_count > 0

    def begin_outage(self) -> None:
        """Answer no process until `end_outage` was called as often; sessions outlast it."""
        self._outages_count += 1
        for door in self._doors.values():
            self.cut_off(door)

    def end_outage(self) -> None:
        self._outages_count -= 1

    def rebuild(self, tree: Tree, *, transactions: int) -> None:
        """Serve `tree` from now on, without any session of before. Processes that have seen more
        than `transactions` are refused until they begin anew."""
        self.tree, self.transactions = tree, transactions
        for door in self._doors.values():
            door.session.forget()

    # For the doors

    def next_session(self, name: str) -> str:
        self._sessions_count += 1
        return f"{name}#{self._sessions_count}"

    def later(self, seconds: float, function: Callable[..., None], *arguments: object) -> None:
        """Call the function in the name of the world: the dead do not run timers."""
        self.loop.call_later(seconds, function, *arguments, context=WORLD)

    def apply(self, call: Callable[[Tree], T]) -> T:
        """Make a call on the tree that may change it, and wake the waiters of that change."""
        self.transactions += 1
        try:
            return call(self.tree)
        finally:
            for waiter in [w for w in self._waiting if self.tree.differs(w.path, w.seen)]:
                self._waiting.pop(waiter)
                waiter.wake()

    async def wait(self, waiter: _Waiter) -> None:
        """Return once `waiter` is woken."""
        self._waiting[waiter] = None
        try:
            await waiter.woken()
        finally:
            self._waiting.pop(waiter, None)

    def cut_off(self, coordinator: SimulatedCoordinator) -> None:
        """Let all waits of one door look again: its connection, or its session, is over."""
        for waiter in [w for w in self._waiting if w.coordinator is coordinator]:
            self._waiting.pop(waiter)
            waiter.wake()


class CoordinatorTraffic:
    """Messages between all processes and the coordinator: how long each is under way, and which
    calls get lost."""

    def __init__(self, random: Random, effects: Counter[str]) -> None:
        self._random = random
        self._effects = effects
        self._delays_seconds_max = [DELAY_SECONDS_MAX]
        self._losses: list[float] = []

    def slow_down(self, seconds_max: float) -> None:
        """Let every way take up to `seconds_max`, until `speed_up`."""
        self._delays_seconds_max.append(seconds_max)

    def speed_up(self, seconds_max: float) -> None:
        """Take back one `slow_down`."""
        self._delays_seconds_max.remove(seconds_max)

    def lose_answers(self, share: float) -> None:
        """Let this share of calls fail, half of them after they took effect, until
        `keep_answers`."""
        self._losses.append(share)

    def keep_answers(self, share: float) -> None:
        """Take back one `lose_answers`."""
        self._losses.remove(share)

    def delay_seconds(self) -> float:
        if len(self._delays_seconds_max) > 1:
            self._effects["calls of the coordinator slowed down"] += 1
        return self._random.random() * max(self._delays_seconds_max)

    def loses_call(self) -> bool:
        return bool(self._losses) and self._random.random() < max(self._losses)


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


class _Request:
    """A call on its way. The answer is its result, or the error to raise."""

    __slots__ = ("_answer", "call", "changes", "session", "was_sent")

    def __init__(
        self,
        call: Callable[[Tree, str], Any],
        session: str | None,
        *,
        changes: bool,
        was_sent: bool,
    ) -> None:
        self.call = call
        self.session = session
        self.changes = changes
        """Whether the call changes the tree."""
        self.was_sent = was_sent
        """Whether the call left its sender; otherwise it waits there for the way to be free."""
        self._answer: asyncio.Future[tuple[Exception | None, Any]] = (
            asyncio.get_running_loop().create_future()
        )

    def settle(self, error: Exception | None, result: object) -> None:
        if not self._answer.done():
            self._answer.set_result((error, result))

    async def answered(self) -> Any:
        error, result = await self._answer
        if error is not None:
            raise error
        return result


class CoordinatorSession:
    """The session of one process, and whether the process can reach the coordinator now.

    A session begins with the first call after the last one ended. It ends once nothing was heard
    from the process for a while. A coordinator that was rebuilt knows no session, and refuses a
    process that has seen later transactions, until the process begins anew.
    """

    def __init__(
        self, service: SimulatedCoordinatorService, name: str, on_cut: Callable[[], None]
    ) -> None:
        """`on_cut` is called when the connection of the process, or its session, is over."""
        self.id: str | None = None
        """None: the next call begins a session."""
        self._service = service
        self._name = name
        self._on_cut = on_cut
        self._silent: set[str] = set()
        """Why nothing is heard from the process."""
        self._silences_count = 0
        """The number of silences so far, to tell one silence from the next."""
        self._transactions_seen = 0

    @property
    def is_unreachable(self) -> bool:
        return self._is_isolated or self._service.is_down or self._is_refused

    def hear(self) -> str:
        """Note that the process hears from the coordinator now; return its session."""
        if self.id is None:
            self.id = self._service.next_session(self._name)
        self._transactions_seen = max(self._transactions_seen, self._service.transactions)
        return self.id

    def end(self) -> None:
        session, self.id = self.id, None
        if session is not None:
            self._service.apply(lambda tree: tree.end_session(session))
            self._on_cut()

    # Silence

    def isolate(self) -> None:
        """Cut the process off; waits end, and the session too unless it is healed in time."""
        if not self._is_isolated:
            self.fall_silent("isolated")
            self._on_cut()

    def heal(self) -> None:
        self.speak_again("isolated")

    @property
    def _is_isolated(self) -> bool:
        return "isolated" in self._silent

    def fall_silent(self, reason: str = "frozen") -> None:
        """Let the session end, unless it speaks again in time."""
        if not self._silent:
            self._silences_count += 1
            self._expire_later(self._silences_count)
        self._silent.add(reason)

    def speak_again(self, reason: str = "frozen") -> None:
        self._silent.discard(reason)

    def _expire_later(self, silence: int) -> None:
        def expire() -> None:
            if not self._silent or self._silences_count != silence:
                return
            if self._service.is_down:  # during an outage no silence is noticed
                self._expire_later(silence)
            else:
                self.end()

        self._service.later(COORDINATOR_SESSION_SECONDS, expire)

    # Refusal

    def forget(self) -> None:
        """Lose the session, of which a coordinator that was rebuilt knows nothing."""
        self.id = None
        self._on_cut()
        if self._is_refused:
            self._service.effects["sessions of the coordinator refused"] += 1
            self._service.later(COORDINATOR_SESSION_SECONDS, self._find_refusal)

    def _find_refusal(self) -> None:
        """Begin anew, as the shell for ZooKeeper does: the coordinator takes new sessions, and not
        this one."""
        if not self._is_refused:
            return
        if self._service.is_down or self._is_isolated:
            self._service.later(COORDINATOR_RETRY_SECONDS_MAX, self._find_refusal)
        else:
            self._service.later(2 * COORDINATOR_RETRY_SECONDS_MAX, self._begin_anew)

    def _begin_anew(self) -> None:
        self._transactions_seen = 0

    @property
    def _is_refused(self) -> bool:
        """Whether the process has seen later transactions than the coordinator has."""
        return self._transactions_seen > self._service.transactions


class SimulatedCoordinator:
    """Implements `host.Coordinator` for one process."""

    def __init__(self, service: SimulatedCoordinatorService, process: Process) -> None:
        self._service = service
        self._name = process.name
        self.session = CoordinatorSession(service, process.name, lambda: service.cut_off(self))
        self._closed = False

    # The promises of `host.Coordinator`

    async def read(self, path: str) -> Node:
        return await self._call(
            lambda tree, session: replace(tree.read(path, session), session=session), changes=False
        )

    async def children(self, path: str) -> Sequence[str]:
        return await self._call(lambda tree, _: tree.children(path), changes=False)

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
        while True:
            await self._connected()
            await asyncio.sleep(self._service.traffic.delay_seconds())
            while not self.session.is_unreachable and not self._differs(path, seen):
                await self._service.wait(_Waiter(self, path, seen))
            if self.session.is_unreachable:
                continue
            await asyncio.sleep(self._service.traffic.delay_seconds())
            if not self.session.is_unreachable:
                return

    def _differs(self, path: str, seen: Node | None) -> bool:
        """Return whether the node differs from `seen`, or was seen in a session that is over."""
        self.session.hear()
        if seen is not None and seen.session not in (None, self.session.id):
            return True
        return self._service.tree.differs(path, seen)

    async def _connected(self) -> None:
        """Wait until the coordinator can be reached. Raises CoordinatorLostError: it takes too
        long, or this side has closed it."""
        left = COORDINATOR_CALL_SECONDS_MAX
        pause = COORDINATOR_RETRY_SECONDS_MIN
        while self.session.is_unreachable and not self._closed and left > 0.0:
            seconds = min(left, pause * self._service.random.uniform(0.5, 1.0))
            await asyncio.sleep(seconds)
            left -= seconds
            pause = min(2 * pause, COORDINATOR_RETRY_SECONDS_MAX)
        if self.session.is_unreachable or self._closed:
            raise self._lost()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.session.is_unreachable:
            self.session.fall_silent("closed")
        else:
            await asyncio.sleep(self._service.traffic.delay_seconds())
            self.session.end()

    # Calls

    async def _call(self, call: Callable[[Tree, str], T], *, changes: bool = True) -> T:
        if self._closed:
            raise CoordinatorLostError(f"{self._name} has closed the coordinator")
        is_reachable = not self.session.is_unreachable
        request = _Request(call, self.session.id, changes=changes, was_sent=is_reachable)
        self._service.later(self._service.traffic.delay_seconds(), self._arrive, request, True)
        outcome: T = await request.answered()
        return outcome

    def _arrive(self, request: _Request, is_patient: bool) -> None:
        """Carry out a call that has reached the coordinator, or would have."""
        service = self._service
        is_cut_off = self.session.is_unreachable
        if is_cut_off and is_patient and not (request.was_sent and service.random.random() < 0.5):
            request.was_sent = False
            service.later(COORDINATOR_CALL_SECONDS_MAX, self._arrive, request, False)
            return
        loss = service.traffic.loses_call()
        if (
            service.is_down
            or (is_cut_off and (self.session.id is None or not request.was_sent))
            or (request.session is not None and request.session != self.session.id)
            or (loss and service.random.random() < 0.5)
        ):
            self._lose(request)
            return
        session = self.session.hear()
        error: Exception | None = None
        result: object = None
        try:
            if request.changes:
                result = service.apply(lambda tree: request.call(tree, session))
            else:
                result = request.call(service.tree, session)
        except WaltzError as refusal:
            error = refusal
        if loss:
            self._lose(request)
        else:
            service.later(service.traffic.delay_seconds(), self._return, request, error, result)

    def _return(self, request: _Request, error: Exception | None, result: object) -> None:
        if self.session.is_unreachable:
            self._lose(request)
        else:
            request.settle(error, result)

    def _lose(self, request: _Request) -> None:
        self._service.effects["calls of the coordinator lost"] += 1
        request.settle(self._lost(), None)

    def _lost(self) -> CoordinatorLostError:
        return CoordinatorLostError(f"{self._name} cannot reach the coordinator")
