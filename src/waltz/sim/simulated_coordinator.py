"""The coordinator of a simulated cluster: one tree, a session per process, and ways to lose it.

Owns sessions, delays and unreachability; the tree's rules are those of the embedded coordinator.
How long a call takes, and whether one that is cut off still takes effect, is drawn from the given
random source. A message arrives even if its sender has died or been paused since. Knows nothing of
what the nodes mean.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeVar

from waltz.cluster.partition_metadata import PartitionMetadata, last_session
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.tree import ROOT, Tree
from waltz.errors import CoordinatorLostError, WaltzError
from waltz.host import ANY_VERSION, Node
from waltz.limits import COORDINATOR_CALL_SECONDS_MAX, COORDINATOR_SESSION_SECONDS
from waltz.sim.loop import WORLD, Process
from waltz.types import PartitionId, SessionId

T = TypeVar("T")

DELAY_SECONDS_MAX: Final = 0.005
"""Seconds one way, to the coordinator or back."""


class SimulatedCoordinatorService:
    """The tree of a run, and which process can reach it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.tree = Tree()
        self._doors: dict[Process, SimulatedCoordinator] = {}
        self._waiting: dict[_Waiter, None] = {}
        self._sessions_count = 0
        self._outages_count = 0
        self._delays_seconds_max = [DELAY_SECONDS_MAX]
        self._losses: list[float] = []
        self.effects: Counter[str] = Counter()
        """Effects of faults on calls, by kind."""

    def door(self, process: Process) -> SimulatedCoordinator:
        """The coordinator as `process`, one incarnation, sees it."""
        return self._doors.setdefault(process, SimulatedCoordinator(self, process))

    # Faults of one process

    def lose(self, process: Process) -> None:
        """Cut the process off, because it died or for a while. Its session ends in time."""
        if process in self._doors:
            self._doors[process].isolate()

    def heal(self, process: Process) -> None:
        """Let the process reach the coordinator again."""
        if process in self._doors:
            self._doors[process].heal()

    def freeze(self, process: Process) -> None:
        """Hear nothing more from the process, which stands still; its session ends in time."""
        if process in self._doors:
            self._doors[process].fall_silent()

    def thaw(self, process: Process) -> None:
        if process in self._doors:
            self._doors[process].speak_again()

    def expire(self, process: Process) -> None:
        """End the session of a process now; its next call begins another one."""
        if process in self._doors:
            self._doors[process].end_session()

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

    def rewrite(self, choice: float) -> str | None:
        """Rewrite a node's data, as a foreign process might, and return its path.

        `choice`, 0 to 1, picks one of the nodes that have data.
        """
        paths = [path for path in self._paths(ROOT) if self.tree.read(path).data is not None]
        if not paths:
            return None
        path = paths[min(int(choice * len(paths)), len(paths) - 1)]
        self.apply(lambda tree: tree.write(path, tree.read(path).data or b"", version=ANY_VERSION))
        return path

    def partition_entries(self) -> dict[str, bytes]:
        """Return the data of all partitions' nodes, as a backup has them.

        Without those of partitions that had no session yet: a node that has records refuses a
        server to which the partition is new, and waits for an operator.
        """
        partitions = ClusterPaths().partitions
        found = {path: self.tree.read(path).data for path in self._paths(ROOT)}
        return {
            path: data
            for path, data in found.items()
            if data is not None and path.startswith(f"{partitions}/") and _has_states(path, data)
        }

    def set_back(self, entries: Mapping[str, bytes]) -> list[str]:
        """Restore `entries`, and return those that differed from the present ones.

        An entry from before the opening of the session that it names is left out, if that session
        has opened since: decision 0030 says why such an entry cannot be recognised.
        """
        changed = [path for path, data in entries.items() if self._may_be_put_back(path, data)]
        for path in changed:
            self._put_back(path, entries[path])
        return changed

    def _may_be_put_back(self, path: str, data: bytes) -> bool:
        number, present = (
            PartitionId(int(path.rpartition("/")[2])),
            self.tree.read(path).data or b"",
        )
        opened = last_session(PartitionMetadata.decode(present, number).replica_states)
        then = PartitionMetadata.decode(data, number)
        return data != present and not names_unopened(then, opened)

    def _put_back(self, path: str, data: bytes) -> None:
        self.apply(lambda tree: tree.write(path, data, version=ANY_VERSION))

    def _paths(self, path: str) -> Iterator[str]:
        yield path
        for name in self.tree.children(path):
            yield from self._paths(f"{path.rstrip('/')}/{name}")

    # For the doors

    def next_session(self, name: str) -> str:
        self._sessions_count += 1
        return f"{name}#{self._sessions_count}"

    def delay_seconds(self) -> float:
        if len(self._delays_seconds_max) > 1:
            self.effects["calls of the coordinator slowed down"] += 1
        return self.random.uniform(0.0, max(self._delays_seconds_max))

    def loses_call(self) -> bool:
        return bool(self._losses) and self.random.random() < max(self._losses)

    def apply(self, call: Callable[[Tree], T]) -> T:
        """Make a call on the tree that may change it, and wake the waiters of that change."""
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
        """Let all waits of one door end with CoordinatorLostError, if it is unreachable."""
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


