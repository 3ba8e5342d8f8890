"""A segment: a data file of records and its index file. Append, read, truncate.

Owns both files' bytes. Knows nothing of sessions or of other segments.

    offset  size  header, the same in both files
         0     4  format version
         4     8  creation time, milliseconds since 1970
        12    16  cluster key
        28     4  partition ID
        32     8  first transaction ID
        40    88  reserved, zero

then, in the data file (.seg), records back to back as `waltz.record` lays them out; in the index
file (.idx), per record the 8-byte offset of its first byte in the data file. Big-endian.

What holds always: an index entry is written only once its record is synced, and only once all
entries for earlier thousands of transaction IDs are.
Source: Waltz Internals, "Segment Data File", "Segment Index File".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz.errors import CorruptionError, SegmentFailedError
from waltz.host import Disk, File
from waltz.limits import DATA_BYTES_MAX, INDEX_CHECKPOINT_RECORDS
from waltz.record import (
    RECORD_OVERHEAD_BYTES,
    RecordBatch,
    batch_from_block,
    empty_batch,
)
from waltz.types import PartitionId, TransactionId

FORMAT_VERSION: Final = 0
SEGMENT_HEADER: Final = struct.Struct(">iq16siq88x")
SEGMENT_HEADER_BYTES: Final = SEGMENT_HEADER.size
INDEX_ENTRY_BYTES: Final = 8
DATA_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".idx"
NAME_DIGITS: Final = 19

RECORD_BYTES_MAX: Final = DATA_BYTES_MAX + RECORD_OVERHEAD_BYTES

assert SEGMENT_HEADER_BYTES == 128


@dataclass(frozen=True, slots=True)
class SegmentHome:
    """Where one partition's segments live, and what their headers must say."""

    disk: Disk
    directory: str
    cluster_key: UUID
    partition_id: PartitionId

    def path(self, first_transaction_id: TransactionId, suffix: str) -> str:
        return f"{self.directory}/{first_transaction_id:0{NAME_DIGITS}d}{suffix}"

    def header(self, first_transaction_id: TransactionId, wall_milliseconds: int) -> bytes:
        return SEGMENT_HEADER.pack(
            FORMAT_VERSION,
            wall_milliseconds,
            self.cluster_key.bytes,
            self.partition_id,
            first_transaction_id,
        )

    def check_header(self, header: bytes, first_transaction_id: TransactionId, path: str) -> int:
        """Return the creation time. Raises CorruptionError, naming what differs."""
        if len(header) < SEGMENT_HEADER_BYTES:
            raise CorruptionError(
                f"{path}: header of {len(header)} bytes; expected {SEGMENT_HEADER_BYTES}"
            )
        version, wall_milliseconds, key, *place = SEGMENT_HEADER.unpack(header)
        if version != FORMAT_VERSION:
            raise CorruptionError(
                f"{path}: format version {version}; this release knows {FORMAT_VERSION}"
            )
        if key != self.cluster_key.bytes:
            raise CorruptionError(
                f"{path}: cluster key {UUID(bytes=key)}; expected {self.cluster_key}"
            )
        if place != [self.partition_id, first_transaction_id]:
            raise CorruptionError(
                f"{path}: partition {place[0]} from transaction {place[1]};"
                f" expected partition {self.partition_id} from {first_transaction_id}"
            )
        assert isinstance(wall_milliseconds, int)
        return wall_milliseconds


