"""Whether a session that is far above all that a node knows was ever given to a server.

Owns the question to the coordinator, at most one a second per partition. A session number that is
promised refuses all lower ones for good, so that a single forged question with the highest number
would close a partition: of a number in reach of the last one nobody is asked, of any other the
coordinator must know. Decides nothing else about sessions: that is `partition.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from waltz.errors import StorageError, WaltzError
from waltz.host import Clock
from waltz.limits import HANDSHAKE_SECONDS_MAX, SESSION_STEP_MAX
from waltz.types import NO_SESSION, PartitionId, SessionId

LatestSession = Callable[[PartitionId], Awaitable[SessionId]]
"""Returns the highest session number that the coordinator has given for a partition. Raises
WaltzError."""

ASK_SECONDS: Final = 1.0
"""Between two questions about one partition."""


class FarSessions:
    """Asks the coordinator by `latest`; None: it cannot be asked, and no session is far away."""

    def __init__(self, clock: Clock, latest: LatestSession | None) -> None:
        self._clock = clock
        self._latest = latest
        self._answers: dict[PartitionId, tuple[float, SessionId]] = {}
        self._asking: dict[PartitionId, asyncio.Lock] = {}

    async def check(
        self, partition_id: PartitionId, session_id: SessionId, known: SessionId
    ) -> None:
        """Return if `session_id` may be promised; `known` is the highest that was heard of.

        Raises StorageError: the coordinator has given no such session, or cannot be asked.
        """
        if session_id - max(known, NO_SESSION) <= SESSION_STEP_MAX or self._latest is None:
            return
        async with self._asking.setdefault(partition_id, asyncio.Lock()):
            latest = await self._ask(partition_id, session_id, self._latest)
        if session_id > latest:
            raise StorageError(
                f"session {session_id} of partition {partition_id} was given to no server: the"
                f" coordinator knows those up to {latest}"
            )

    async def _ask(
        self, partition_id: PartitionId, session_id: SessionId, latest: LatestSession
    ) -> SessionId:
        asked_at, answer = self._answers.get(partition_id, (-ASK_SECONDS, NO_SESSION))
        if session_id <= answer or self._clock.now() - asked_at < ASK_SECONDS:
            return answer
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                answer = await latest(partition_id)
        except (WaltzError, TimeoutError) as error:
            raise StorageError(
                f"session {session_id} of partition {partition_id} is far above all that this node"
                f" knows, and the coordinator does not say whether it was given: {error}"
            ) from error
        self._answers[partition_id] = self._clock.now(), answer
        return answer
