"""Takes a cut: a high-water mark of every partition, such that nothing within lacks its cause.

Asks all servers at once to hold back further commits, reads the newest assignment while all hold,
and has them say at the release whether a hold was broken. `cut_attempt.py` decides what is a cut;
the proof is in docs/decisions/0043-cuts.md, and rests on the order of the questions here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from waltz.cluster.cluster_shell import read_membership
from waltz.cluster.newest_assignment_shell import read_newest_assignment
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.connections.connection_shell import ServerConnection
from waltz.connections.denial_errors import denial_error
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.errors import (
    ConnectionLostError,
    CoordinatorLostError,
    CutNotMadeError,
    HandshakeRefusedError,
    ProtocolError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX, HOLD_PAUSE_SECONDS, HOLD_SECONDS_MAX
from waltz.operators.cut_attempt import CutAttempt
from waltz.types import Address, PartitionId, TransactionId
from waltz.wire.cut_protocol import (
    HoldAnswer,
    HoldReleaseAnswer,
    HoldReleaseRequest,
    HoldRequest,
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.lifecycle_protocol import Feature
from waltz.wire.message import Message

CUT_ATTEMPTS_MAX: Final = 5
"""Attempts at a cut, then it is reported as not made."""

HOLD_ANSWER_SECONDS_MAX: Final = 1.0
"""A server that has not answered a question about a hold by then has broken it long ago."""

CANNOT_HOLD: Final = (
    "is the Java original's or of an earlier release, and cannot hold back what it announces."
    " Replace it by one of this release"
)

HOLDING: Final = ConnectionSettings(features=(Feature.CUTS, Feature.DENIALS))

Answer = TypeVar("Answer", HoldAnswer, HoldReleaseAnswer)


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut through all partitions: `marks` has the last transaction of each partition within it,
    -1 for none.

    If a transaction is within, so is every transaction that any server had announced before it was
    sent. `made_at` is in milliseconds since 1970, by the clock of the asking machine, a moment at
    which all marks held. `hold_seconds` is the time for which each attempt had servers hold back
    commits.
    """

    marks: Mapping[PartitionId, TransactionId]
    made_at: int
    hold_seconds: tuple[float, ...]

    @property
    def attempts(self) -> int:
        """Return the number of attempts that it took."""
        return len(self.hold_seconds)


async def take_cut(
    host: Host,
    root: str = DEFAULT_ROOT,
    *,
    attempts_max: int = CUT_ATTEMPTS_MAX,
    on_obstacle: Callable[[int, Sequence[str]], None] | None = None,
) -> Cut:
    """Return a cut through all partitions of the cluster.

    Each attempt delays appends and feeds by at most HOLD_SECONDS_MAX; attempts are more than
    HOLD_PAUSE_SECONDS apart. `on_obstacle` is called with the number of an attempt that was void,
    and why. When this is cancelled, no hold outlasts its time.

    Raises CutNotMadeError: no attempt has made one; its text says what stood in the way.
    NoNodeError: there is no cluster. CoordinatorLostError: the coordinator does not answer.
    """
    hold_seconds: list[float] = []
    obstacles: list[str] = []
    while len(hold_seconds) < attempts_max:
        if hold_seconds:
            await asyncio.sleep(host.random.uniform(1.05, 1.25) * HOLD_PAUSE_SECONDS)
        attempt = _Attempt(host, root)
        await attempt.make()
        hold_seconds.append(attempt.hold_seconds)
        marks = attempt.answers.marks()
        if marks is not None:
            return Cut(marks, attempt.made_at, tuple(hold_seconds))
        obstacles = attempt.answers.obstacles
        if on_obstacle is not None:
            on_obstacle(len(hold_seconds), obstacles)
    raise CutNotMadeError(
        f"no cut was made in {attempts_max} attempts; in the last one: {'; '.join(obstacles)}"
    )


