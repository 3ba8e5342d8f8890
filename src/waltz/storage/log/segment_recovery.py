"""Opening a segment: find where its data ends and make its index true.

Owns the judgement between a torn tail, which is cut, and damage, which never is. Knows nothing of
sessions; the marks come as arguments.

We write an index entry after the sync of its record. The original writes it before that sync, but
writes no entry of a later thousand of transaction IDs before all records below that thousand are
synced. So an index that reaches into a thousand proves that all records below that thousand were
durable, no matter which of the two wrote it. If only this release has written the directory since
its last recovery, every entry proves that its record was durable.
Source: Waltz Internals, "Recovery".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from waltz.errors import CorruptionError
from waltz.host import File
from waltz.limits import (
    DATA_BYTES_MAX,
    INDEX_CHECKPOINT_RECORDS,
    INDEX_SYNC_RECORDS,
    OPEN_CHECK_BYTES,
    OPEN_CHECK_RECORDS,
)
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES
from waltz.storage.log.damage import Damage, without
from waltz.storage.log.examination import (
    SCAN_BYTES,
    DataFile,
    Examination,
    examine,
    may_have_record,
    scan_file,
)
from waltz.storage.log.index_file import IndexFile
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    RECORD_BYTES_MAX,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
    NoFile,
    Segment,
    SegmentHome,
)
from waltz.types import NOTHING, TransactionId

KEY_BITS_HIT_MAX: Final = 8
"""A cluster key that differs from ours in at most this many bits is ours, damaged."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """The bytes that recovery cut off the last segment; no answer ever rested on them."""

    path: str
    next_transaction_id: TransactionId
    offset: int
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """An open segment, and what opening it found."""

    segment: Segment
    torn: TornTail | None
    damage: Damage
    indexes_healed: int
    """Index entries that were wrong or missing and did not end the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The records known to have been durable, whatever the files say now."""

    local_low_water_mark: TransactionId
    """All records up to this one were durable."""
    index_is_proof: bool
    """Whether all records up to any index entry were durable. False: the original may have written
    the index."""
    ceiling: TransactionId | None = None
    """No record from this one on is taken as durable, for a write failed; None: none failed."""
    durable_next: TransactionId = NOTHING
    """All records before this one were durable, according to the damage file or the trace."""
    newest: TransactionId = NOTHING
    """The segment that begins here had both its files; NOTHING: no trace was kept."""


NO_TRUST: Final = Trust(local_low_water_mark=NOTHING, index_is_proof=False)


def open_segment(
    home: SegmentHome,
    first_transaction_id: TransactionId,
    trust: Trust,
    *,
    following: TransactionId | None,
    wall_milliseconds: int,
    lose: Callable[[], None] = lambda: None,
) -> Opened:
    """Open a segment, find its end and correct its index.

    `lose` is called, before anything that tells of it is changed, if records may have been durable
    beyond those that the log will have: `_may_have_had_more`.

    `following` is the first ID of the next segment, None for the last segment. A segment that is
    not the last was synced before the next one was made, so it must have all its records. The last
    segment must have every record that `trust` tells of. A record that must be there and does not
    check out is damage. Later records of the last segment are kept as far as they check out; the
    rest is cut off. A complete segment may end before `following` if its own index agrees: then the
    segment after it is missing altogether. Unlike the original, this never cuts a record that was
    once durable, and a useless index makes the scan start earlier.
    Raises CorruptionError: both files belong to another cluster or release; OSError.
    """
    data_file = _open_data(home, first_transaction_id)
    files = [data_file]
    try:
        if following is None and not trust.index_is_proof and isinstance(data_file, NoFile):
            _refuse_unreadable(home, first_transaction_id)
        index_file, lost_count = _open_index(home, first_transaction_id, data_file)
        files.append(index_file)
        index = IndexFile(index_file, first_transaction_id, header_bytes=SEGMENT_HEADER_BYTES)
        data = DataFile(
            data_file, data_file.size(), index, first_transaction_id, home.partition_id, following
        )
        torn = None
        if following is not None:
            found = _examine_complete(data, following, lost_count or 0)
        else:
            durable_next = _durable_next(home, data, trust, lost_count or 0)
            found = _examine_last(data, trust, durable_next)
            if _may_have_had_more(home, data, found, trust, lost_count):
                lose()
        is_new = lost_count is not None
        if is_new:
            # Only now: until here the next opening judges as this one did, should it not get here.
            index_file.write_at(0, home.header(first_transaction_id, wall_milliseconds))
            index_file.sync()
        if following is None:
            torn = _cut_tail(home, data, found, durable_next, trust)
        record_count = found.next_transaction_id - first_transaction_id
        if following is None or index.count != record_count:
            # Holes in the index keep the places of lost records.
            index.resize(record_count)
        segment = Segment(
            home,
            first_transaction_id,
            data_file,
            index,
            size=found.end,
            record_count=record_count,
            has_lost_end=found.has_lost_end,
        )
        healed = _mend_index(segment, found, is_new=is_new, has_failed=trust.ceiling is not None)
        if following is None:
            index.sync()
    except BaseException:
        for file in files:
            file.close()
        raise
    return Opened(segment, torn, found.damage, healed)


def _floor(trust: Trust) -> int:
    """Return one past the last record that was durable according to facts outside of the
    segment."""
    floor = max(trust.local_low_water_mark + 1, trust.durable_next)
    return floor if trust.ceiling is None else min(floor, trust.ceiling)


def _may_have_had_more(
    home: SegmentHome,
    data: DataFile,
    found: Examination,
    trust: Trust,
    lost_count: int | None,
) -> bool:
    """Whether records may have been durable beyond those found, which is then no torn tail.

    Index entries are not synced with their records, so after a power cut the index tells of the
    least that there was. That is so

    - if it tells of less than is known from elsewhere, and no good record follows the damage;
    - if behind such a lost end lies a good record that the index does not know;
    - if there was no index at all, and the data do not end with a good record.

    Who opens its own log anew knows how many there were: the ceiling. Raises OSError.
    """
    told = data.first_transaction_id + max(data.index.count, lost_count or 0)
    if found.has_lost_end and told < _floor(trust):
        return True
    if trust.ceiling is not None:
        return found.next_transaction_id < trust.ceiling
    if not found.has_lost_end:
        return lost_count == 0 and found.end < data.size
    if not isinstance(data.file, NoFile):
        return may_have_record(data, found.end, found.next_transaction_id)
    with _strange_file(home, data) as strange:
        return strange is not None and may_have_record(
            strange, SEGMENT_HEADER_BYTES, found.next_transaction_id
        )


def _cut_tail(
    home: SegmentHome,
    data: DataFile,
    found: Examination,
    durable_next: TransactionId,
    trust: Trust,
) -> TornTail | None:
    """Cut the bytes after the last record and sync the rest. Raises OSError."""
    if found.has_lost_end or isinstance(data.file, NoFile):
        return None
    cut_bytes = data.size - found.end
    if cut_bytes and not trust.index_is_proof:
        _read_all(data.file, found.end)
    # After a failed sync, also one of the process before this one, the size that is seen need not
    # be the size on disk, nor the content: set both again. A cut record must never come back, for
    # it would be voted for.
    data.file.truncate(found.end)
    if found.next_transaction_id > durable_next and trust.index_is_proof:
        _repeat(data, found, durable_next)
    # Records may be voted for from now on, and those found may be in the system's memory only.
    data.file.sync()
    if not cut_bytes:
        return None
    path = home.path(data.first_transaction_id, DATA_SUFFIX)
    return TornTail(path, found.next_transaction_id, found.end, cut_bytes)


def _read_all(file: File, offset: int) -> None:
    """Raise OSError if a byte from `offset` on cannot be read: a write that was cut short leaves
    nothing unreadable, so these bytes may have been durable."""
    while block := file.read_at(offset, SCAN_BYTES):
        offset += len(block)


def _repeat(data: DataFile, found: Examination, durable_next: TransactionId) -> None:
    """Write the records from `durable_next` on again as they are, and the header if no record is
    known to have been durable: the process before this one may have died of a failed sync, after
    which they are seen but would never reach the disk. Raises OSError."""
    offset = 0
    if durable_next > data.first_transaction_id:
        unknown = found.offsets[max(0, durable_next - found.start) :]
        offset = int(unknown[0]) if len(unknown) else found.end
    while offset < found.end:
        block = data.file.read_at(offset, min(SCAN_BYTES, found.end - offset))
        data.file.write_at(offset, block)
        offset += len(block)


def _mend_index(segment: Segment, found: Examination, *, is_new: bool, has_failed: bool) -> int:
    """Correct the index; return how many of its entries were wrong.

    Raises SegmentFailedError.
    """
    if isinstance(segment.data_file, NoFile):
        return 0
    if has_failed:
        segment.repeat_index(found.start, found.offsets)
    wrong = segment.correct_index(found.start, found.offsets)
    return len(found.offsets) if is_new else wrong


# The two files


def is_unfinished(home: SegmentHome, first_transaction_id: TransactionId) -> bool:
    """Whether the data file was left by a crash in `create_segment`: it has no whole header, and
    the index knows no record. Raises OSError."""
    file = home.disk.open(home.path(first_transaction_id, DATA_SUFFIX))
    try:
        header = file.read_at(0, SEGMENT_HEADER_BYTES + 1)
    finally:
        file.close()
    if len(header) >= SEGMENT_HEADER_BYTES and header != bytes(SEGMENT_HEADER_BYTES):
        return False
    return indexed_count(home, first_transaction_id) == 0


def indexed_count(home: SegmentHome, first_transaction_id: TransactionId) -> int:
    """Return one past the last entry in the index file; 0 if the file is missing or not this
    segment's.

    Raises OSError.
    """
    path = home.path(first_transaction_id, INDEX_SUFFIX)
    if not home.disk.exists(path):
        return 0
    file = home.disk.open(path)
    try:
        if not _has_own_header(home, first_transaction_id, file, path):
            return 0
        index = IndexFile(file, first_transaction_id, header_bytes=SEGMENT_HEADER_BYTES)
        return index.proved_count()
    finally:
        file.close()


def _has_own_header(home: SegmentHome, first: TransactionId, file: File, path: str) -> bool:
    try:
        home.check_header(_read_header(file), first, path)
    except (CorruptionError, OSError):
        return False
    return True


def _read_header(file: File) -> bytes:
    """Return the header. Raises OSError: it cannot be read, at the second attempt either."""
    try:
        return file.read_at(0, SEGMENT_HEADER_BYTES)
    except OSError:
        return file.read_at(0, SEGMENT_HEADER_BYTES)


def _open_data(home: SegmentHome, first: TransactionId) -> File:
    """Return the data file; a NoFile if it does not exist or its header is not this segment's.

    Raises CorruptionError, OSError.
    """
    path = home.path(first, DATA_SUFFIX)
    if not home.disk.exists(path):
        return NoFile(path)
    file = home.disk.open(path)
    try:
        if _has_own_header(home, first, file, path):
            return file
        _refuse_foreign(home, first, file)
    except BaseException:
        file.close()
        raise
    file.close()
    return NoFile(path)


def _refuse_foreign(home: SegmentHome, first: TransactionId, data_file: File) -> None:
    """Raise if both headers name the same other place, or neither can be read: damage does not hit
    two files alike, so this is no damaged segment. The exception is a cluster key that is almost
    ours: keys are random, so another cluster's differs in about half of its bits."""
    index_path = home.path(first, INDEX_SUFFIX)
    if not home.disk.exists(index_path):
        return
    index_file = home.disk.open(index_path)
    try:
        identities = [_identity(file) for file in (data_file, index_file)]
        if identities == [None, None]:
            data_file.read_at(0, SEGMENT_HEADER_BYTES)
        elif identities[0] == identities[1]:
            header = data_file.read_at(0, SEGMENT_HEADER_BYTES)
            if not _is_all_but(header, home.header(first, 0)):
                home.check_header(header, first, home.path(first, DATA_SUFFIX))
    finally:
        index_file.close()


