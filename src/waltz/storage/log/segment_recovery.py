"""Opening a segment: find where its data ends and make its index true.

Owns the judgement between a torn tail, which is cut, and damage, which never is. Knows nothing of
sessions; the marks come as arguments.

An index entry of ours is written after the sync of its record. The original writes it before, yet
none for a transaction ID of a later thousand before everything below that thousand is synced. So
whoever wrote a directory, an index that reaches into a thousand proves that all records below that
thousand were durable; if nobody but this release wrote it since it was last recovered, every entry
proves its record.
Source: Waltz Internals, "Recovery".
"""

from __future__ import annotations

from collections.abc import Callable
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
from waltz.storage.log.examination import SCAN_BYTES, DataFile, Examination, examine, scan_file
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
    create_index,
)
from waltz.types import NOTHING, TransactionId

KEY_BITS_HIT_MAX: Final = 8
"""A cluster key that differs from ours in no more bits is ours."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """What recovery cut off a last segment: bytes that no answer ever rested on."""

    path: str
    next_transaction_id: TransactionId
    offset: int
    cut_bytes: int


@dataclass(frozen=True, slots=True)
class Opened:
    """An open segment, and what was found on the way."""

    segment: Segment
    torn: TornTail | None
    damage: Damage
    indexes_healed: int
    """Index entries that were wrong or missing and did not end the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What is known to have been durable, whatever the files now say."""

    local_low_water_mark: TransactionId
    """All records up to here."""
    index_is_proof: bool
    """All records up to any index entry. False: the index may be the original's."""
    ceiling: TransactionId | None = None
    """Nothing from here on, because of a failure; None: no failure is known."""
    durable_next: TransactionId = NOTHING
    """All records before this one, as was remembered with their damage or with the trace."""
    newest: TransactionId = NOTHING
    """The segment that begins here was there with both its files; NOTHING: no trace was kept."""


def open_segment(
    home: SegmentHome,
    first_transaction_id: TransactionId,
    trust: Trust,
    *,
    following: TransactionId | None,
    wall_milliseconds: int,
    lose: Callable[[], None] = lambda: None,
) -> Opened:
    """Open a segment and make its end and its index true.

    `lose` is called, before anything is changed, if newest records were lost and the index does not
    tell how many there were.

    `following` is the first ID of the next segment, None for the last one. A segment that is not
    the last was synced before the next one was made, so all of it must be there. In the last one
    every record must be there that `trust` tells of. What must be there and does not check out is
    damage; what follows in the last segment is kept as far as it checks out and is cut from there.
    A complete segment may end before `following`, if its own index agrees: then one after it is
    missing altogether. Unlike the original's, this never cuts a record that was once durable, and a
    useless index makes the scan start earlier.
    Raises CorruptionError: both files are those of another cluster or release; OSError.
    """
    data_file = _open_data(home, first_transaction_id)
    files = [data_file]
    try:
        if following is None and not trust.index_is_proof and isinstance(data_file, NoFile):
            _refuse_unreadable(home, first_transaction_id)
        index_file, lost_count = _open_index(
            home, first_transaction_id, wall_milliseconds, data_file
        )
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
            told = first_transaction_id + max(index.count, lost_count or 0)
            if found.has_lost_end and told < _floor(trust):
                lose()
            torn = _cut_tail(home, data, found, durable_next, trust)
        record_count = found.next_transaction_id - first_transaction_id
        if following is None or index.count != record_count:
            # Where records are lost, holes in the index keep their place.
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
        is_new = lost_count is not None
        healed = _mend_index(segment, found, is_new=is_new, has_failed=trust.ceiling is not None)
        if following is None:
            index.sync()
    except BaseException:
        for file in files:
            file.close()
        raise
    return Opened(segment, torn, found.damage, healed)


def _floor(trust: Trust) -> int:
    """One past the last record that was durable by what stands outside of the segment."""
    floor = max(trust.local_low_water_mark + 1, trust.durable_next)
    return floor if trust.ceiling is None else min(floor, trust.ceiling)


