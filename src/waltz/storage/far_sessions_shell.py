"""Whether a session that a node has not heard of was ever given to a server.

Owns the question to the coordinator. A session number that is promised refuses all lower ones for
good: a single forged question with the highest number would close a partition, and one with any
number above the session's would keep this replica out of it until sessions come as far. So nothing
is promised to a number that the coordinator has not given. Only while the coordinator cannot be
asked, a number in reach of the last one is believed: servers may still reach it. Decides nothing
else about sessions: that is `partition.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from waltz.errors import StorageError, UnavailableError, WaltzError
from waltz.host import Clock
from waltz.types import NO_SESSION, PartitionId, SessionId

SESSION_STEP_MAX: Final = 2**20
"""While a storage node cannot ask the coordinator whether a session was given to a server, it takes
one at most this much above the highest that it has seen. More than a climb."""


LatestSession = Callable[[PartitionId], Awaitable[SessionId]]
"""Returns the highest session number that the coordinator has given for a partition. Raises
WaltzError."""

ASK_SECONDS: Final = 0.25
"""Between two questions about one partition, however many servers come."""

ANSWER_SECONDS_MAX: Final = 2.0
"""For an answer: a server's other requests to this node wait meanwhile."""

REST_SECONDS: Final = 5.0
"""After a question that was not answered, until the coordinator is asked again."""

ASKED_TIMES: Final = 2
"""A number is refused once the coordinator has not known it this many times: what it is asked may
reach a part of it that is a moment behind."""


class FarSessions:
    """Asks the coordinator by `latest`; None: it cannot be asked, and every session is believed."""

    def __init__(self, clock: Clock, latest: LatestSession | None) -> None:
        self._clock = clock
        self._latest = latest
        self._asked_at: dict[PartitionId, float] = {}
        self._waiting: dict[PartitionId, asyncio.Task[SessionId]] = {}
        """The next question about a partition, until it is sent."""
        self._unanswered: tuple[float, str] | None = None
        """When the last question was not answered, and why."""

    async def check(
        self, partition_id: PartitionId, session_id: SessionId, known: SessionId
    ) -> None:
        """Return if `session_id` may be promised; `known` is the highest that was heard of.

        Raises StorageError: the coordinator has given no such session, or cannot be asked, and the
        session is out of reach.
        """
        if session_id <= known or self._latest is None:
            return
        latest = NO_SESSION
        for _ in range(ASKED_TIMES):
            try:
                latest = await self._ask(partition_id, self._latest)
            except UnavailableError as error:
                if session_id - max(known, NO_SESSION) <= SESSION_STEP_MAX:
                    return
                raise StorageError(
                    f"session {session_id} of partition {partition_id} is far above all that this"
                    f" node knows, and the coordinator does not say whether it was given: {error}"
                ) from error
            if session_id <= latest:
                return
        raise StorageError(
            f"session {session_id} of partition {partition_id} was given to no server: the"
            f" coordinator knows those up to {latest}"
        )

    async def _ask(self, partition_id: PartitionId, latest: LatestSession) -> SessionId:
        """Return the answer to a question that was sent after this was called. Raises
        UnavailableError: there is none, or there was none a moment ago."""
        if self._unanswered is not None:
            asked_at, reason = self._unanswered
            if self._clock.now() - asked_at < REST_SECONDS:
                raise UnavailableError(reason)
        if (waiting := self._waiting.get(partition_id)) is None:
            waiting = asyncio.create_task(self._question(partition_id, latest))
            self._waiting[partition_id] = waiting
        return await asyncio.shield(waiting)

    async def _question(self, partition_id: PartitionId, latest: LatestSession) -> SessionId:
        now = self._clock.now()
        await asyncio.sleep(self._asked_at.get(partition_id, now - ASK_SECONDS) + ASK_SECONDS - now)
        self._asked_at[partition_id] = self._clock.now()
        del self._waiting[partition_id]
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = await latest(partition_id)
        except (WaltzError, TimeoutError) as error:
            reason = str(error) or f"no answer in {ANSWER_SECONDS_MAX:g} s"
            self._unanswered = self._clock.now(), reason
            raise UnavailableError(reason) from error
        self._unanswered = None
        return answer
