"""Checks that a session new to this node was really given to a server.

Owns the question to the coordinator. Once a session number is promised, all lower ones are refused
for good: one forged request with the highest number would close a partition, and one with any
number above the session's would keep this replica out of the session until numbers get that far.
So nothing is promised to a number that the coordinator has not given. Only while the coordinator
cannot be asked, a number within reach of the last one is believed: servers may still reach the
coordinator. Decides nothing else about sessions: that is `partition_replica.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from waltz.errors import StorageError, UnavailableError, WaltzError
from waltz.host import Clock
from waltz.types import NO_SESSION, PartitionId, SessionId

SESSION_STEP_MAX: Final = 2**20
"""While a storage node cannot ask the coordinator, it accepts a session that is at most this much
above the highest that it has seen. This is more than the numbers that a server passes over
(SESSION_CLIMB)."""


LatestSession = Callable[[PartitionId], Awaitable[SessionId]]
"""Returns the highest session number that the coordinator has given for a partition. Raises
WaltzError."""

ASK_SECONDS: Final = 0.25
"""The least time between two questions about one partition, however many servers come."""

ANSWER_SECONDS_MAX: Final = 2.0
"""Time limit for an answer: a server's other requests to this node wait meanwhile."""

REST_SECONDS: Final = 5.0
"""The pause after an unanswered question before the coordinator is asked again."""

ASKED_TIMES: Final = 2
"""A number is refused once the coordinator has not known it this many times: the first question may
reach a coordinator server that is a moment behind."""


class FarSessions:
    """Asks the coordinator through `latest`; None: there is none to ask; every session is
    believed."""

    def __init__(self, clock: Clock, latest: LatestSession | None) -> None:
        self._clock = clock
        self._latest = latest
        self._asked_at: dict[PartitionId, float] = {}
        self._waiting: dict[PartitionId, asyncio.Task[SessionId]] = {}
        """Per partition the next question, until it is sent."""
        self._unanswered: tuple[float, str] | None = None
        """The time at which the last question got no answer, and the reason; None: it got one."""

    async def check(
        self, partition_id: PartitionId, session_id: SessionId, known: SessionId
    ) -> None:
        """Return if `session_id` may be promised; `known` is the highest session heard of.

        Raises StorageError: the coordinator has not given this session, or cannot be asked and the
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
                    f"session {session_id} of partition {partition_id} is far above all sessions"
                    " that this node knows, and the coordinator does not say whether that"
                    f" session was given to a server: {error}"
                ) from error
            if session_id <= latest:
                return
        raise StorageError(
            f"session {session_id} of partition {partition_id} was given to no server: the"
            f" coordinator has given sessions up to {latest}"
        )

    async def _ask(self, partition_id: PartitionId, latest: LatestSession) -> SessionId:
        """Return the answer to a question that is sent after this call. Raises UnavailableError:
        there is no answer, or there was none a moment ago."""
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
