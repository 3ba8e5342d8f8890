"""Examines a data file from a place on: finds its good records, its damaged ones and its end.

Owns the judgement of records. A good record has the ID that its place demands, the partition's own
ID and a right checksum, and ends where the index has the next record. Where data and index
disagree, the index is right if a good record lies at the indexed place, or if the two never agree
again: then a block of the data is an old one or belongs elsewhere. Otherwise the index entry is
wrong. The place after a bad record is known from the index, or from that record's own length.
Changes nothing. Knows nothing of marks; how much was durable comes as an argument.

The good records before and after a damaged range tell its first and its last byte. The end of a
range that no good record follows is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz.host import File
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES, scan_records
from waltz.storage.log.damage import Damage, DamagedRange, united
from waltz.storage.log.index_file import IndexFile
from waltz.storage.log.segment import (
    RECORD_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    Segment,
    first_stranger,
)
from waltz.types import PartitionId, TransactionId

SCAN_BYTES: Final = 4 * 1024 * 1024
"""Bytes read at a time when a data file is scanned."""

READABLE_BYTES: Final = 4096
"""Size of the blocks of which an unreadable one is replaced by zeros."""

ENTRIES_AT_A_TIME: Final = 65_536

AGREEMENT_RECORDS: Final = 64
"""Records examined further to see whether index and data agree again."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """The parts of a data file and its index that an examination may read."""

    file: File
    size: int
    """Nothing beyond this byte is read."""
    index: IndexFile
    first_transaction_id: TransactionId
    partition_id: PartitionId | None
    """The partition that the records must belong to; None: any."""
    full_at: TransactionId | None = None
    """The records before this one are known to end at byte `size`; None: this is not known."""

    def read(self, offset: int, count: int) -> bytes:
        """Return the bytes, with zeros for those that cannot be read."""
        count = min(count, self.size - offset)
        try:
            return self.file.read_at(offset, count)
        except OSError:
            return b"".join(
                self._block(offset + start, min(READABLE_BYTES, count - start))
                for start in range(0, count, READABLE_BYTES)
            )

    def _block(self, offset: int, count: int) -> bytes:
        try:
            return self.file.read_at(offset, count)
        except OSError:
            return bytes(count)

    def claimed_end(self, offset: int) -> int | None:
        """Return where a record at byte `offset` ends according to its own length; None: that
        length is impossible."""
        if not SEGMENT_HEADER_BYTES <= offset <= self.size - RECORD_OVERHEAD_BYTES:
            return None
        length = RECORD_HEADER.unpack(self.read(offset, RECORD_HEADER.size))[3]
        end: int = offset + length + RECORD_OVERHEAD_BYTES
        return end if 0 <= length <= DATA_BYTES_MAX and end <= self.size else None

    def record_end(self, transaction_id: TransactionId, offset: int) -> int | None:
        """Return where record `transaction_id` ends; None: it does not lie at byte `offset` or does
        not check out."""
        end = self.claimed_end(offset)
        if end is None:
            return None
        offsets = self.scan(self.read(offset, end - offset), transaction_id)
        return end if len(offsets) == 2 else None

    def scan(self, buffer: bytes, start: TransactionId) -> NDArray[np.int64]:
        """Return the places in `buffer` of the good records from `start` on, and the end of the
        last one."""
        offsets = scan_records(buffer, start)
        if self.partition_id is None:
            return offsets
        stranger = first_stranger(buffer, offsets, self.partition_id)
        return offsets if stranger is None else offsets[: stranger + 1]

    def entries(self, start: TransactionId, count: int) -> NDArray[np.int64]:
        """Return the indexed places of the `count` records from `start` on; 0 where the index has
        none."""
        return self.index.entries(start - self.first_transaction_id, count)

    def indexed_place(self, transaction_id: TransactionId) -> int | None:
        """Return the indexed place of the record; None: it does not lie there or does not check
        out."""
        (offset,) = self.entries(transaction_id, 1).tolist()
        return offset if self.record_end(transaction_id, offset) is not None else None

    def place_before(self, transaction_id: TransactionId) -> tuple[TransactionId, int]:
        """Return a good record before `transaction_id` and its place: a nearby one if the index is
        right there, otherwise the segment's first record and its place."""
        distance = 1
        while (candidate := TransactionId(transaction_id - distance)) > self.first_transaction_id:
            offset = self.indexed_place(candidate)
            if offset is not None:
                return candidate, offset
            distance *= 2
        return self.first_transaction_id, SEGMENT_HEADER_BYTES


