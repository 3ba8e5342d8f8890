"""The records of a data file in order, and the gaps between those that check out.

Owns the reading of files that may change at the same time. The way around a bad record is the
node's own: `examination.py`. Decides nothing about the meaning of a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from waltz.host import Disk, File
from waltz.limits import DATA_BYTES_MAX
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES, RecordBatch, scan_records
from waltz.storage.log.examination import SCAN_BYTES, DataFile, find_good_record
from waltz.storage.log.index_file import IndexFile
from waltz.storage.log.segment import RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES, NoFile
from waltz.types import TransactionId


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records that check out, the first of them at byte `offset` of the file."""

    batch: RecordBatch
    offset: int


@dataclass(frozen=True, slots=True)
class Gap:
    """There is no valid record `first` at byte `offset`; the next valid record is
    `next_transaction_id` at byte `end`, or there is none up to the end of the file."""

    first: TransactionId
    next_transaction_id: TransactionId | None
    offset: int
    end: int
    reason: str


class Snapshot:
    """A file at the size that it had when it was opened; bytes cut off since then read as zeros.

    Implements the reading part of `host.File`.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._size = file.size()

    def size(self) -> int:
        return self._size

    def read_at(self, offset: int, count: int) -> bytes:
        expected = max(0, min(count, self._size - offset))
        return self._file.read_at(offset, expected).ljust(expected, b"\0")

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        raise AssertionError(READ_ONLY)

    def truncate(self, size: int) -> None:
        raise AssertionError(READ_ONLY)

    def preallocate(self, size: int) -> None:
        raise AssertionError(READ_ONLY)

    def sync(self) -> None:
        raise AssertionError(READ_ONLY)

    def close(self) -> None:
        self._file.close()


READ_ONLY: Final = "an inspection changes nothing"


class SegmentView:
    """Both files of a segment, open to read; a missing file reads as empty."""

    def __init__(self, data_file: File, index_file: File, first: TransactionId) -> None:
        self.data_file = data_file
        self.index_file = index_file
        self.index = IndexFile(index_file, first, header_bytes=SEGMENT_HEADER_BYTES)
        self.data = DataFile(data_file, data_file.size(), self.index, first, None)

    @property
    def has_data(self) -> bool:
        return not isinstance(self.data_file, NoFile)

    @property
    def has_index(self) -> bool:
        return not isinstance(self.index_file, NoFile)

    def entries(self, start: int, count: int) -> NDArray[np.int64]:
        """Return up to `count` index entries from the zero-based `start`; fewer at the end."""
        return self.index.entries(start, max(0, min(count, self.index.count - start)))


@contextmanager
def open_view(
    disk: Disk, data_path: str, index_path: str, first: TransactionId
) -> Iterator[SegmentView]:
    """Open both files as they are now, the index first, so that it names no record that the data
    file does not have yet. Raises OSError."""
    index_file = _open(disk, index_path)
    try:
        data_file = _open(disk, data_path)
        try:
            yield SegmentView(data_file, index_file, first)
        finally:
            data_file.close()
    finally:
        index_file.close()


def _open(disk: Disk, path: str) -> File:
    try:
        return Snapshot(disk.open_to_read(path))
    except FileNotFoundError:
        return NoFile(path)


def walk(view: SegmentView) -> Iterator[Run | Gap]:
    """Yield the runs and gaps of a data file. The last one is a gap if and only if the file ends
    with bytes that are no record."""
    data = view.data
    position, transaction_id = SEGMENT_HEADER_BYTES, data.first_transaction_id
    while position < data.size:
        run = read_run(data, transaction_id, position)
        if run is not None:
            yield run
            position += len(run.batch.block)
            transaction_id = run.batch.next_transaction_id
            continue
        reason = describe(data, transaction_id, position)
        last = TransactionId(data.first_transaction_id + view.index.count - 1)
        found = find_good_record(data, transaction_id, position, last=last)
        following, end = found or (None, data.size)
        yield Gap(transaction_id, following, position, end, reason)
        if found is None:
            return
        transaction_id, position = found


def read_run(data: DataFile, transaction_id: TransactionId, position: int) -> Run | None:
    """Return the records from byte `position` on that check out and fit a window, at least one;
    None if the first does not check out."""
    for window in (SCAN_BYTES, RECORD_BYTES_MAX):
        buffer = data.read(position, window)
        offsets = scan_records(buffer, transaction_id)
        if len(offsets) > 1:
            return Run(RecordBatch(transaction_id, buffer[: int(offsets[-1])], offsets), position)
        if len(buffer) < window:
            break
    return None


def describe(data: DataFile, transaction_id: TransactionId, position: int) -> str:
    """Say why there is no valid record at byte `position`."""
    left = data.size - position
    try:
        data.file.read_at(position, min(left, RECORD_HEADER.size))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if left < RECORD_OVERHEAD_BYTES:
        return f"{left} bytes are left, a record takes at least {RECORD_OVERHEAD_BYTES}"
    found_id, _, _, length, _ = RECORD_HEADER.unpack(data.read(position, RECORD_HEADER.size))
    if found_id != transaction_id:
        return f"transaction ID {found_id} where {transaction_id} belongs"
    if not 0 <= length <= DATA_BYTES_MAX:
        return f"data length {length}; expected 0 to {DATA_BYTES_MAX}"
    if length + RECORD_OVERHEAD_BYTES > left:
        return f"a record of {length + RECORD_OVERHEAD_BYTES} bytes of which {left} are here"
    block = data.read(position, length + RECORD_OVERHEAD_BYTES)
    return f"CRC-32 {int.from_bytes(block[-4:], 'big'):08x}, of its bytes {crc32(block[:-4]):08x}"
