"""The log of one partition: open, append with roll-over, cut, read, scrub, repair.

Owns which records are damaged, and the trace of the newest segment; `open_segments.py` has the
segments themselves. Knows nothing of sessions and permissions, and remembers no failure: after a
SegmentFailedError the chain's owner must not write again.

Always true: damaged records are never served, never cut as if they had not been there, and never
keep the other records from being served.
Source: Waltz Internals, "Segment".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from posixpath import dirname
from typing import Final

import numpy as np

from waltz.errors import (
    CorruptionError,
    SegmentFailedError,
    UnavailableError,
)
from waltz.limits import SEGMENTS_OPEN_MAX
from waltz.record import RecordBatch
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.storage.log.checked_records import CheckedRecords
from waltz.storage.log.damage import (
    DAMAGE_FILE_NAME,
    Damage,
    DamagedRange,
    DamageFile,
    KnownDamage,
    damage_text,
    left_of,
)
from waltz.storage.log.listing import FIRST
from waltz.storage.log.open_segments import OpenSegments
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    NoFile,
    Segment,
    SegmentHome,
)
from waltz.storage.log.segment_recovery import TornTail, Trust
from waltz.types import NOTHING, TransactionId

BEYOND_ALL: Final = TransactionId(2**63 - 1)


class SegmentChain:
    """All segments of a partition, of which the last one takes appends; `open` it first."""

    def __init__(
        self,
        home: SegmentHome,
        *,
        segment_bytes_threshold: int,
        wall_milliseconds: Callable[[], int],
        segments_open_max: int = SEGMENTS_OPEN_MAX,
        keep_trace: Callable[[SegmentTrace], None] | None = None,
    ) -> None:
        """`keep_trace` makes the trace of the segments durable, or raises SegmentFailedError; None:
        no trace is kept."""
        self._home = home
        self._disk = home.disk
        self._segment_bytes_threshold = segment_bytes_threshold
        self._wall_milliseconds = wall_milliseconds
        self._keep_trace = keep_trace
        self._trace = SegmentTrace(FIRST, FIRST)
        self._damage = KnownDamage(DamageFile(home.disk, home.directory))
        self.segments = OpenSegments(
            home, self._damage, open_max=segments_open_max, wall_milliseconds=wall_milliseconds
        )
        self.records = CheckedRecords(home, self.segments, self._damage, wall_milliseconds)

    # Opening and closing

    def open(self, trust: Trust, lose: Callable[[], None] = lambda: None) -> TornTail | None:
        """Open all segments, making the first one if there is none; return what had to be cut off.

        `lose` is called, before anything is changed, if the newest records were lost and nothing
        tells how many there were. Checked are the headers, the size and the last record of each
        segment, the newest records of the last segment, and all records known to be damaged.
        Raises StorageError, OSError, UnavailableError if nothing can be said of the log; nothing is
        open then.
        """
        self.segments.close()
        try:
            return self._open(trust, lose)
        except BaseException:
            self.segments.close()
            raise

    def _open(self, trust: Trust, lose: Callable[[], None]) -> TornTail | None:
        if not self._disk.exists(self._home.directory):
            self._disk.make_directory(self._home.directory)
        # File names that a killed process did not sync are seen, but a power cut would remove them.
        self._disk.sync_directory(dirname(self._home.directory))
        self._disk.sync_directory(self._home.directory)
        remembered = self._damage.load()
        if remembered is not None and trust.index_is_proof:
            known = max(trust.durable_next, remembered.durable_next)
            trust = replace(trust, durable_next=known)
        if trust.ceiling is not None and trust.newest >= trust.ceiling:
            # The trace must not name segments that are removed next, neither now nor later.
            self._note(SegmentTrace(FIRST, min(trust.durable_next, trust.ceiling)))
            trust = replace(trust, newest=NOTHING)
        segments = self.segments
        segments.find(trust)
        if not segments.firsts:
            if trust.local_low_water_mark != NOTHING:
                raise CorruptionError(
                    f"{self._home.directory} has no segments; expected records up to"
                    f" {trust.local_low_water_mark}"
                )
            segments.add(FIRST)
            segments.remember_damage()
            return None
        if segments.firsts[-1] < trust.newest:
            lose()
        torn = segments.open_last(trust, lose)
        last = self._last
        if isinstance(last.data_file, NoFile) and not last.has_lost_end:
            # The lost data file had no records.
            last.make_data_file(self._home, self._wall_milliseconds())
        everything = DamagedRange(FIRST, last.next_transaction_id)
        for first, end in (everything,) if remembered is None else remembered.damage:
            while first < min(end, last.next_transaction_id):
                segment = segments.of(first)
                self.records.examine(segment, first, end)
                first = segment.next_transaction_id
        segments.remember_damage()
        return torn

    def close(self) -> None:
        """Bring the index up to date, release reserved space and close all files.

        Raises SegmentFailedError.
        """
        last = self.segments.last
        try:
            if last is not None and not last.failed:
                last.write_index()
                last.give_back()
                self.trace()
            if last is not None:
                with suppress(OSError):
                    self._damage.save(last.durable_next)
        finally:
            self.segments.close()

    def trace(self) -> None:
        """Bring the trace up to date. Raises SegmentFailedError."""
        self._note(SegmentTrace(self._last.first_transaction_id, self._last.durable_next))

    def _note(self, trace: SegmentTrace) -> None:
        if self._keep_trace is not None:
            self._keep_trace(trace)
        self._trace = trace

    # State

    @property
    def is_open(self) -> bool:
        return self.segments.last is not None

    @property
    def _last(self) -> Segment:
        assert self.segments.last is not None, "the chain is not open"
        return self.segments.last

    @property
    def next_transaction_id(self) -> TransactionId:
        """One past the last record that was written, damaged or not."""
        last = self.segments.last
        return FIRST if last is None else last.next_transaction_id

    @property
    def newest_segment(self) -> TransactionId:
        """First transaction ID of the segment that takes appends."""
        last = self.segments.last
        return FIRST if last is None else last.first_transaction_id

    @property
    def end(self) -> tuple[TransactionId, TransactionId]:
        """`newest_segment` and `next_transaction_id`."""
        last = self.segments.last
        return (
            (FIRST, FIRST)
            if last is None
            else (last.first_transaction_id, last.next_transaction_id)
        )

    def checksum(self, transaction_id: TransactionId) -> int | None:
        """Return the checksum of a record as it lies on the disk, 0 for `NOTHING`; None: there is
        no such record, or it cannot be read."""
        if transaction_id == NOTHING:
            return 0
        if not FIRST <= transaction_id < self.next_transaction_id:
            return None
        try:
            return self.segments.of(transaction_id).checksum(transaction_id)
        except (CorruptionError, OSError):
            return None

    @property
    def damage(self) -> Damage:
        """Ranges of records that cannot be trusted and await repair, ascending; all other records
        are served."""
        return self._damage.ranges

    # Writing

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, rolling over where a segment passes its threshold; `sync` makes it
        durable.

        Raises SegmentFailedError; UnavailableError: no space, and then nothing is written.
        """
        threshold, first = self._segment_bytes_threshold, batch.first_transaction_id
        last, count = self.segments.last, batch.count
        assert last is not None, "the chain is not open"
        try:
            while count:
                is_empty = last.next_transaction_id == last.first_transaction_id
                if (last.size > threshold and not is_empty) or last.has_lost_end:
                    last = self._roll_over(last)
                # A segment exceeds the threshold by its last record only.
                room = threshold - last.size
                if count == 1 or batch.offsets[-2] <= room:
                    last.write(batch, threshold=threshold)
                    return
                fitting = max(1, int(np.searchsorted(batch.offsets[:-1], room, side="right")))
                last.write(batch.slice(batch.first_transaction_id, fitting), threshold=threshold)
                count -= fitting
                batch = batch.slice(last.next_transaction_id, count)
        except UnavailableError as error:
            if self.next_transaction_id > first:
                # A part of the batch was written before a segment was full.
                try:
                    self._truncate(TransactionId(first - 1))
                except CorruptionError as damage:
                    raise SegmentFailedError(
                        f"{error}; a part of the batch was written and could not be cut off:"
                        f" {damage}"
                    ) from damage
            raise

    def sync(self) -> None:
        """Return once everything written is durable. Raises SegmentFailedError."""
        last = self.segments.last
        assert last is not None, "the chain is not open"
        last.sync()

    def write_index(self) -> None:
        """Return once data and index are durable. Raises SegmentFailedError."""
        self._last.write_index()

    def check_cut(self, last_transaction_id: TransactionId, accepted: Damage = ()) -> None:
        """Raises CorruptionError, OSError: the log cannot be cut after `last_transaction_id`,
        because that record is damaged, or an earlier one that is not among `accepted`."""
        damage = left_of(self.damage, accepted)
        if damage and last_transaction_id >= damage[0].first:
            raise CorruptionError(
                f"partition {self._home.partition_id} cannot be truncated to"
                f" {last_transaction_id}: there is damage before it that awaits repair:"
                f" {damage_text(damage)}"
            )
        if last_transaction_id >= 0:
            self.records.read(last_transaction_id, count_max=1, bytes_max=1)

    def truncate(self, last_transaction_id: TransactionId, accepted: Damage = ()) -> None:
        """Remove every record after `last_transaction_id`, damaged ones included.

        Raises CorruptionError, OSError: as `check_cut`; SegmentFailedError.
        """
        self.check_cut(last_transaction_id, accepted)
        self._truncate(last_transaction_id)

    def _truncate(self, last_transaction_id: TransactionId) -> None:
        following = TransactionId(last_transaction_id + 1)
        firsts = self.segments.firsts
        kept = max(1, bisect_right(firsts, following))
        last = self.segments.of(firsts[kept - 1])
        self._damage.replace(following, BEYOND_ALL, (), firsts=firsts)
        try:
            # The damage file goes first: it calls records durable that are about to be cut.
            self._damage.save(following)
        except OSError as error:
            raise SegmentFailedError(
                f"{self._home.directory}: {DAMAGE_FILE_NAME} cannot be written: {error}"
            ) from error
        # The trace, too, must not name what is about to be cut.
        durable_next = min(self._trace.durable_next, following)
        self._note(SegmentTrace(min(self._trace.newest, last.first_transaction_id), durable_next))
        if last is not self._last:
            self.segments.make_last(last)
        # The newest segment is removed first, each one durably, so that a crash leaves no gap.
        while len(firsts) > kept:
            removed = firsts.pop()
            try:
                self.segments.remove(removed)
            except OSError as error:
                raise SegmentFailedError(
                    f"{self._home.path(removed, DATA_SUFFIX)}: removal failed: {error}"
                ) from error
        if isinstance(last.data_file, NoFile):
            last.make_data_file(self._home, self._wall_milliseconds())
        last.truncate(last_transaction_id)

    def _roll_over(self, last: Segment) -> Segment:
        last.write_index()
        last.give_back()
        first = last.next_transaction_id
        added = self.segments.add(first)
        # Before its first record is written: from here on a loss of the segment is noticed.
        self._note(SegmentTrace(first, first))
        return added