def _is_all_but(header: bytes, own: bytes) -> bool:
    """Whether the header differs from our own only in a few bits of the cluster key."""
    version, _, key, *place = SEGMENT_HEADER.unpack(header)
    own_version, _, own_key, *own_place = SEGMENT_HEADER.unpack(own)
    bits = (int.from_bytes(key) ^ int.from_bytes(own_key)).bit_count()
    return (version, place) == (own_version, own_place) and bits <= KEY_BITS_HIT_MAX


def _refuse_unreadable(home: SegmentHome, first: TransactionId) -> None:
    """Raise OSError if there is a data file whose header cannot be read: nobody knows then whether
    it has records."""
    path = home.path(first, DATA_SUFFIX)
    if not home.disk.exists(path):
        return
    file = home.disk.open(path)
    try:
        _read_header(file)
    finally:
        file.close()


def _identity(file: File) -> bytes | None:
    """Return a file's header without the time of creation; None if there is no header."""
    try:
        header = _read_header(file)
    except OSError:
        return None
    return (
        header[:4] + header[12:40] if len(header) == SEGMENT_HEADER_BYTES and any(header) else None
    )


def _open_index(
    home: SegmentHome, first: TransactionId, data_file: File
) -> tuple[File, int | None]:
    """Return the index file. If it did not exist, or its header was not this segment's, return also
    how many entries it had room for: the header may be this segment's own, damaged, and without
    that number a damaged record would be cut as a torn tail. All entries are zero then, durably,
    and the header is left to be written.

    Raises OSError: also if neither the index nor all data can be read, for then the index may be
    the only evidence of the records.
    """
    path = home.path(first, INDEX_SUFFIX)
    is_missing = not home.disk.exists(path)
    file = home.disk.open(path, create=is_missing)
    if _has_own_header(home, first, file, path):
        return file, None
    try:
        if is_missing:
            home.disk.sync_directory(home.directory)
        size = file.size()
        try:
            _read_header(file)
        except OSError:
            if isinstance(data_file, NoFile):
                raise
            _read_all(data_file, 0)
        for offset in range(SEGMENT_HEADER_BYTES, size, SCAN_BYTES):
            file.write_at(offset, bytes(min(SCAN_BYTES, size - offset)))
        file.sync()
    except BaseException:
        file.close()
        raise
    return file, max(0, size - SEGMENT_HEADER_BYTES) // INDEX_ENTRY_BYTES