class Segment:
    """An open segment. Made by `create_segment` or `open_segment`.

    The first failed write or sync ends all writing to it: a failed sync may leave lost pages marked
    clean, so that a second one would succeed with nothing on disk. What was synced before is still
    read.
    """

    def __init__(
        self,
        first_transaction_id: TransactionId,
        data_path: str,
        data_file: File,
        index_file: File,
        *,
        size: int,
        record_count: int,
    ) -> None:
        self.first_transaction_id = first_transaction_id
        self.next_transaction_id = TransactionId(first_transaction_id + record_count)
        self.size = size
        self.failed = False
        self._data_path = data_path
        self._data_file = data_file
        self._index_file = index_file
        self._indexed_count = record_count
        self._index_is_synced = True
        self._not_indexed: list[NDArray[np.int64]] = []
        """Offsets of the records from `_indexed_count` on."""
        self._synced_next_transaction_id = self.next_transaction_id
        self._synced_size = size

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, which starts at `next_transaction_id`, with one write; `sync` makes it
        durable. Raises SegmentFailedError."""
        self._check_writable()
        assert batch.first_transaction_id == self.next_transaction_id
        try:
            self._data_file.write_at(self.size, batch.block)
        except OSError as error:
            self._fail(f"write of {len(batch)} records", error)
        self._not_indexed.append(batch.offsets[:-1] + self.size)
        self.size += len(batch.block)
        self.next_transaction_id = batch.next_transaction_id

    def sync(self) -> None:
        """Return once all that was written is durable, with at most one sync.

        Raises SegmentFailedError; the segment is then back at what was durable before.
        """
        self._check_writable()
        if self._synced_size == self.size:
            return
        try:
            self._data_file.sync()
        except OSError as error:
            self._fail("sync", error)
        self._synced_size = self.size
        self._synced_next_transaction_id = self.next_transaction_id

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether a multiple of 1000 was synced since the index was."""
        indexed_next = self.first_transaction_id + self._indexed_count
        return not self.failed and (
            indexed_next // INDEX_CHECKPOINT_RECORDS
            < self._synced_next_transaction_id // INDEX_CHECKPOINT_RECORDS
        )

    def checkpoint(self) -> None:
        """Bring the index file up to the data file; durable is what belongs to complete thousands.

        Raises SegmentFailedError.
        """
        self._write_entries()

    def write_index(self) -> None:
        """Bring the index file up to the data file, both durably. Raises SegmentFailedError."""
        self._write_entries()
        if self._index_is_synced:
            return
        try:
            self._index_file.sync()
        except OSError as error:
            self._fail("sync of the index", error)
        self._index_is_synced = True

    def _write_entries(self) -> None:
        self.sync()
        if not self._not_indexed:
            return
        entries = np.concatenate(self._not_indexed).astype(">i8").tobytes()
        start = self.first_transaction_id + self._indexed_count
        thousand = self.next_transaction_id // INDEX_CHECKPOINT_RECORDS * INDEX_CHECKPOINT_RECORDS
        complete = INDEX_ENTRY_BYTES * max(0, thousand - start)
        position = self._index_offset(self._indexed_count)
        try:
            if complete:
                self._index_file.write_at(position, entries[:complete])
                self._index_file.sync()
            if len(entries) > complete:
                self._index_file.write_at(position + complete, entries[complete:])
        except OSError as error:
            self._fail("write of the index", error)
        self._index_is_synced = len(entries) == complete
        self._indexed_count += len(entries) // INDEX_ENTRY_BYTES
        self._not_indexed.clear()

    def read(
        self, first_transaction_id: TransactionId, *, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Return records from `first_transaction_id` on, every one checked: as many as are here,
        fit `count_max` and `bytes_max`, but one at least; empty beyond the end.

        Raises CorruptionError, OSError.
        """
        assert first_transaction_id >= self.first_transaction_id
        count = min(count_max, self.next_transaction_id - first_transaction_id)
        if count <= 0:
            return empty_batch(first_transaction_id)
        offsets = self._offsets(first_transaction_id - self.first_transaction_id, count)
        fitting = np.searchsorted(offsets, offsets[0] + bytes_max, side="right") - 1
        offsets = offsets[: max(1, int(fitting)) + 1]
        block = self._data_file.read_at(int(offsets[0]), int(offsets[-1] - offsets[0]))
        try:
            batch = batch_from_block(block, first_transaction_id)
        except CorruptionError as error:
            raise CorruptionError(f"{self._data_path} from byte {offsets[0]}: {error}") from error
        if not np.array_equal(batch.offsets + offsets[0], offsets):
            raise CorruptionError(
                f"{self._data_path} from byte {offsets[0]}: the index has {len(offsets) - 1}"
                f" records from {first_transaction_id}, the data {len(batch)}"
            )
        return batch

    def truncate(self, last_transaction_id: TransactionId) -> None:
        """Remove every record after `last_transaction_id`, which is here or just before the first.

        The index goes first, so that it never names what is not there.
        Raises SegmentFailedError; CorruptionError if the last record to keep is damaged.
        """
        self.write_index()
        next_transaction_id = TransactionId(last_transaction_id + 1)
        assert self.first_transaction_id <= next_transaction_id <= self.next_transaction_id
        size = SEGMENT_HEADER_BYTES
        count = next_transaction_id - self.first_transaction_id
        if count > 0:
            self.read(last_transaction_id, count_max=1, bytes_max=RECORD_BYTES_MAX)
            size = int(self._offsets(count - 1, 1)[1])
        try:
            self._index_file.truncate(self._index_offset(count))
            self._index_file.sync()
            self._data_file.truncate(size)
            self._data_file.sync()
        except OSError as error:
            self._fail(f"truncation to transaction {last_transaction_id}", error)
        self._indexed_count = count
        self.size = self._synced_size = size
        self.next_transaction_id = self._synced_next_transaction_id = next_transaction_id

    def close(self) -> None:
        """Close the files; what was not synced or not indexed stays so."""
        self._data_file.close()
        self._index_file.close()

    def _offsets(self, start: int, count: int) -> NDArray[np.int64]:
        """The offsets of `count` records from the zero-based `start`, and where the last one ends.

        Raises CorruptionError: they cannot be true.
        """
        end = start + count + 1
        indexed = max(0, min(end, self._indexed_count) - start)
        parts = [np.empty(0, np.int64)]
        if indexed:
            entries = self._index_file.read_at(
                self._index_offset(start), indexed * INDEX_ENTRY_BYTES
            )
            if len(entries) != indexed * INDEX_ENTRY_BYTES:
                raise CorruptionError(
                    f"index of {self._data_path}: {len(entries)} bytes at entry {start};"
                    f" expected {indexed * INDEX_ENTRY_BYTES}"
                )
            parts.append(np.frombuffer(entries, ">i8").astype(np.int64))
        if indexed < count + 1:
            rest = np.concatenate([*self._not_indexed, np.array([self.size], np.int64)])
            skipped = start + indexed - self._indexed_count
            parts.append(rest[skipped : skipped + count + 1 - indexed])
        offsets = np.concatenate(parts)
        assert len(offsets) == count + 1
        lengths = np.diff(offsets)
        if (
            offsets[0] < SEGMENT_HEADER_BYTES
            or offsets[-1] > self.size
            or lengths.min() < RECORD_OVERHEAD_BYTES
            or lengths.max() > RECORD_BYTES_MAX
        ):
            raise CorruptionError(
                f"index of {self._data_path}: impossible offsets for {count} records from"
                f" transaction {self.first_transaction_id + start}"
            )
        return offsets

    def _index_offset(self, count: int) -> int:
        return SEGMENT_HEADER_BYTES + INDEX_ENTRY_BYTES * count

    def _check_writable(self) -> None:
        if self.failed:
            raise SegmentFailedError(f"{self._data_path}: closed by an earlier failure")

    def _fail(self, action: str, error: OSError) -> NoReturn:
        self.failed = True
        # State follows the bytes, never leads them.
        self.size = self._synced_size
        self.next_transaction_id = self._synced_next_transaction_id
        kept = self.next_transaction_id - self.first_transaction_id - self._indexed_count
        if self._not_indexed:
            self._not_indexed = [np.concatenate(self._not_indexed)[:kept]]
        raise SegmentFailedError(f"{self._data_path}: {action} failed: {error}") from error


def create_segment(
    home: SegmentHome, first_transaction_id: TransactionId, wall_milliseconds: int
) -> Segment:
    """Make an empty segment; return once it and its names are durable.

    An index file without data file, left by a crash in here, is taken over. Raises
    SegmentFailedError.
    """
    header = home.header(first_transaction_id, wall_milliseconds)
    data_path = home.path(first_transaction_id, DATA_SUFFIX)
    files: list[File] = []
    try:
        index_file = create_index(home, first_transaction_id, header)
        files.append(index_file)
        data_file = home.disk.open(data_path, create=True)
        files.append(data_file)
        data_file.write_at(0, header)
        data_file.sync()
        home.disk.sync_directory(home.directory)
    except OSError as error:
        for file in files:
            file.close()
        raise SegmentFailedError(f"{data_path}: creation failed: {error}") from error
    return Segment(
        first_transaction_id,
        data_path,
        data_file,
        index_file,
        size=SEGMENT_HEADER_BYTES,
        record_count=0,
    )


def create_index(home: SegmentHome, first_transaction_id: TransactionId, header: bytes) -> File:
    """Make or empty the index file; return once its header is synced, its name is not.

    Raises OSError.
    """
    path = home.path(first_transaction_id, INDEX_SUFFIX)
    try:
        file = home.disk.open(path, create=True)
    except FileExistsError:
        file = home.disk.open(path)
        file.truncate(0)
    file.write_at(0, header)
    file.sync()
    return file