def scan_file(
    data: DataFile, start: TransactionId, offset: int, *, until: TransactionId | None = None
) -> NDArray[np.int64]:
    """Return the offsets of consecutive records that check out, from record `start` at byte
    `offset` up to `until`, and the end of the last one."""
    parts: list[NDArray[np.int64]] = []
    window = SCAN_BYTES
    while offset < data.size and (until is None or start < until):
        buffer = data.read(offset, window)
        offsets = data.scan(buffer, start)
        if until is not None:
            offsets = offsets[: until - start + 1]
        count = len(offsets) - 1
        if count:
            parts.append(offsets[:-1] + offset)
            offset += int(offsets[-1])
            start = TransactionId(start + count)
            window = SCAN_BYTES
        elif offset + len(buffer) >= data.size or window >= RECORD_BYTES_MAX:
            break
        else:
            window = RECORD_BYTES_MAX
    return np.concatenate([*parts, np.array([offset], np.int64)])


def find_good_record(
    data: DataFile, after: TransactionId, offset: int, *, last: TransactionId
) -> tuple[TransactionId, int] | None:
    """Return the first good record after `after`, up to `last`, and its place, which the index
    tells, or else the length of record `after` at byte `offset`; None: there is none."""
    start = TransactionId(after + 1)
    place = data.claimed_end(offset)
    if (
        start <= last
        and place is not None
        and data.entries(start, 1)[0] in (0, place)
        and data.record_end(start, place) is not None
    ):
        return start, place
    # The durable records may reach far beyond the index.
    last = TransactionId(min(last, data.first_transaction_id + data.index.count - 1))
    while start <= last:
        count = min(ENTRIES_AT_A_TIME, last - start + 1)
        entries = data.entries(start, count)
        ids = np.arange(start, start + count, dtype=np.int64)
        possible = (entries >= offset + RECORD_OVERHEAD_BYTES * (ids - after)) & (
            entries <= data.size - RECORD_OVERHEAD_BYTES
        )
        found = _first_good(data, ids[possible], entries[possible])
        if found is not None:
            return found
        start = TransactionId(start + count)
    return None


def _first_good(
    data: DataFile, ids: NDArray[np.int64], places: NDArray[np.int64]
) -> tuple[TransactionId, int] | None:
    """Return the first of these records that checks out at its place, or None; IDs are compared
    first, window by window."""
    position = 0
    while position < len(ids):
        base = int(places[position])
        inside = (places[position:] >= base) & (places[position:] <= base + SCAN_BYTES - 8)
        count = len(inside) if inside.all() else int(np.argmin(inside))
        window = np.frombuffer(data.read(base, SCAN_BYTES), np.uint8)
        here = places[position : position + count] - base
        found = window[here[:, np.newaxis] + np.arange(8)].view(">i8").ravel()
        for hit in np.flatnonzero(found == ids[position : position + count]).tolist():
            transaction_id = TransactionId(int(ids[position + hit]))
            if data.record_end(transaction_id, base + int(here[hit])) is not None:
                return transaction_id, base + int(here[hit])
        position += count
    return None