# Complete segments


def _examine_complete(data: DataFile, following: TransactionId, lost_count: int) -> Examination:
    first = data.first_transaction_id
    offset = data.indexed_place(TransactionId(following - 1))
    if offset is not None:
        last = TransactionId(following - 1)
        return examine(data, last, offset, durable_next=following, until=following)
    indexed_next = first + min(max(data.index.count, lost_count), following - first)
    start, offset = data.place_before(following)
    found = examine(data, start, offset, durable_next=TransactionId(indexed_next), until=following)
    ends_early = found.has_lost_end or found.end == data.size
    if found.next_transaction_id == first or not ends_early:
        # Nothing tells whether records of this segment are lost or a whole segment after it.
        return examine(data, start, offset, durable_next=following, until=following)
    return found


# The last segment


def _examine_last(data: DataFile, trust: Trust, durable_next: TransactionId) -> Examination:
    start, offset = _start_of_scan(data, trust)
    found = examine(data, start, offset, durable_next=durable_next)
    if not found.has_lost_end and _is_large_record(data, found):
        # The record is no torn tail: another release with a higher bound may have stored it.
        whole = TransactionId(found.next_transaction_id + 1)
        found = examine(data, start, offset, durable_next=whole)
    if trust.ceiling is None or found.next_transaction_id <= max(trust.ceiling, start):
        return found
    ceiling = TransactionId(max(trust.ceiling, start))
    return Examination(
        start,
        found.offsets[: ceiling - start],
        ceiling,
        int(found.offsets[ceiling - start]),
        without(found.damage, ceiling, found.next_transaction_id),
        has_lost_end=False,
    )


