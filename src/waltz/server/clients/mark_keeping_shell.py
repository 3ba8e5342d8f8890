"""Writes the marks of named consumers into the coordinator, apart from all else that a server does.

Decides nothing. The loss of these marks, or of the coordinator, holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from waltz.cluster.consumer_marks import KeptMark
from waltz.cluster.consumers_shell import keep_marks
from waltz.errors import CoordinationError, ProtocolError, UnavailableError
from waltz.host import Host
from waltz.limits import COORDINATOR_CALL_SECONDS_MAX, TIMER_SECONDS_MIN
from waltz.peer_log import PeerLog
from waltz.server.clients.mark_keeping import MarkKeeping, MarksToWrite
from waltz.types import PartitionId, TransactionId

WRITE_PAUSE_SECONDS: Final = 0.1
"""Between two writes of a server, whatever their names: clients that come and go under many names
cost the coordinator no more."""

LAST_SECONDS_MAX: Final = 2.0
"""A server that stops writes what waits for at most this long."""

logger = logging.getLogger(__name__)


class MarkKeeper:
    """See the module. Nothing runs before the first consumer has told a mark."""

    def __init__(self, host: Host, root: str) -> None:
        self._host = host
        self._root = root
        self._keeping = MarkKeeping()
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._peer_log = PeerLog(logger, asyncio.get_running_loop)
        self._is_stopped = False

    def note(
        self, connection_id: int, name: str, partition_id: PartitionId, mark: TransactionId
    ) -> None:
        """A consumer has told how far it has applied a partition that it has mounted."""
        clock = self._host.clock
        kept = KeptMark(mark, clock.wall_milliseconds())
        self._keeping.note(connection_id, name, partition_id, kept, clock.now())
        self._wake()

    def leave(self, connection_id: int) -> None:
        """A connection has ended."""
        clock = self._host.clock
        self._keeping.leave(connection_id, clock.wall_milliseconds(), clock.now())
        self._wake()

    async def stop(self) -> None:
        """Write what waits, for a short time, and nothing more. Idempotent."""
        self._is_stopped = True
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        try:
            async with asyncio.timeout(LAST_SECONDS_MAX):
                while (wanted := self._keeping.take_any(self._host.clock.now())) is not None:
                    await self._write(wanted)
        except TimeoutError:
            logger.warning("consumer_marks_left names=%d", len(self._keeping))

    def _wake(self) -> None:
        if self._task is None and len(self._keeping) and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            now, deadline = self._host.clock.now(), self._keeping.deadline
            if deadline is None or deadline > now:
                seconds = None if deadline is None else max(deadline - now, TIMER_SECONDS_MIN)
                try:
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            wanted = self._keeping.take(now)
            assert wanted is not None, "due"
            try:
                is_kept = await self._write(wanted)
            except asyncio.CancelledError:
                # It may have been cut short; `stop` writes it.
                self._keeping.put_back(*wanted, self._host.clock.now())
                raise
            if not is_kept:
                self._keeping.put_back(*wanted, self._host.clock.now())
            await asyncio.sleep(WRITE_PAUSE_SECONDS)

    async def _write(self, wanted: MarksToWrite) -> bool:
        """Return whether the coordinator has the marks now."""
        try:
            async with asyncio.timeout(COORDINATOR_CALL_SECONDS_MAX):
                await keep_marks(self._host.coordinator, wanted.name, wanted.marks, root=self._root)
        except (CoordinationError, ProtocolError, UnavailableError, TimeoutError) as error:
            self._peer_log.warning(
                "consumer_marks_not_kept name=%s error=%s", wanted.name, error or "no answer"
            )
            return False
        return True
