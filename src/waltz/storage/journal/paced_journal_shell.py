"""The journal of a partition, written at its pace.

Owns the entries that wait for their time, and one timer for all drains of a second. Must not know
requests, nor when a thread works in the partition: it is told what a drain has done to the log, and
hands over what is to be written in the partition's turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from waltz.host import Clock
from waltz.storage.journal.pacing import JournalPacing, LogWorked
from waltz.storage.journal.partition_journal import JournalPart, PartitionJournal
from waltz.storage.log.segments import SegmentChain
from waltz.types import TransactionId


class PacedJournal:
    """`close`, `part` and what is handed over run in the partition's turn, the rest on the loop."""

    def __init__(
        self,
        clock: Clock,
        journal: PartitionJournal,
        log: SegmentChain,
        write_in_turn: Callable[[Callable[[], None]], None],
    ) -> None:
        """`write_in_turn` is given what is to be called in the partition's turn."""
        self._clock = clock
        self._journal = journal
        self._log = log
        self._write_in_turn = write_in_turn
        self._pacing = JournalPacing()
        self._timer: asyncio.TimerHandle | None = None
        """Set while records wait for their time to be written."""
        self._closed = False

    def take(self, worked: LogWorked, now: float) -> Callable[[], None] | None:
        """Return what writes the entries that are to be written before anything that waits for the
        partition; None: there are none. The answers to all that they tell of were sent."""
        entries = self._pacing.step((worked,), now)
        return partial(self._journal.write, entries, worked.segment_before) if entries else None

    def watch(self) -> None:
        """Have what waits to be written be written in its time, if there is anything."""
        if self._timer is None:
            self._look()

    def part(self, first: TransactionId, last: TransactionId) -> JournalPart:
        """Return what the journal has of the transactions from `first` on, with what waits to be
        written. Raises OSError, CorruptionError."""
        self._flush()
        return self._journal.part(first, last)

    def close(self) -> None:
        """Write what waits for its time; nothing is written after that."""
        self._closed = True
        self._flush()

    def forget(self) -> None:
        """Write nothing of what waits for its time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        deadline = self._pacing.deadline
        if deadline is None or self._closed:
            return
        seconds = deadline - self._clock.now()
        if seconds > 0.0:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)
            return
        self._write_in_turn(self._write_due)

    def _write_due(self) -> None:
        entries = self._pacing.step((), self._clock.now())
        self._journal.write(entries, self._log.newest_segment)

    def _flush(self) -> None:
        self._journal.write(self._pacing.flush(), self._log.newest_segment)