def may_have_record(data: DataFile, offset: int, first: TransactionId) -> bool:
    """Return whether behind byte `offset`, wherever that is, lies a good record from `first` on for
    whose ID there is room; also True if that would take too long to find out.

    Nothing may be read from what is found here, for clients write what they like into their data,
    also records: it is only a reason to doubt.
    """
    limit = first + (data.size - offset) // RECORD_OVERHEAD_BYTES
    left = data.size - offset + SCAN_BYTES
    while offset <= data.size - RECORD_OVERHEAD_BYTES:
        window = data.read(offset, SCAN_BYTES)
        # The number at every byte: one copy takes those of all places.
        count = len(window) - RECORD_HEADER.size + 1
        ids: NDArray[np.int64] = np.ndarray((count,), ">i8", window, 0, (1,))
        for place in np.flatnonzero((ids >= first) & (ids < limit)).tolist():
            start = offset + place
            end = data.claimed_end(start)
            if end is not None and data.record_end(TransactionId(int(ids[place])), start) == end:
                return True
            # Each ID that clients wrote into their data costs some reading.
            left -= READABLE_BYTES if end is None else max(READABLE_BYTES, end - start)
            if left < 0:
                return True
        offset += count
    return False


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings from record `start` on."""

    start: TransactionId
    offsets: NDArray[np.int64]
    """The place of each record; 0 for the damaged ones except the first of each range. If the end
    is lost, the first record of the lost range is the last here."""
    next_transaction_id: TransactionId
    end: int
    """The byte where the last good record ends."""
    damage: Damage
    has_lost_end: bool
    """Whether no good record follows the last damaged range."""

    def is_whole(self, next_transaction_id: TransactionId) -> bool:
        """Whether the record before `next_transaction_id` is there and good."""
        return not self.has_lost_end and self.next_transaction_id == next_transaction_id


def examine(
    data: DataFile,
    start: TransactionId,
    offset: int,
    *,
    durable_next: TransactionId,
    until: TransactionId | None = None,
) -> Examination:
    """Examine the records from `start`, which is at byte `offset`, up to `until`, or as far as they
    check out. A bad record below `durable_next` is damaged; any other bad record is the end."""
    parts: list[NDArray[np.int64]] = []
    damage: list[DamagedRange] = []
    position = start
    has_lost_end = False
    while not has_lost_end:
        found = _scan_agreed(data, position, offset, durable_next=durable_next, until=until)
        parts.append(found[:-1])
        position = TransactionId(position + len(found) - 1)
        offset = int(found[-1])
        if position >= durable_next or (until is not None and position >= until):
            break
        good = find_good_record(data, position, offset, last=durable_next)
        following, place = good or (durable_next, offset)
        has_lost_end = good is None
        damage.append(DamagedRange(position, following))
        places = np.zeros(1 if has_lost_end else following - position, np.int64)
        places[0] = offset
        parts.append(places)
        position, offset = following, place
    joined = united(damage, (), ())
    return Examination(start, np.concatenate(parts), position, offset, joined, has_lost_end)


def _scan_agreed(
    data: DataFile,
    start: TransactionId,
    offset: int,
    *,
    durable_next: TransactionId,
    until: TransactionId | None,
) -> NDArray[np.int64]:
    """Scan as `scan_file` does, but only as far as the index does not contradict the data."""
    reach = until
    while True:
        found = scan_file(data, start, offset, until=reach)
        agreed = _agreed_count(data, start, found)
        if agreed == len(found) - 1 or reach is None or reach >= durable_next:
            break
        if start + len(found) - 1 < reach:
            break
        # The records that follow tell whether index or data is right.
        reach = min(durable_next, TransactionId(reach + AGREEMENT_RECORDS))
    if until is not None:
        agreed = min(agreed, max(0, until - start))
    return found[: agreed + 1]


def _agreed_count(data: DataFile, start: TransactionId, found: NDArray[np.int64]) -> int:
    """Return how many of the consecutive records at the places `found` the index does not
    contradict."""
    count = len(found) - 1
    entries = data.entries(start, count + 1)
    if start + count == data.full_at or (entries[count] == 0 and found[count] == data.size):
        entries[count] = data.size
    agrees = entries == found
    agrees[0] = True
    wrong = np.flatnonzero((entries != 0) & ~agrees)
    if not len(wrong):
        return count
    places = entries[wrong]
    possible = (places >= SEGMENT_HEADER_BYTES) & (places <= data.size - RECORD_OVERHEAD_BYTES)
    conflict = _first_good(data, start + wrong[possible], places[possible])
    end = count + 1 if conflict is None else conflict[0] - start
    last_agreement = int(np.flatnonzero(agrees[:end])[-1])
    return count if conflict is None and wrong[-1] < last_agreement else last_agreement


def examine_segment(segment: Segment, first: TransactionId, until: TransactionId) -> Examination:
    """Examine the durable records of an open segment, from a good record before `first` to `until`,
    or to the end of a damaged range that continues there."""
    data = data_of_segment(segment)
    start, offset = data.place_before(first)
    until = min(until, segment.durable_next)
    return examine(data, start, offset, durable_next=segment.durable_next, until=until)


def is_good(segment: Segment, transaction_id: TransactionId) -> bool:
    """Whether a durable record of an open segment, and the records just before it, check out."""
    data = data_of_segment(segment)
    start, offset = data.place_before(transaction_id)
    until = TransactionId(transaction_id + 1)
    return len(scan_file(data, start, offset, until=until)) == until - start + 1


def data_of_segment(segment: Segment) -> DataFile:
    """Return the parts of a segment that an examination may read: the whole data file if its end is
    lost."""
    return DataFile(
        segment.data_file,
        segment.data_file.size() if segment.has_lost_end else segment.durable_size,
        segment.index,
        segment.first_transaction_id,
        segment.partition_id,
        None if segment.has_lost_end else segment.durable_next,
    )