def _cut_tail(
    home: SegmentHome,
    data: DataFile,
    found: Examination,
    durable_next: TransactionId,
    trust: Trust,
) -> TornTail | None:
    """Cut what follows the last record, and have durable what is left. Raises OSError."""
    if found.has_lost_end or isinstance(data.file, NoFile):
        return None
    cut_bytes = data.size - found.end
    if cut_bytes and not trust.index_is_proof:
        _read_all(data.file, found.end)
    # After a failed sync, also of the process before this one, what is seen, the size included,
    # need not be on disk: say it again. A record that comes back would be voted for.
    data.file.truncate(found.end)
    if found.next_transaction_id > durable_next and trust.index_is_proof:
        _repeat(data, found, durable_next)
    # Found in the system's memory is not on disk yet, and may be voted for from now on.
    data.file.sync()
    if not cut_bytes:
        return None
    path = home.path(data.first_transaction_id, DATA_SUFFIX)
    return TornTail(path, found.next_transaction_id, found.end, cut_bytes)


def _read_all(file: File, offset: int) -> None:
    """Raise OSError if something from byte `offset` on cannot be read: a write cut short leaves
    nothing unreadable, so what is there may have been durable."""
    while block := file.read_at(offset, SCAN_BYTES):
        offset += len(block)


def _repeat(data: DataFile, found: Examination, durable_next: TransactionId) -> None:
    """Write the records from `durable_next` on as they are, and the header if none is known to have
    been durable: the process before this one may have died of a failed sync, and then they are seen
    but would never be written. Raises OSError."""
    offset = 0
    if durable_next > data.first_transaction_id:
        unknown = found.offsets[max(0, durable_next - found.start) :]
        offset = int(unknown[0]) if len(unknown) else found.end
    while offset < found.end:
        block = data.file.read_at(offset, min(SCAN_BYTES, found.end - offset))
        data.file.write_at(offset, block)
        offset += len(block)


def _mend_index(segment: Segment, found: Examination, *, is_new: bool, has_failed: bool) -> int:
    """Make the index say what was found; return how many entries of those that it had were wrong.

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
    """Whether the data file is what a crash in `create_segment` leaves: no whole header, and no
    record that the index knows of. Raises OSError."""
    file = home.disk.open(home.path(first_transaction_id, DATA_SUFFIX))
    try:
        header = file.read_at(0, SEGMENT_HEADER_BYTES + 1)
    finally:
        file.close()
    if len(header) >= SEGMENT_HEADER_BYTES and header != bytes(SEGMENT_HEADER_BYTES):
        return False
    return indexed_count(home, first_transaction_id) == 0


def indexed_count(home: SegmentHome, first_transaction_id: TransactionId) -> int:
    """One past the last entry in the index file; 0 if it is missing or not this segment's.

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
    """Raises OSError: it cannot be read, and not the second time either."""
    try:
        return file.read_at(0, SEGMENT_HEADER_BYTES)
    except OSError:
        return file.read_at(0, SEGMENT_HEADER_BYTES)


def _open_data(home: SegmentHome, first: TransactionId) -> File:
    """Return the data file; a NoFile if there is none or if its header is not this segment's.

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
    """Raise if both files say that they belong elsewhere, or neither can be read: two files do not
    err alike, so this is no damage of a segment. Only a cluster key that is all but ours is: keys
    are random, so that another cluster's differs in half of its bits."""
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
    """Whether only the cluster key is not our own's, and that in a few bits."""
    version, _, key, *place = SEGMENT_HEADER.unpack(header)
    own_version, _, own_key, *own_place = SEGMENT_HEADER.unpack(own)
    bits = (int.from_bytes(key) ^ int.from_bytes(own_key)).bit_count()
    return (version, place) == (own_version, own_place) and bits <= KEY_BITS_HIT_MAX


def _refuse_unreadable(home: SegmentHome, first: TransactionId) -> None:
    """Raise OSError if there is a data file whose header cannot be read: nobody knows then whether
    there is something in it."""
    path = home.path(first, DATA_SUFFIX)
    if not home.disk.exists(path):
        return
    file = home.disk.open(path)
    try:
        _read_header(file)
    finally:
        file.close()


def _identity(file: File) -> bytes | None:
    """What a header says of its file, but for the time of creation; None if there is no header."""
    try:
        header = _read_header(file)
    except OSError:
        return None
    return (
        header[:4] + header[12:40] if len(header) == SEGMENT_HEADER_BYTES and any(header) else None
    )


