"""Writes the audit log of one process, off its loop, once per second.

Owns the task that writes. Decides nothing: `PendingEntries` says what is lost. A process without
`access.audit.file` has one that takes everything and keeps nothing.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from waltz.audit.audit_entry import AuditDecision, AuditEntry
from waltz.audit.audit_file import AuditFile, AuditSettings
from waltz.audit.audit_metrics import AuditStanding
from waltz.audit.pending_entries import PendingEntries, Summed
from waltz.host import Host
from waltz.peer_log import PeerLog

WRITE_SECONDS: Final = 1.0
"""Time between two writes, each of which ends with a sync."""

STOP_WRITES_MAX: Final = 20
"""Writes that a process that stops makes of what waits; the disk may be slow."""

logger = logging.getLogger(__name__)


class Audit:
    """See the module."""

    def __init__(self, host: Host, settings: AuditSettings | None, process: str) -> None:
        """`process` names this one in each line. `settings` None: nothing is written."""
        self.is_on = settings is not None
        self._host = host
        self._process = process
        self._is_strict = settings is not None and settings.is_strict
        self._settings = settings
        self._pending = PendingEntries()
        self._file: AuditFile | None = None
        self._task: asyncio.Task[None] | None = None
        self._peer_log = PeerLog(logger, asyncio.get_running_loop)

    async def start(self) -> None:
        """Raises ConfigurationError: the file cannot be written."""
        if self._settings is None:
            return
        clock = self._host.clock.wall_milliseconds
        file = AuditFile(self._host.disk, self._settings, self._process, clock)
        await self._host.workers.run_blocking(file.open)
        self._file = file
        logger.info("audit_started path=%s strict=%s", self._settings.path, self._is_strict)
        self._task = asyncio.get_running_loop().create_task(self._write_for_ever())

    async def stop(self) -> None:
        """Write what waits, if the disk takes it. Idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        file, self._file = self._file, None
        assert file is not None, "started"
        for _ in range(STOP_WRITES_MAX):
            if not await self._write(file, is_last=True):
                break
        await self._host.workers.run_blocking(file.close)

    def standing(self) -> AuditStanding | None:
        """Return how the log is at this moment; None: there is none."""
        pending = self._pending
        if not self.is_on:
            return None
        waiting = len(pending)
        return AuditStanding(pending.written_count, pending.lost, waiting, pending.is_failing)

    def refusal(self, *, is_data: bool) -> str | None:
        """Return why a request may not be served now; None: it may. `is_data`: the request appends
        or reads, which goes on without an audit log unless that is strict."""
        if not self.is_on or self._pending.has_room or (is_data and not self._is_strict):
            return None
        return "the audit log takes no entries: its disk is full, or does not keep up"

    def note(
        self,
        decision: AuditDecision,
        verb: str,
        principal: str | None = None,
        peer: str | None = None,
        *,
        partition: int | None = None,
        reason: str = "",
        connection: int | None = None,
        request: str | None = None,
        policy: int | None = None,
        count: int = 1,
    ) -> None:
        """Have a line written, within a second if the disk keeps up."""
        if not self.is_on:
            return
        at = self._host.clock.wall_milliseconds()
        entry = AuditEntry(
            at, decision, verb, principal, peer, partition, reason, connection, request, policy,
            count,
        )  # fmt: skip
        if not self._pending.put(entry):
            self._peer_log.warning(
                "audit_lost decision=%s verb=%s principal=%s peer=%s partition=%s reason=%s",
                decision.value,
                verb,
                principal,
                peer,
                partition,
                reason,
            )

    def add(self, what: Summed, count: int) -> None:
        """Count requests in a line per minute."""
        if self.is_on:
            self._pending.add(what, count, self._host.clock.now())

    async def _write_for_ever(self) -> None:
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            if self._file is not None:
                await self._write(self._file)

    async def _write(self, file: AuditFile, *, is_last: bool = False) -> bool:
        """Write what waits; return whether something was written."""
        clock = self._host.clock
        entries = self._pending.to_write(clock.wall_milliseconds(), clock.now(), is_last=is_last)
        if not entries:
            return False
        # A write that was begun goes on in its thread: it has to be known what came of it.
        writing = asyncio.ensure_future(
            self._host.workers.run_blocking(partial(_written, file, entries))
        )
        try:
            error = await asyncio.shield(writing)
        except asyncio.CancelledError:
            self._note_written(len(entries), await writing)
            raise
        self._note_written(len(entries), error)
        return error is None

    def _note_written(self, count: int, error: OSError | None) -> None:
        was_failing = self._pending.is_failing
        if error is None:
            self._pending.wrote(count)
            if was_failing:
                logger.info("audit_writes_again")
            return
        self._pending.failed()
        if not was_failing:
            logger.error("audit_failed error=%s; requests of operators are refused", error)


def _written(file: AuditFile, entries: list[AuditEntry]) -> OSError | None:
    """Return why the entries could not be written; None: they are."""
    try:
        file.write(entries)
    except OSError as error:
        return error
    return None
