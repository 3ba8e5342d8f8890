"""The records of one partition: read, each one checked; scrub; repair.

Owns what follows from a record that does not check out: the records next to it are examined, and
those that are damaged are noted. Always true: damaged records are never served, and never keep the
other records from being served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from waltz.errors import (
    CorruptionError,
    StorageError,
)
from waltz.record import RECORD_OVERHEAD_BYTES, RecordBatch, empty_batch, join_batches
from waltz.storage.log.damage import (
    DamagedRange,
    KnownDamage,
    damage_from,
    damage_text,
    range_text,
)
from waltz.storage.log.examination import examine_segment, is_good
from waltz.storage.log.listing import FIRST
from waltz.storage.log.open_segments import OpenSegments
from waltz.storage.log.repair import repair_segment
from waltz.storage.log.segment import (
    NoFile,
    Segment,
    SegmentHome,
)
from waltz.types import TransactionId


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


class CheckedRecords:
    """The records of the open segments of a partition."""

    def __init__(
        self,
        home: SegmentHome,
        segments: OpenSegments,
        damage: KnownDamage,
        wall_milliseconds: Callable[[], int],
    ) -> None:
        self._home = home
        self._segments = segments
        self._damage = damage
        self._wall_milliseconds = wall_milliseconds

    def read(
        self, first_transaction_id: TransactionId, *, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Return records from `first_transaction_id` on, across segments, each one checked: at
        least one, at most `count_max`, and no more than `bytes_max` bytes unless the first is
        larger. The batch ends before the first damaged record; it is empty if the first record is
        not here.

        Raises CorruptionError: the first record is damaged; OSError.
        """
        last = self._segments.last
        if last is None or not 0 <= first_transaction_id < last.next_transaction_id:
            return empty_batch(FIRST)
        batches: list[RecordBatch] = []
        position = first_transaction_id
        while count_max > 0 and position < last.next_transaction_id:
            segment = self._segments.of(position)
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
            self.examine(segment, first, TransactionId(first + count + 1))
            self._segments.remember_damage()
        return segment.read(first, count_max=self._count_of_good(first, count), bytes_max=bytes_max)

    def _count_of_good(self, first: TransactionId, count_max: int) -> int:
        """Return how many records from `first` on come before the next damaged one, at most
        `count_max`. Raises CorruptionError: record `first` is damaged."""
        following = damage_from(self._damage.ranges, first)
        if following is None:
            return count_max
        if following.first <= first:
            raise CorruptionError(
                f"record {first} of partition {self._home.partition_id} is damaged:"
                f" {range_text(following)} must be repaired from another replica"
            )
        return min(count_max, following.first - first)

    def scrub(self, first: TransactionId, bytes_max: int) -> ScrubStep:
        """Read about `bytes_max` bytes of durable records from `first` on again and check them
        against checksum, ID and index; also damaged ones, which may have been unreadable for a
        while only.

        Raises StorageError: an index cannot be corrected, or a complete segment is not known to be
        durable to its end; OSError.
        """
        last = self._segments.last
        assert last is not None, "the log is not open"
        known, healed = self._damage.ranges, self._segments.indexes_healed
        position, end = TransactionId(max(0, first)), last.durable_next
        bytes_read = records = 0
        while position < end and bytes_read < bytes_max:
            segment = self._segments.of(position)
            if position == segment.first_transaction_id:
                self._segments.indexes_healed += segment.restore_headers(self._home)
            damaged = self._damage.at(position)
            if damaged is not None:
                if not is_good(segment, damaged.first):
                    position = damaged.next_transaction_id
                    continue
                self.examine(segment, damaged.first, damaged.next_transaction_id)
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
                damaged = self._damage.at(position)
                if damaged is None:
                    raise
                position = damaged.next_transaction_id
                continue
            position = batch.next_transaction_id
            bytes_read += len(batch.block)
            records += len(batch)
        self._segments.remember_damage()
        found = tuple(damaged for damaged in self._damage.ranges if damaged not in known)
        return ScrubStep(
            position, bytes_read, records, found, self._segments.indexes_healed - healed
        )

    def repair(self, batch: RecordBatch) -> None:
        """Durably replace damaged records by `batch`, from the first one of a range on. A batch
        that is here already is not written again.

        Raises StorageError: the batch has no place, or does not fit, and nothing was written;
        SegmentFailedError; UnavailableError: no space.
        """
        first, following = batch.first_transaction_id, batch.next_transaction_id
        if first == following:
            return
        damaged = damage_from(self._damage.ranges, first)
        is_good = damaged is None or following <= damaged.first
        if is_good and self.read(first, count_max=len(batch), bytes_max=len(batch.block)) == batch:
            return
        if damaged is None or damaged.first != first or following > damaged.next_transaction_id:
            raise StorageError(
                f"partition {self._home.partition_id} has no damage from {first} to"
                f" {following - 1}; damaged are {damage_text(self._damage.ranges) or 'no records'}"
            )
        segment = self._segments.of(first)
        try:
            repair_segment(
                self._home, segment, damaged, batch, wall_milliseconds=self._wall_milliseconds()
            )
        except CorruptionError:
            self.examine(segment, first, damaged.next_transaction_id)
            self._segments.remember_damage()
            raise
        self._damage.replace(first, following, (), firsts=self._segments.firsts)
        self._segments.remember_damage()

    def examine(self, segment: Segment, first: TransactionId, until: TransactionId) -> None:
        """Find out which of these and the adjoining records are damaged, and correct their index.

        Raises SegmentFailedError, OSError.
        """
        found = examine_segment(segment, first, until)
        self._damage.replace(
            found.start, found.next_transaction_id, found.damage, firsts=self._segments.firsts
        )
        if segment.has_lost_end and found.is_whole(segment.next_transaction_id):
            segment.regain_end(found.end)
        if not isinstance(segment.data_file, NoFile):
            self._segments.indexes_healed += segment.correct_index(found.start, found.offsets)
