"""The segments of one partition, as one log: find, open, append with roll-over, read, repair.

Owns the partition's directory, the list of its segments, and which records are damaged. Knows
nothing of sessions and permissions, and remembers no failure: after a SegmentFailedError the
chain's owner must not write again.

Always true: damaged records are never served, never cut as if they had not been there, and never
keep the other records from being served.
Source: Waltz Internals, "Segment".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from posixpath import dirname
from typing import Final

import numpy as np

from waltz.errors import (
    CorruptionError,
    NotFoundError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.limits import RECORD_LIST_BYTES_MAX, SEGMENTS_OPEN_MAX
from waltz.record import RECORD_OVERHEAD_BYTES, RecordBatch, empty_batch, join_batches
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.storage.log.damage import (
    DAMAGE_FILE_NAME,
    Damage,
    DamagedRange,
    DamageFile,
    KnownDamage,
    damage_from,
    damage_text,
    left_of,
    range_text,
)
from waltz.storage.log.examination import examine_segment, is_good
from waltz.storage.log.listing import FIRST, find_segments, segment_names
from waltz.storage.log.repair import repair_segment
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    SET_ASIDE_SUFFIX,
    NoFile,
    Segment,
    SegmentHome,
    create_segment,
)
from waltz.storage.log.segment_recovery import TornTail, Trust, open_segment
from waltz.types import NOTHING, TransactionId

BEYOND_ALL: Final = TransactionId(2**63 - 1)
NO_TRUST: Final = Trust(local_low_water_mark=NOTHING, index_is_proof=False)


@dataclass(frozen=True, slots=True)
class ScrubStep:
    """The result of one call of `scrub`."""

    next_transaction_id: TransactionId
    """The record to continue with; the partition's next ID once its end is reached."""
    bytes_read: int
    records: int
    """Good records read."""
    damaged: tuple[DamagedRange, ...]
    """Damage that was not known before."""
    indexes_healed: int


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
        self.indexes_healed = 0
        """Wrong index entries and headers that were corrected since the node started."""
        self._home = home
        self._disk = home.disk
        self._segment_bytes_threshold = segment_bytes_threshold
        self._segments_open_max = segments_open_max
        self._wall_milliseconds = wall_milliseconds
        self._keep_trace = keep_trace
        self._trace = SegmentTrace(FIRST, FIRST)
        self._firsts: list[TransactionId] = []
        """First IDs of all segments, ascending."""
        self._last: Segment | None = None
        self._complete: OrderedDict[TransactionId, Segment] = OrderedDict()
        """Complete segments that are open, the least recently used one first."""
        self._damage = KnownDamage(DamageFile(home.disk, home.directory))

    # Opening and closing

    def open(self, trust: Trust, lose: Callable[[], None] = lambda: None) -> TornTail | None:
        """Open all segments, making the first one if there is none; return what had to be cut off.

        `lose` is called, before anything is changed, if the newest records were lost and nothing
        tells how many there were. Checked are the headers, the size and the last record of each
        segment, the newest records of the last segment, and all records known to be damaged.
        Raises StorageError, OSError, UnavailableError if nothing can be said of the log; nothing is
        open then.
        """
        self.close_files()
        try:
            return self._open(trust, lose)
        except BaseException:
            self.close_files()
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
        self._firsts = find_segments(self._home, trust, self._remove)
        if not self._firsts:
            if trust.local_low_water_mark != NOTHING:
                raise CorruptionError(
                    f"{self._home.directory} has no segments; expected records up to"
                    f" {trust.local_low_water_mark}"
                )
            self._last = create_segment(self._home, FIRST, self._wall_milliseconds())
            self._firsts = [FIRST]
            self._remember()
            return None
        position = 0
        while position < len(self._firsts) - 1:
            segment = self._complete_segment(self._firsts[position])
            if segment.next_transaction_id < self._firsts[position + 1]:
                # According to its own index it ends there: the segment after it is missing.
                self._firsts.insert(position + 1, segment.next_transaction_id)
            position += 1
        if self._firsts[-1] < trust.newest:
            lose()
        self._last, torn = self._open_segment(self._firsts[-1], trust, following=None, lose=lose)
        if isinstance(self._last.data_file, NoFile) and not self._last.has_lost_end:
            # The lost data file had no records.
            self._last.make_data_file(self._home, self._wall_milliseconds())
        everything = DamagedRange(FIRST, self.next_transaction_id)
        for found in (everything,) if remembered is None else remembered.damage:
            self._examine_all(found.first, found.next_transaction_id)
        self._remember()
        return torn

    def close(self) -> None:
        """Bring the index up to date, release reserved space and close all files.

        Raises SegmentFailedError.
        """
        try:
            if self._last is not None and not self._last.failed:
                self._last.write_index()
                self._last.give_back()
                self.trace()
            if self._last is not None:
                with suppress(OSError):
                    self._damage.save(self._last.durable_next)
        finally:
            self.close_files()

    def close_files(self) -> None:
        """Close all files as they are."""
        for segment in self._complete.values():
            segment.close()
        self._complete.clear()
        if self._last is not None:
            self._last.close()
            self._last = None
        self._firsts = []
        self._damage.ranges = ()

    def remove_files(self) -> None:
        """Remove all segments from the disk, the newest first; none may be open. Raises OSError."""
        assert self._last is None
        if not self._disk.exists(self._home.directory):
            return
        for name in self._disk.list_directory(self._home.directory):
            if name.startswith(DAMAGE_FILE_NAME) or name.endswith(SET_ASIDE_SUFFIX):
                self._disk.remove(f"{self._home.directory}/{name}")
        self._disk.sync_directory(self._home.directory)
        names = [segment_names(self._home, suffix) for suffix in (DATA_SUFFIX, INDEX_SUFFIX)]
        for first in sorted({*names[0], *names[1]}, reverse=True):
            self._remove(first)

    def trace(self) -> None:
        """Bring the trace up to date. Raises SegmentFailedError."""
        self._note(SegmentTrace(self._writer.first_transaction_id, self._writer.durable_next))

    def _note(self, trace: SegmentTrace) -> None:
        if self._keep_trace is not None:
            self._keep_trace(trace)
        self._trace = trace

    # State

    @property
    def is_open(self) -> bool:
        return self._last is not None

    @property
    def next_transaction_id(self) -> TransactionId:
        """One past the last record that was written, damaged or not."""
        return FIRST if self._last is None else self._last.next_transaction_id

    @property
    def segment_count(self) -> int:
        return len(self._firsts)

    @property
    def damage(self) -> Damage:
        """The ranges of records known to be damaged."""
        return self._damage.ranges

    # Writing

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, rolling over where a segment passes its threshold; `sync` makes it
        durable.

        Raises SegmentFailedError; UnavailableError: no space, and then nothing is written.
        """
        try:
            self._write(batch)
        except UnavailableError as error:
            if self.next_transaction_id > batch.first_transaction_id:
                # A part of the batch was written before a segment was full.
                try:
                    self._truncate(TransactionId(batch.first_transaction_id - 1))
                except CorruptionError as damage:
                    raise SegmentFailedError(
                        f"{error}; a part of the batch was written and could not be cut off:"
                        f" {damage}"
                    ) from damage
            raise

    def _write(self, batch: RecordBatch) -> None:
        count = batch.count
        while count:
            last = self._writer
            is_empty = last.next_transaction_id == last.first_transaction_id
            is_full = last.size > self._segment_bytes_threshold and not is_empty
            if is_full or last.has_lost_end:
                last = self._roll_over(last)
            # A segment exceeds the threshold by its last record only.
            room = self._segment_bytes_threshold - last.size
            if count == 1 or batch.offsets[-2] <= room:
                last.write(batch, threshold=self._segment_bytes_threshold)
                return
            fitting = max(1, int(np.searchsorted(batch.offsets[:-1], room, side="right")))
            part = batch.slice(batch.first_transaction_id, fitting)
            last.write(part, threshold=self._segment_bytes_threshold)
            count -= fitting
            batch = batch.slice(last.next_transaction_id, count)

    def sync(self) -> None:
        """Return once everything written is durable. Raises SegmentFailedError."""
        self._writer.sync()

    def write_index(self) -> None:
        """Return once data and index are durable. Raises SegmentFailedError."""
        self._writer.write_index()

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
            self.read(last_transaction_id, count_max=1, bytes_max=1)

    def truncate(self, last_transaction_id: TransactionId, accepted: Damage = ()) -> None:
        """Remove every record after `last_transaction_id`, damaged ones included.

        Raises CorruptionError, OSError: as `check_cut`; SegmentFailedError.
        """
        self.check_cut(last_transaction_id, accepted)
        self._truncate(last_transaction_id)

    def _truncate(self, last_transaction_id: TransactionId) -> None:
        following = TransactionId(last_transaction_id + 1)
        kept = max(1, bisect_right(self._firsts, following))
        last = self._segment_of(self._firsts[kept - 1])
        self._damage.replace(following, BEYOND_ALL, (), firsts=self._firsts)
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
            self._make_last(last)
        # The newest segment is removed first, each one durably, so that a crash leaves no gap.
        while len(self._firsts) > kept:
            removed = self._firsts.pop()
            try:
                self._remove(removed)
            except OSError as error:
                raise SegmentFailedError(
                    f"{self._home.path(removed, DATA_SUFFIX)}: removal failed: {error}"
                ) from error
        if isinstance(last.data_file, NoFile):
            last.make_data_file(self._home, self._wall_milliseconds())
        last.truncate(last_transaction_id)

    def _make_last(self, segment: Segment) -> None:
        """Make `segment` the last one and close all later ones."""
        self._writer.close()
        self._last = segment
        self._complete.pop(segment.first_transaction_id)
        for first in [first for first in self._complete if first > segment.first_transaction_id]:
            self._complete.pop(first).close()

    @property
    def _writer(self) -> Segment:
        assert self._last is not None, "the chain is not open"
        return self._last

    def _roll_over(self, last: Segment) -> Segment:
        last.write_index()
        last.give_back()
        first = last.next_transaction_id
        self._last = create_segment(self._home, first, self._wall_milliseconds())
        self._firsts.append(first)
        self._keep_open(last)
        # Before its first record is written: from here on a loss of the segment is noticed.
        self._note(SegmentTrace(first, first))
        return self._last

    def _remove(self, first: TransactionId) -> None:
        """Remove both files, the index first and durably, so that it never names missing data."""
        for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
            path = self._home.path(first, suffix)
            if self._disk.exists(path):
                self._disk.remove(path)
                self._disk.sync_directory(self._home.directory)

    # Reading

    def read(
        self, first_transaction_id: TransactionId, *, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Return records from `first_transaction_id` on, across segments, each one checked: at
        least one, at most `count_max`, and no more than `bytes_max` bytes unless the first is
        larger. The batch ends before the first damaged record; it is empty if the first record is
        not here.

        Raises CorruptionError: the first record is damaged; OSError.
        """
        if not 0 <= first_transaction_id < self.next_transaction_id:
            return empty_batch(FIRST)
        batches: list[RecordBatch] = []
        position = first_transaction_id
        while count_max > 0 and position < self.next_transaction_id:
            segment = self._segment_of(position)
            try:
                batch = self._read_in(segment, position, count_max, bytes_max)
            except CorruptionError:
                if not batches:
                    raise
                break
            if batches and len(batch.block) > bytes_max:
                break
            batches.append(batch)
            position = batch.next_transaction_id
            count_max -= len(batch)
            bytes_max -= len(batch.block)
            if bytes_max <= 0 or position != segment.next_transaction_id:
                break
        return join_batches(batches) if batches else empty_batch(FIRST)

    def _read_in(
        self, segment: Segment, first: TransactionId, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Read in one segment, up to the next damage; records that do not check out are
        examined."""
        count = self._count_of_good(first, count_max)
        try:
            return segment.read(first, count_max=count, bytes_max=bytes_max)
        except (CorruptionError, OSError):
            if first >= segment.durable_next:
                raise
            # One more, for its index entry tells where these records end.
            self._examine(segment, first, TransactionId(first + count + 1))
            self._remember()
        return segment.read(first, count_max=self._count_of_good(first, count), bytes_max=bytes_max)

    def _count_of_good(self, first: TransactionId, count_max: int) -> int:
        """Return how many records from `first` on come before the next damaged one, at most
        `count_max`. Raises CorruptionError: record `first` is damaged."""
        damaged = self._damage_at(first)
        if damaged is not None:
            raise CorruptionError(
                f"record {first} of partition {self._home.partition_id} is damaged:"
                f" {range_text(damaged)} must be repaired from another replica"
            )
        following = damage_from(self.damage, first)
        return count_max if following is None else min(count_max, following.first - first)

    def _damage_at(self, transaction_id: TransactionId) -> DamagedRange | None:
        damaged = damage_from(self.damage, transaction_id)
        return None if damaged is None or damaged.first > transaction_id else damaged

    def checksum(self, first: TransactionId, last: TransactionId) -> str:
        """Return the SHA-256, in hexadecimal digits, of the bytes of the records `first` to `last`.

        A CRC would not do, for each record ends with its own. Raises NotFoundError: some of the
        records are not here; CorruptionError, OSError.
        """
        if not 0 <= first <= last + 1 <= self.next_transaction_id:
            raise NotFoundError(
                f"partition {self._home.partition_id} has no records {first} to {last}; it holds"
                f" those before {self.next_transaction_id}"
            )
        digest = sha256()
        while first <= last:
            batch = self.read(first, count_max=last - first + 1, bytes_max=RECORD_LIST_BYTES_MAX)
            digest.update(batch.block)
            first = batch.next_transaction_id
        return digest.hexdigest()

    # Checking and mending

    def scrub(self, first: TransactionId, bytes_max: int) -> ScrubStep:
        """Read about `bytes_max` bytes of durable records from `first` on again and check them
        against checksum, ID and index; also damaged ones, which may have been unreadable for a
        while only.

        Raises StorageError: an index cannot be corrected, or a complete segment is not known to be
        durable to its end; OSError.
        """
        known, healed = self.damage, self.indexes_healed
        position, end = TransactionId(max(0, first)), self._writer.durable_next
        bytes_read = records = 0
        while position < end and bytes_read < bytes_max:
            segment = self._segment_of(position)
            if position == segment.first_transaction_id:
                self.indexes_healed += segment.restore_headers(self._home)
            damaged = self._damage_at(position)
            if damaged is not None:
                if not is_good(segment, damaged.first):
                    position = damaged.next_transaction_id
                    continue
                self._examine(segment, damaged.first, damaged.next_transaction_id)
            if position >= segment.durable_next:
                raise StorageError(
                    f"{segment.data_path}: records from {position} on are not known to be durable,"
                    f" and those before {end} are"
                )
            # At most as many as may fit: errors further on are not a matter of this slice.
            fitting = (bytes_max - bytes_read) // RECORD_OVERHEAD_BYTES + 1
            count_max = min(fitting, segment.durable_next - position)
            try:
                batch = self._read_in(segment, position, count_max, bytes_max - bytes_read)
            except CorruptionError:
                damaged = self._damage_at(position)
                if damaged is None:
                    raise
                position = damaged.next_transaction_id
                continue
            position = batch.next_transaction_id
            bytes_read += len(batch.block)
            records += len(batch)
        self._remember()
        found = tuple(damaged for damaged in self.damage if damaged not in known)
        return ScrubStep(position, bytes_read, records, found, self.indexes_healed - healed)

    def repair(self, batch: RecordBatch) -> None:
        """Durably replace damaged records by `batch`, from the first one of a range on. A batch
        that is here already is not written again.

        Raises StorageError: the batch has no place, or does not fit, and nothing was written;
        SegmentFailedError; UnavailableError: no space.
        """
        first, following = batch.first_transaction_id, batch.next_transaction_id
        if first == following:
            return
        damaged = damage_from(self.damage, first)
        is_good = damaged is None or following <= damaged.first
        if is_good and self.read(first, count_max=len(batch), bytes_max=len(batch.block)) == batch:
            return
        if damaged is None or damaged.first != first or following > damaged.next_transaction_id:
            raise StorageError(
                f"partition {self._home.partition_id} has no damage from {first} to"
                f" {following - 1}; damaged are {damage_text(self.damage) or 'no records'}"
            )
        segment = self._segment_of(first)
        try:
            repair_segment(
                self._home, segment, damaged, batch, wall_milliseconds=self._wall_milliseconds()
            )
        except CorruptionError:
            self._examine(segment, first, damaged.next_transaction_id)
            self._remember()
            raise
        self._damage.replace(first, following, (), firsts=self._firsts)
        self._remember()

    def _remember(self) -> None:
        if self._last is not None:
            self._damage.remember(self._last.durable_next)

    def _examine_all(self, first: TransactionId, following: TransactionId) -> None:
        while first < min(following, self.next_transaction_id):
            segment = self._segment_of(first)
            self._examine(segment, first, following)
            first = segment.next_transaction_id

    def _examine(self, segment: Segment, first: TransactionId, until: TransactionId) -> None:
        """Find out which of these and the adjoining records are damaged, and correct their index.

        Raises SegmentFailedError, OSError.
        """
        found = examine_segment(segment, first, until)
        self._damage.replace(
            found.start, found.next_transaction_id, found.damage, firsts=self._firsts
        )
        if segment.has_lost_end and found.is_whole(segment.next_transaction_id):
            segment.regain_end(found.end)
        if not isinstance(segment.data_file, NoFile):
            self.indexes_healed += segment.correct_index(found.start, found.offsets)

    # Segments

    def _segment_of(self, transaction_id: TransactionId) -> Segment:
        """Return the segment of the transaction, open. Raises CorruptionError, OSError."""
        first = self._firsts[bisect_right(self._firsts, transaction_id) - 1]
        if self._last is not None and first == self._last.first_transaction_id:
            return self._last
        return self._complete_segment(first)

    def _complete_segment(self, first: TransactionId) -> Segment:
        """Return a complete segment, open and marked as used last. Raises CorruptionError,
        OSError."""
        segment = self._complete.get(first)
        if segment is None:
            following = self._firsts[bisect_right(self._firsts, first)]
            segment, _ = self._open_segment(first, NO_TRUST, following=following)
            self._remember()
        self._keep_open(segment)
        return segment

    def _open_segment(
        self,
        first: TransactionId,
        trust: Trust,
        *,
        following: TransactionId | None,
        lose: Callable[[], None] = lambda: None,
    ) -> tuple[Segment, TornTail | None]:
        opened = open_segment(
            self._home,
            first,
            trust,
            following=following,
            wall_milliseconds=self._wall_milliseconds(),
            lose=lose,
        )
        self.indexes_healed += opened.indexes_healed
        for start, end in opened.damage:
            self._damage.replace(start, end, opened.damage, firsts=self._firsts)
        return opened.segment, opened.torn

    def _keep_open(self, segment: Segment) -> None:
        self._complete[segment.first_transaction_id] = segment
        self._complete.move_to_end(segment.first_transaction_id)
        while len(self._complete) > self._segments_open_max:
            self._complete.popitem(last=False)[1].close()
