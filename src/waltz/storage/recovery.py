"""Opening a segment: find where its data ends and make its index true.

Owns the judgement between a torn tail, which is cut, and damage, which never is. Knows nothing of
sessions; the marks come as arguments.

The original writes an index entry before its record, yet none for a transaction ID of a later
thousand before everything below that thousand is synced; ours writes entries after the sync. So
whoever wrote a directory, an index that reaches into a thousand proves that all records below that
thousand were durable.
Source: Waltz Internals, "Recovery".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz.errors import CorruptionError
from waltz.host import File
from waltz.limits import DATA_BYTES_MAX, INDEX_CHECKPOINT_RECORDS
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES, scan_records
from waltz.storage.segment import (
    DATA_SUFFIX,
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    RECORD_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHome,
    create_index,
)
from waltz.types import TransactionId

SCAN_BYTES: Final = 4 * 1024 * 1024
"""Read at a time when a data file is scanned."""


@dataclass(frozen=True, slots=True)
class TornTail:
    """What recovery cut off a last segment: bytes that no answer ever rested on."""

    path: str
    next_transaction_id: TransactionId
    offset: int
    cut_bytes: int


def is_unfinished(home: SegmentHome, first_transaction_id: TransactionId) -> bool:
    """Whether the data file is what a crash in `create_segment` leaves: no whole header, no record.

    Raises OSError.
    """
    file = home.disk.open(home.path(first_transaction_id, DATA_SUFFIX))
    try:
        header = file.read_at(0, SEGMENT_HEADER_BYTES + 1)
    finally:
        file.close()
    return len(header) < SEGMENT_HEADER_BYTES or header == bytes(SEGMENT_HEADER_BYTES)


def open_segment(
    home: SegmentHome,
    first_transaction_id: TransactionId,
    *,
    local_low_water_mark: TransactionId,
    following: TransactionId | None,
    ceiling: TransactionId | None = None,
) -> tuple[Segment, TornTail | None]:
    """Open a segment and make its end and its index true; return it and what had to be cut.

    `following` is the first ID of the next segment, None for the last one. A segment that is not
    the last was synced before the next one was made, so all of it must be there. In the last one
    every record must be there up to the local low-water mark and to the last thousand that the
    index reaches into; what follows them is kept as far as it checks out and is below `ceiling`.
    Raises CorruptionError, and then nothing was changed; OSError.
    Unlike the original's, this never cuts a record that was once durable, and a useless index entry
    makes the scan start earlier.
    """
    data_path = home.path(first_transaction_id, DATA_SUFFIX)
    data_file = home.disk.open(data_path)
    files = [data_file]
    try:
        header = data_file.read_at(0, SEGMENT_HEADER_BYTES)
        wall_milliseconds = home.check_header(header, first_transaction_id, data_path)
        index_file = _open_index(home, first_transaction_id)
        files += [index_file] if index_file else []
        recovery = _recover(
            data_path,
            data_file,
            index_file,
            first_transaction_id,
            local_low_water_mark=local_low_water_mark,
            following=following,
            ceiling=ceiling,
        )
        # After a failed sync what is seen, the size included, need not be on disk: say it again.
        has_to_cut = recovery.cut_bytes > 0 or ceiling is not None
        if has_to_cut:
            data_file.truncate(recovery.size)
        if recovery.next_transaction_id > recovery.trusted_next or has_to_cut:
            # Found in the system's memory is not on disk yet, and may be voted for from now on.
            data_file.sync()
        if index_file is None:
            index_file = create_index(
                home, first_transaction_id, home.header(first_transaction_id, wall_milliseconds)
            )
            files.append(index_file)
            home.disk.sync_directory(home.directory)
        _repair_index(index_file, first_transaction_id, recovery.scan_start, recovery.offsets)
    except BaseException:
        for file in files:
            file.close()
        raise
    segment = Segment(
        first_transaction_id,
        data_path,
        data_file,
        index_file,
        size=recovery.size,
        record_count=recovery.next_transaction_id - first_transaction_id,
    )
    torn = TornTail(data_path, recovery.next_transaction_id, recovery.size, recovery.cut_bytes)
    return segment, torn if recovery.cut_bytes else None


def _open_index(home: SegmentHome, first_transaction_id: TransactionId) -> File | None:
    """Return the index file; None if there is none, or nothing in it yet. It can be rebuilt."""
    path = home.path(first_transaction_id, INDEX_SUFFIX)
    if not home.disk.exists(path):
        return None
    file = home.disk.open(path)
    try:
        header = file.read_at(0, SEGMENT_HEADER_BYTES)
        if len(header) < SEGMENT_HEADER_BYTES or not any(header):
            file.close()
            return None
        home.check_header(header, first_transaction_id, path)
    except BaseException:
        file.close()
        raise
    return file


@dataclass(frozen=True, slots=True)
class _Recovery:
    """What a data file holds. `offsets` are those from the zero-based record `scan_start` on."""

    scan_start: int
    offsets: NDArray[np.int64]
    size: int
    next_transaction_id: TransactionId
    trusted_next: int
    cut_bytes: int


def _recover(
    path: str,
    data_file: File,
    index_file: File | None,
    first: TransactionId,
    *,
    local_low_water_mark: TransactionId,
    following: TransactionId | None,
    ceiling: TransactionId | None,
) -> _Recovery:
    """Find the end of the data, changing nothing. Raises CorruptionError, OSError."""
    file_size = data_file.size()
    indexed_count = 0
    if index_file is not None:
        indexed_count = max(0, index_file.size() - SEGMENT_HEADER_BYTES) // INDEX_ENTRY_BYTES
    indexed_last = first + indexed_count - 1
    checkpoint = indexed_last - indexed_last % INDEX_CHECKPOINT_RECORDS if indexed_count else 0
    trusted_next = following or max(local_low_water_mark + 1, checkpoint, int(first))
    all_trusted = indexed_last < trusted_next
    for start in _scan_starts(first, indexed_last, all_trusted, local_low_water_mark):
        offset = _valid_offset(data_file, index_file, first, start, file_size)
        if offset is not None:
            break
    else:
        start, offset = first, SEGMENT_HEADER_BYTES
    found = scan_file(data_file, start, offset, file_size)
    next_transaction_id = TransactionId(start + len(found) - 1)
    end = int(found[-1])
    if next_transaction_id < trusted_next:
        raise CorruptionError(
            f"{path}: record {next_transaction_id} does not check out at byte {end} of {file_size},"
            f" but all before {trusted_next} were durable"
        )
    if following is not None and (next_transaction_id, end) != (following, file_size):
        raise CorruptionError(
            f"{path}: a complete segment ends with record {next_transaction_id - 1} at byte {end}"
            f" of {file_size}; expected record {following - 1} at the end"
        )
    _refuse_large_record(path, data_file, next_transaction_id, end, file_size)
    if ceiling is not None and next_transaction_id > max(ceiling, start):
        next_transaction_id = TransactionId(max(ceiling, start))
        found = found[: next_transaction_id - start + 1]
        end = int(found[-1])
    return _Recovery(
        scan_start=start - first,
        offsets=found[:-1],
        size=end,
        next_transaction_id=next_transaction_id,
        trusted_next=trusted_next,
        cut_bytes=file_size - end,
    )


def _scan_starts(
    first: TransactionId, indexed_last: int, all_trusted: bool, local_low_water_mark: TransactionId
) -> Iterator[TransactionId]:
    """Where a scan may start, best first: what lies before the place needs no other look.

    The index entry at a checkpoint may be missing after a crash although the file is longer, for it
    is written after that checkpoint's sync; so there are earlier places to fall back to, further
    and further apart.
    """
    if all_trusted and indexed_last > first:
        yield TransactionId(indexed_last)
    step = INDEX_CHECKPOINT_RECORDS
    start = max((indexed_last - 1) // step * step, min(local_low_water_mark, indexed_last))
    while start > first:
        yield TransactionId(start)
        start = (start - step) // INDEX_CHECKPOINT_RECORDS * INDEX_CHECKPOINT_RECORDS
        step *= 2


def _valid_offset(
    data_file: File, index_file: File | None, first: TransactionId, start: int, file_size: int
) -> int | None:
    """Where the index has record `start`, if a valid record with that ID lies there."""
    if index_file is None:
        return None
    entry = index_file.read_at(
        SEGMENT_HEADER_BYTES + INDEX_ENTRY_BYTES * (start - first), INDEX_ENTRY_BYTES
    )
    offset = int.from_bytes(entry, "big", signed=True)
    if not SEGMENT_HEADER_BYTES <= offset <= file_size - RECORD_OVERHEAD_BYTES:
        return None
    head = data_file.read_at(offset, RECORD_HEADER.size)
    if len(head) < RECORD_HEADER.size:
        return None
    length = RECORD_HEADER.unpack(head)[3]
    if not 0 <= length <= DATA_BYTES_MAX:
        return None
    block = data_file.read_at(offset, length + RECORD_OVERHEAD_BYTES)
    return offset if len(scan_records(block, TransactionId(start))) == 2 else None


def scan_file(
    file: File, first_transaction_id: TransactionId, start: int, size: int
) -> NDArray[np.int64]:
    """Return the offsets of the valid records from byte `start` on, and where the last one ends.

    Raises OSError.
    """
    parts: list[NDArray[np.int64]] = []
    position, transaction_id = start, int(first_transaction_id)
    window = SCAN_BYTES
    while position < size:
        buffer = file.read_at(position, min(window, size - position))
        offsets = scan_records(buffer, TransactionId(transaction_id))
        count = len(offsets) - 1
        if count:
            parts.append(offsets[:-1] + position)
            position += int(offsets[-1])
            transaction_id += count
            window = SCAN_BYTES
        elif position + len(buffer) >= size or window >= RECORD_BYTES_MAX:
            break
        else:
            window = RECORD_BYTES_MAX
    return np.concatenate([*parts, np.array([position], np.int64)])


def _refuse_large_record(
    path: str, file: File, transaction_id: TransactionId, offset: int, size: int
) -> None:
    """Raise CorruptionError for what looks like a whole record beyond our bound: it is no torn
    tail, and another release may have been asked to keep it."""
    head = file.read_at(offset, RECORD_HEADER.size)
    if len(head) < RECORD_HEADER.size:
        return
    found_id, _, _, length, _ = RECORD_HEADER.unpack(head)
    if found_id == transaction_id and DATA_BYTES_MAX < length <= (
        size - offset - RECORD_OVERHEAD_BYTES
    ):
        raise CorruptionError(
            f"{path}: record {transaction_id} at byte {offset} has {length} bytes of data;"
            f" this release takes {DATA_BYTES_MAX}"
        )


def _repair_index(
    index_file: File, first: TransactionId, start: int, offsets: NDArray[np.int64]
) -> None:
    """Make the index end with `offsets`, which belong at the zero-based entry `start`."""
    entries = offsets.astype(">i8").tobytes()
    position = SEGMENT_HEADER_BYTES + INDEX_ENTRY_BYTES * start
    size = position + len(entries)
    if index_file.size() == size and index_file.read_at(position, len(entries)) == entries:
        return
    if index_file.size() > position:
        index_file.truncate(position)
    header = index_file.read_at(0, SEGMENT_HEADER_BYTES)
    next_start = (first + start + len(offsets) - 2) // INDEX_CHECKPOINT_RECORDS
    is_long = next_start * INDEX_CHECKPOINT_RECORDS > first + start
    if is_long:
        # A crash may leave holes that the next opening would not look at: until all entries are
        # synced, the index counts as missing.
        index_file.write_at(0, bytes(SEGMENT_HEADER_BYTES))
        index_file.sync()
    index_file.write_at(position, entries)
    index_file.sync()
    if is_long:
        index_file.write_at(0, header)
        index_file.sync()