def _durable_next(
    home: SegmentHome, data: DataFile, trust: Trust, lost_count: int
) -> TransactionId:
    """Return one past the last record known to have been durable; `lost_count` is the number of
    entries in an index file that had to be made anew. Raises OSError."""
    first, index = data.first_transaction_id, data.index
    proved = max(int(first), trust.local_low_water_mark + 1, trust.durable_next)
    if index.count:
        indexed_last = first + index.count - 1
        proved = max(proved, indexed_last - indexed_last % INDEX_CHECKPOINT_RECORDS)
    if trust.index_is_proof:
        # A hole was once an entry, too.
        proved = max(proved, first + index.count, first + lost_count)
    if isinstance(data.file, NoFile) and not (trust.index_is_proof and index.proved_count()):
        proved = max(proved, _next_in_strange_file(home, data))
    if trust.ceiling is not None:
        proved = max(min(proved, trust.ceiling), int(first))
    return TransactionId(proved)


def _next_in_strange_file(home: SegmentHome, data: DataFile) -> int:
    """Return one past the last record in a data file whose header is not this segment's. Raises
    OSError.

    None of its records is served, but those that look like this segment's count as lost ones.
    """
    with _strange_file(home, data) as strange:
        if strange is None:
            return data.first_transaction_id
        offsets = scan_file(strange, data.first_transaction_id, SEGMENT_HEADER_BYTES)
    return data.first_transaction_id + len(offsets) - 1