def _open_index(
    home: SegmentHome, first: TransactionId, wall_milliseconds: int, data_file: File
) -> tuple[File, int | None]:
    """Return the index file; if it had to be made anew, because there was none or its header was
    not this segment's, also for how many entries it had room: a header that tells of another
    segment may be this one's that was hit, and a damaged record would then be cut as a torn tail.

    Raises OSError: also if neither it nor all data can be read, for then it may be all that tells
    which records there were.
    """
    path = home.path(first, INDEX_SUFFIX)
    lost_count = 0
    if home.disk.exists(path):
        file = home.disk.open(path)
        if _has_own_header(home, first, file, path):
            return file, None
        try:
            lost_count = max(0, file.size() - SEGMENT_HEADER_BYTES) // INDEX_ENTRY_BYTES
            _read_header(file)
        except OSError:
            if isinstance(data_file, NoFile):
                raise
            _read_all(data_file, 0)
        finally:
            file.close()
    file = create_index(home, first, home.header(first, wall_milliseconds))
    home.disk.sync_directory(home.directory)
    return file, lost_count


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
        # Nothing tells whether its own records are lost or those of a segment after it.
        return examine(data, start, offset, durable_next=following, until=following)
    return found


# The last segment


def _examine_last(data: DataFile, trust: Trust, durable_next: TransactionId) -> Examination:
    start, offset = _start_of_scan(data, trust)
    found = examine(data, start, offset, durable_next=durable_next)
    if not found.has_lost_end and _is_large_record(data, found):
        # It is no torn tail, and another release may have been asked to keep it.
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
    """One past the last record that is known to have been durable; `lost_count` is that of entries
    in an index file that is no more. Raises OSError."""
    first, index = data.first_transaction_id, data.index
    proved = max(int(first), trust.local_low_water_mark + 1, trust.durable_next)
    if index.count:
        indexed_last = first + index.count - 1
        proved = max(proved, indexed_last - indexed_last % INDEX_CHECKPOINT_RECORDS)
    if trust.index_is_proof:
        # An entry that is a hole was written, too.
        proved = max(proved, first + index.count, first + lost_count)
    if isinstance(data.file, NoFile) and not (trust.index_is_proof and index.proved_count()):
        proved = max(proved, _next_in_strange_file(home, data))
    if trust.ceiling is not None:
        proved = max(min(proved, trust.ceiling), int(first))
    return TransactionId(proved)


def _next_in_strange_file(home: SegmentHome, data: DataFile) -> int:
    """One past the last record in a data file whose header is not this segment's. Raises OSError.

    Nothing of it is believed, but what looks like the records that belong here is not nothing.
    """
    path = home.path(data.first_transaction_id, DATA_SUFFIX)
    if not home.disk.exists(path):
        return data.first_transaction_id
    file = home.disk.open(path)
    try:
        strange = replace(data, file=file, size=file.size())
        offsets = scan_file(strange, data.first_transaction_id, SEGMENT_HEADER_BYTES)
    finally:
        file.close()
    return data.first_transaction_id + len(offsets) - 1


def _start_of_scan(data: DataFile, trust: Trust) -> tuple[TransactionId, int]:
    """Where a scan may start: what lies before the place needs no other look.

    That is a multiple at which the index was synced. The entry at the multiple itself may be
    missing after a crash, so there are earlier places to fall back to, further and further apart.
    Where the index is whole, only the newest records are looked at.
    """
    first, index = data.first_transaction_id, data.index
    indexed_last = first + index.count - 1
    is_whole = trust.index_is_proof or indexed_last <= trust.local_low_water_mark
    # After a failure entries are seen that a sync has dropped: all since the last sync are told
    # again.
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
    """The first of the newest records; None if entries since the last sync are impossible."""
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
    """Whether what looks like a whole record beyond our bound follows the last good one."""
    head = data.read(found.end, RECORD_HEADER.size)
    if len(head) < RECORD_HEADER.size:
        return False
    found_id, _, _, length, _ = RECORD_HEADER.unpack(head)
    room = data.size - found.end - RECORD_OVERHEAD_BYTES
    return bool(found_id == found.next_transaction_id and DATA_BYTES_MAX < length <= room)