class _Attempt:
    """One attempt; connections of its own, so that the end of the attempt is that of its holds."""

    def __init__(self, host: Host, root: str) -> None:
        self.answers = CutAttempt()
        self.hold_seconds = 0.0
        self.made_at = 0
        self._host = host
        self._root = root
        self._connections: dict[Address, ServerConnection] = {}

    async def make(self) -> None:
        """Raises NoNodeError: there is no cluster; CoordinatorLostError: it was not asked for a
        cut."""
        paths = ClusterPaths(self._root)
        _, membership = await read_membership(self._host.coordinator, paths.server_descriptors)
        # A server that gets its first partition from here on is found out by the generations.
        servers = sorted(
            {
                membership.descriptors[server_id].address
                for server_id, partitions in membership.assignment.servers.items()
                if partitions and server_id in membership.descriptors
            }
        )
        async with AsyncExitStack() as stack:
            await asyncio.gather(*(self._connect(each, stack) for each in servers))
            if self.answers.obstacles:
                return
            began = self._host.clock.now()
            await asyncio.gather(*map(self._hold, servers))
            if not self.answers.obstacles:
                await self._read_assignment()
            await asyncio.gather(*map(self._release, servers))
            self.hold_seconds = self._host.clock.now() - began

    async def _connect(self, server: Address, stack: AsyncExitStack) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                connection = await ServerConnection.open(self._host, server, HOLDING)
        except TimeoutError:
            self.answers.note_failure(server, f"no answer in {HANDSHAKE_SECONDS_MAX:g} s")
            return
        except (UnavailableError, ProtocolError) as error:
            self.answers.note_failure(server, str(error))
            return
        stack.callback(connection.close, "the cut is taken, or void")
        agreement = connection.agreement
        if agreement is None or Feature.CUTS not in agreement.features:
            self.answers.note_failure(server, CANNOT_HOLD)
        self._connections[server] = connection

    async def _hold(self, server: Address) -> None:
        request = HoldRequest(0, round(HOLD_SECONDS_MAX * 1000))
        answer = await self._ask(server, request, HoldAnswer)
        if answer is not None:
            self.answers.note_held(server, answer)

    async def _read_assignment(self) -> None:
        """Read it while all hold: no later assignment was there when the last hold was answered."""
        now = self._host.clock.wall_milliseconds()
        try:
            async with asyncio.timeout(HOLD_ANSWER_SECONDS_MAX):
                assignment = await read_newest_assignment(
                    self._host.coordinator, self._root, written=b"%d" % now
                )
        except (CoordinatorLostError, ProtocolError, TimeoutError) as error:
            reason = str(error) or f"no answer in {HOLD_ANSWER_SECONDS_MAX:g} s"
            self.answers.obstacles.append(f"the coordinator was not asked for the owners: {reason}")
            return
        self.made_at = now
        self.answers.note_assignment(assignment)

    async def _release(self, server: Address) -> None:
        names = self.answers.holds_of(server)
        answer = await self._ask(server, HoldReleaseRequest(0, names), HoldReleaseAnswer)
        if answer is not None:
            self.answers.note_released(server, answer)

    async def _ask(self, server: Address, request: Message, kind: type[Answer]) -> Answer | None:
        """Return the answer; None if there is none, and that is noted."""
        connection = self._connections[server]
        try:
            async with asyncio.timeout(HOLD_ANSWER_SECONDS_MAX):
                connection.send([request])
                while (messages := await connection.receive()) is not None:
                    for message in messages:
                        if isinstance(message, kind):
                            return message
                        if isinstance(message, Denied):
                            self.answers.note_failure(server, str(denial_error(message)))
                            return None
        except TimeoutError:
            self.answers.note_failure(server, f"no answer in {HOLD_ANSWER_SECONDS_MAX:g} s")
            return None
        except (ConnectionLostError, ProtocolError, HandshakeRefusedError) as error:
            self.answers.note_failure(server, str(error))
            return None
        self.answers.note_failure(server, "it has ended the connection")
        return None