@contextmanager
def _strange_file(home: SegmentHome, data: DataFile) -> Iterator[DataFile | None]:
    """Open the data file whose header is not this segment's; None: there is no file. Raises
    OSError."""
    path = home.path(data.first_transaction_id, DATA_SUFFIX)
    if not home.disk.exists(path):
        yield None
        return
    file = home.disk.open(path)
    try:
        yield replace(data, file=file, size=file.size())
    finally:
        file.close()


def _start_of_scan(data: DataFile, trust: Trust) -> tuple[TransactionId, int]:
    """Return a record and its place at which the scan may start: earlier records need no check.

    It is a multiple at which the index was synced. The entry of the multiple itself may be missing
    after a crash; then earlier multiples are tried, further and further apart. With a whole index
    only the newest records are scanned.
    """
    first, index = data.first_transaction_id, data.index
    indexed_last = first + index.count - 1
    is_whole = trust.index_is_proof or indexed_last <= trust.local_low_water_mark
    # After a failure, entries are seen that a sync has dropped: all since the last sync are checked
    # and written again.
    if is_whole and trust.ceiling is None and index.count:
        start = _start_of_newest(data)
        if start is not None and (offset := data.indexed_place(start)) is not None:
            return start, offset
    step = INDEX_SYNC_RECORDS
    start = TransactionId(indexed_last // step * step)
    while start > first:
        offset = data.indexed_place(start)
        if offset is not None:
            return start, offset
        start = TransactionId((start - step) // INDEX_SYNC_RECORDS * INDEX_SYNC_RECORDS)
        step *= 2
    return first, SEGMENT_HEADER_BYTES


def _start_of_newest(data: DataFile) -> TransactionId | None:
    """Return the first of the newest records; None if index entries since the last sync are
    impossible."""
    first, index = data.first_transaction_id, data.index
    indexed_last = first + index.count - 1
    position = max(0, indexed_last // INDEX_SYNC_RECORDS * INDEX_SYNC_RECORDS - first)
    entries = np.trim_zeros(index.entries(position, index.count - position), "b")
    if not len(entries) or not entries[0] >= SEGMENT_HEADER_BYTES or entries[-1] > data.size:
        return None
    lengths = np.diff(entries)
    if (
        len(lengths)
        and not RECORD_OVERHEAD_BYTES <= lengths.min() <= lengths.max() <= RECORD_BYTES_MAX
    ):
        return None
    newest = int(np.searchsorted(entries, entries[-1] - OPEN_CHECK_BYTES))
    return TransactionId(first + position + max(newest, len(entries) - OPEN_CHECK_RECORDS))


def _is_large_record(data: DataFile, found: Examination) -> bool:
    """Whether the last good record is followed by a whole record that is larger than our bound."""
    head = data.read(found.end, RECORD_HEADER.size)
    if len(head) < RECORD_HEADER.size:
        return False
    found_id, _, _, length, _ = RECORD_HEADER.unpack(head)
    room = data.size - found.end - RECORD_OVERHEAD_BYTES
    return bool(found_id == found.next_transaction_id and DATA_BYTES_MAX < length <= room)