class SimulatedCoordinator:
    """Implements `host.Coordinator` for one process.

    A session begins with the first call after the last one ended.
    """

    def __init__(self, service: SimulatedCoordinatorService, process: Process) -> None:
        self._service = service
        self._name = process.name
        self._session: str | None = None
        self._closed = False
        self._silences_count = 0
        """The number of silences so far, to tell one silence from the next."""
        self._silent: set[str] = set()
        """Why nothing is heard from it."""

    @property
    def is_isolated(self) -> bool:
        return "isolated" in self._silent

    # The promises of `host.Coordinator`

    async def read(self, path: str) -> Node:
        return await self._call(lambda tree, session: tree.read(path, session), changes=False)

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
        await asyncio.sleep(self._service.delay_seconds())
        self._check_reachable()
        while not self._service.tree.differs(path, seen):
            waiter = _Waiter(self, path, seen)
            self._service.wait(waiter)
            try:
                await waiter.woken()
            finally:
                self._service.forget(waiter)
            self._check_reachable()
        await asyncio.sleep(self._service.delay_seconds())
        self._check_reachable()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._is_unreachable:
            self.fall_silent("closed")
        else:
            await asyncio.sleep(self._service.delay_seconds())
            self.end_session()

    # Faults

    def isolate(self) -> None:
        """Cut the process off; waits end, and the session too unless it is healed in time."""
        if not self.is_isolated:
            self.fall_silent("isolated")
            self._service.cut_off(self)

    def heal(self) -> None:
        self.speak_again("isolated")

    def fall_silent(self, reason: str = "frozen") -> None:
        """Let the session end, unless it speaks again in time."""
        if not self._silent:
            self._silences_count += 1
            self._expire_later(self._silences_count)
        self._silent.add(reason)

    def speak_again(self, reason: str = "frozen") -> None:
        self._silent.discard(reason)

    def end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            self._service.apply(lambda tree: tree.end_session(session))

    def _expire_later(self, silence: int) -> None:
        def expire() -> None:
            if not self._silent or self._silences_count != silence:
                return
            if self._service.is_down:  # during an outage no silence is noticed
                self._expire_later(silence)
            else:
                self.end_session()

        # In the name of the world: the dead do not run timers.
        self._service.loop.call_later(COORDINATOR_SESSION_SECONDS, expire, context=WORLD)

    # Calls

    async def _call(self, call: Callable[[Tree, str], T], *, changes: bool = True) -> T:
        if self._closed:
            raise CoordinatorLostError(f"{self._name} has closed the coordinator")
        is_reachable = not self._is_unreachable
        request = _Request(call, self._session, changes=changes, was_sent=is_reachable)
        self._later(self._service.delay_seconds(), self._arrive, request, True)
        outcome: T = await request.answered()
        return outcome

    def _arrive(self, request: _Request, is_patient: bool) -> None:
        """Carry out a call that has reached the coordinator, or would have."""
        service = self._service
        is_cut_off = self._is_unreachable
        if is_cut_off and is_patient and not (request.was_sent and service.random.random() < 0.5):
            request.was_sent = False
            self._later(COORDINATOR_CALL_SECONDS_MAX, self._arrive, request, False)
            return
        loss = service.loses_call()
        if (
            service.is_down
            or (is_cut_off and (self._session is None or not request.was_sent))
            or (request.session is not None and request.session != self._session)
            or (loss and service.random.random() < 0.5)
        ):
            self._lose(request)
            return
        if self._session is None:
            self._session = service.next_session(self._name)
        session = self._session
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
            self._later(service.delay_seconds(), self._return, request, error, result)

    def _return(self, request: _Request, error: Exception | None, result: object) -> None:
        if self._is_unreachable:
            self._lose(request)
        else:
            request.settle(error, result)

    def _lose(self, request: _Request) -> None:
        self._service.effects["calls of the coordinator lost"] += 1
        request.settle(self._lost(), None)

    def _later(self, seconds: float, function: Callable[..., None], *arguments: object) -> None:
        self._service.loop.call_later(seconds, function, *arguments, context=WORLD)

    @property
    def _is_unreachable(self) -> bool:
        return self.is_isolated or self._service.is_down

    def _check_reachable(self) -> None:
        if self._is_unreachable or self._closed:
            raise self._lost()

    def _lost(self) -> CoordinatorLostError:
        return CoordinatorLostError(f"{self._name} cannot reach the coordinator")


def _has_states(path: str, data: bytes) -> bool:
    number = PartitionId(int(path.rpartition("/")[2]))
    return bool(PartitionMetadata.decode(data, number).replica_states)


def names_unopened(metadata: PartitionMetadata, opened: SessionId) -> bool:
    """Return whether `metadata` is of the moment before the session that it names was open, and
    that session has opened since: `opened` was the last one.

    Restored, that is the one past state that cannot be told from a failed recovery.
    """
    return last_session(metadata.replica_states) < metadata.session_id <= opened
