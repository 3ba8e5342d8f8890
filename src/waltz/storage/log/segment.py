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

Always true: the index entries of records are written right after the sync of these records, before
any answer tells of it. So an index entry proves that its record was durable.
Source: Waltz Internals, "Segment Data File", "Segment Index File".
"""

from __future__ import annotations

import errno
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NoReturn
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz.errors import CorruptionError, SegmentFailedError, UnavailableError
from waltz.host import Disk, File
from waltz.limits import DATA_BYTES_MAX, INDEX_SYNC_BYTES, SEGMENT_BYTES_THRESHOLD
from waltz.record import (
    RECORD_OVERHEAD_BYTES,
    RecordBatch,
    batch_from_block,
    empty_batch,
)
from waltz.storage.directory.space import is_no_space
from waltz.storage.log.index_file import ENTRY, ENTRY_BYTES, IndexFile, index_entries
from waltz.storage.log.preallocation import Preallocation, data_bytes_ahead
from waltz.types import PartitionId, TransactionId

FORMAT_VERSION: Final = 0
SEGMENT_HEADER: Final = struct.Struct(">iq16siq88x")
SEGMENT_HEADER_BYTES: Final = SEGMENT_HEADER.size
INDEX_ENTRY_BYTES: Final = ENTRY_BYTES
DATA_SUFFIX: Final = ".seg"
INDEX_SUFFIX: Final = ".idx"
JOURNAL_SUFFIX: Final = ".jnl"
NAME_DIGITS: Final = 19


PARTITION_PLACE: Final = 16
"""The byte of a record at which the partition ID of its request ID begins, 4 bytes long."""

CHECKSUM_BYTES: Final = 4
"""Bytes of the checksum at the end of a record."""

SET_ASIDE_SUFFIX: Final = ".damaged"
"""The ending that a data file with foreign content gets when a new one takes its place."""

RECORD_BYTES_MAX: Final = DATA_BYTES_MAX + RECORD_OVERHEAD_BYTES

assert SEGMENT_HEADER_BYTES == 128


@dataclass(frozen=True, slots=True)
class SegmentHome:
    """The place of one partition's segments, and what their headers must say."""

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


def first_stranger(
    block: bytes, offsets: NDArray[np.int64], partition_id: PartitionId
) -> int | None:
    """Return the index of the first of the records at `offsets` whose request ID names another
    partition; None if there is none. The last offset is the end of the last record."""
    if offsets.size == 2:
        place = int(offsets[0]) + PARTITION_PLACE
        found = int.from_bytes(block[place : place + 4], "big", signed=True)
        return None if found == partition_id else 0
    if offsets.size < 2:
        return None
    # A number at every byte: one copy takes those of all records.
    everywhere: NDArray[np.int32] = np.ndarray((len(block) - 3,), ">i4", block, 0, (1,))
    strangers = np.flatnonzero(everywhere[offsets[:-1] + PARTITION_PLACE] != partition_id)
    return int(strangers[0]) if len(strangers) else None


class NoFile:
    """Stands for a data file that does not exist or is not this segment's: it is empty, and nothing
    can be written. Implements `host.File`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def size(self) -> int:
        return 0

    def read_at(self, offset: int, count: int) -> bytes:
        return b""

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._refuse()

    def truncate(self, size: int) -> None:
        self._refuse()

    def preallocate(self, size: int) -> None:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def close(self) -> None:
        """Nothing is open."""

    def _refuse(self) -> NoReturn:
        raise OSError(errno.ENOENT, "the data file is lost", self._path)


class Segment:
    """An open segment. Made by `create_segment` or `open_segment`.

    The first failed write or sync ends all writing to it: a failed sync may leave lost pages marked
    clean, so that a second sync would succeed with nothing on disk. Records synced before are still
    read.
    """

    def __init__(
        self,
        home: SegmentHome,
        first_transaction_id: TransactionId,
        data_file: File,
        index: IndexFile,
        *,
        size: int,
        record_count: int,
        has_lost_end: bool = False,
    ) -> None:
        self.first_transaction_id = first_transaction_id
        self.next_transaction_id = TransactionId(first_transaction_id + record_count)
        self.size = size
        """The byte where the last record ends; with a lost end, where the last good record ends."""
        self.has_lost_end = has_lost_end
        """Whether the newest records are damaged and it is unknown where they ended: nothing can be
        appended."""
        self.failed = False
        self.partition_id = home.partition_id
        self.data_path = home.path(first_transaction_id, DATA_SUFFIX)
        self.index = index
        self.data_file = data_file
        self._preallocation = Preallocation(data_file)
        self._indexed_count = index.count
        self._not_indexed: list[bytes] = []
        """The entries of the records from `_indexed_count` on, which are not written yet."""
        self.durable_next = self.next_transaction_id
        """One past the last record that is synced."""
        self.durable_size = size
        """The byte where the last synced record ends."""
        self._bytes_to_index = 0
        """Bytes synced in the data file since the last sync of the index."""

    # Appending

    def write(self, batch: RecordBatch, *, threshold: int = SEGMENT_BYTES_THRESHOLD) -> None:
        """Write `batch`, which starts at `next_transaction_id`, with one write; `sync` makes it
        durable. Nothing is reserved ahead beyond `threshold` bytes.

        Raises SegmentFailedError; UnavailableError: no space, and then nothing was written.
        """
        if self.failed:
            raise self._closed()
        assert batch.first_transaction_id == self.next_transaction_id
        assert not self.has_lost_end
        start, count = self.size, batch.count
        end = start + len(batch.block)
        following = TransactionId(self.next_transaction_id + count)
        needed = following - self.first_transaction_id
        if end > self._preallocation.end or needed > self.index.reserved_count:
            self._reserve(count, needed, end, threshold)
        try:
            self.data_file.write_at(start, batch.block)
        except OSError as error:
            self._fail(f"write of {count} records", error)
        # Most drains are of one record, for which an array would cost more than the write.
        self._not_indexed.append(
            ENTRY.pack(start) if count == 1 else index_entries(batch.offsets[:-1] + start)
        )
        self.size = end
        self.next_transaction_id = following

    def sync(self) -> None:
        """Return once everything written is durable. That takes one sync, and now and then a second
        one, for the index.

        Raises SegmentFailedError; the segment is then back at its last durable record.
        """
        if self.failed:
            raise self._closed()
        if self.durable_size == self.size:
            return
        try:
            self.data_file.sync()
        except OSError as error:
            self._fail("sync", error)
        self._bytes_to_index += self.size - self.durable_size
        self.durable_size = self.size
        self.durable_next = self.next_transaction_id
        try:
            self.index.write(self._indexed_count, b"".join(self._not_indexed))
            if self._bytes_to_index >= INDEX_SYNC_BYTES:
                self.index.sync()
        except OSError as error:
            self._fail("write of the index", error)
        if self.index.is_synced:
            self._bytes_to_index = 0
        self._indexed_count = self.durable_next - self.first_transaction_id
        self._not_indexed = []

    def write_index(self) -> None:
        """Return once data and index are durable. Raises SegmentFailedError."""
        self.sync()
        try:
            self.index.sync()
        except OSError as error:
            self._fail("sync of the index", error)

    def give_back(self) -> None:
        """Release the space reserved ahead. Raises SegmentFailedError."""
        try:
            if not self.has_lost_end:
                self._preallocation.give_back(self.size)
            self.index.give_back()
        except OSError as error:
            self._fail("giving back of reserved space", error)

    # Reading

    def read(
        self, first_transaction_id: TransactionId, *, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Return records from `first_transaction_id` on, each one checked: at least one, at most
        `count_max`, and no more than `bytes_max` bytes unless the first is larger; empty beyond the
        end.

        Raises CorruptionError, OSError.
        """
        assert first_transaction_id >= self.first_transaction_id
        count = min(count_max, self.next_transaction_id - first_transaction_id)
        if count <= 0:
            return empty_batch(first_transaction_id)
        # No more index entries are read than records may fit.
        count = min(count, bytes_max // RECORD_OVERHEAD_BYTES + 1)
        offsets = self._offsets(first_transaction_id - self.first_transaction_id, count)
        fitting = np.searchsorted(offsets, offsets[0] + bytes_max, side="right") - 1
        offsets = offsets[: max(1, int(fitting)) + 1]
        block = self.data_file.read_at(int(offsets[0]), int(offsets[-1] - offsets[0]))
        batch = RecordBatch(first_transaction_id, block, offsets - offsets[0])
        if batch.fault(with_data=False) is not None:
            _tell_fault(self.data_path, batch, int(offsets[0]))
        stranger = first_stranger(block, batch.offsets, self.partition_id)
        if stranger is not None:
            raise CorruptionError(
                f"{self.data_path} from byte {offsets[0]}: record {first_transaction_id + stranger}"
                " is of another partition"
            )
        return batch

    def checksum(self, transaction_id: TransactionId) -> int:
        """Return the last four bytes of the record, which is here: its checksum, unless it is
        damaged. Raises CorruptionError, OSError."""
        end = int(self._offsets(transaction_id - self.first_transaction_id, 1)[1])
        return int.from_bytes(self.data_file.read_at(end - CHECKSUM_BYTES, CHECKSUM_BYTES))

    # Cutting and mending

    def truncate(self, last_transaction_id: TransactionId) -> None:
        """Remove every record after `last_transaction_id`, which is here or just before the first.

        The index is cut first, so that it never names records that are not there.
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
        failure: OSError | None = None
        try:
            self.index.resize(count)
            self._preallocation.truncate(size)
            self.data_file.sync()
        except OSError as error:
            failure = error
        # Even if nobody knows how much of this is on disk, what was to be cut is not read any more.
        self._indexed_count = count
        self.size = self.durable_size = size
        self.next_transaction_id = self.durable_next = next_transaction_id
        self.has_lost_end = False
        if failure is not None:
            self._fail(f"truncation to transaction {last_transaction_id}", failure)

    def correct_index(self, start: TransactionId, offsets: NDArray[np.int64]) -> int:
        """Replace the entries of the records from `start` on by `offsets`, durably; where an offset
        is 0, which means unknown, the entry stays. Return how many existing entries were wrong.

        Raises SegmentFailedError.
        """
        position = start - self.first_transaction_id
        entries = self.index.entries(position, len(offsets))
        wrong = np.flatnonzero((offsets > 0) & (offsets != entries))
        healed = int(np.count_nonzero(wrong + position < self.index.count))
        if len(wrong) and not self.failed:
            begin, end = int(wrong[0]), int(wrong[-1]) + 1
            right = np.where(offsets > 0, offsets, entries)
            self._put_entries(position + begin, right[begin:end])
        return healed

    def repeat_index(self, start: TransactionId, offsets: NDArray[np.int64]) -> None:
        """Write the entries from `start` on again, as `offsets` where these are known, for a failed
        sync may have dropped entries unseen. Raises SegmentFailedError."""
        position = start - self.first_transaction_id
        entries = self.index.entries(position, len(offsets))
        self._put_entries(position, np.where(offsets > 0, offsets, entries))

    def _put_entries(self, position: int, entries: NDArray[np.int64]) -> None:
        try:
            self.index.put(position, entries)
        except OSError as error:
            self._fail("correction of the index", error)
        self._indexed_count = max(self._indexed_count, position + len(entries))

    def regain_end(self, size: int) -> None:
        """Note that the records of a lost end are good after all; the last ends at byte `size`."""
        assert self.has_lost_end
        self.size = self.durable_size = size
        self.has_lost_end = False

    def overwrite(self, batch: RecordBatch, offset: int, *, at_lost_end: bool) -> None:
        """Write `batch` where its records belong, at byte `offset`, durably, and read it back. At a
        lost end nothing is known to follow the batch; if it has the last record, the end is known
        again.

        Raises SegmentFailedError; UnavailableError: no space, and then nothing was written.
        """
        if self.failed:
            raise self._closed()
        end = offset + len(batch.block)
        has_next = batch.next_transaction_id < self.next_transaction_id
        # Where the next record starts is known now, good or not.
        places = (batch.offsets if has_next else batch.offsets[:-1]) + offset
        position = batch.first_transaction_id - self.first_transaction_id
        self._reserve(len(batch), batch.next_transaction_id, end, end)
        try:
            self.data_file.write_at(offset, batch.block)
            if at_lost_end and not has_next:
                self._preallocation.truncate(end)
            self.data_file.sync()
            if self.data_file.read_at(offset, len(batch.block)) != batch.block:
                raise OSError(
                    errno.EIO,
                    "the bytes that were read back differ from those written",
                    self.data_path,
                )
            self.index.put(position, places)
        except OSError as error:
            self._fail(f"repair of {len(batch)} records", error)
        self._indexed_count = max(self._indexed_count, position + len(places))
        if at_lost_end:
            self.size = self.durable_size = end
            self.has_lost_end = has_next

    def make_data_file(self, home: SegmentHome, wall_milliseconds: int) -> None:
        """Make the data file that is missing (NoFile), durably: empty except for its header. A file
        of the same name that is not this segment's is kept under another name.

        Raises SegmentFailedError; UnavailableError: no space.
        """
        if self.failed:
            raise self._closed()
        assert isinstance(self.data_file, NoFile)
        disk, path = home.disk, self.data_path
        try:
            if disk.exists(path):
                disk.rename(path, path + SET_ASIDE_SUFFIX)
            self.data_file = create_file(
                disk, path, home.header(self.first_transaction_id, wall_milliseconds)
            )
            disk.sync_directory(home.directory)
        except OSError as error:
            self._fail("creation", error)
        self._preallocation = Preallocation(self.data_file)

    def restore_headers(self, home: SegmentHome) -> int:
        """Rewrite the headers of the two files that have become wrong since the files were opened;
        return how many. Raises SegmentFailedError."""
        restored = 0
        for file in (self.data_file, self.index.file):
            if isinstance(file, NoFile) or self.failed:
                continue
            try:
                found = file.read_at(0, SEGMENT_HEADER_BYTES)
            except OSError:
                continue  # whether the header is wrong cannot be read
            wall_milliseconds = SEGMENT_HEADER.unpack(found.ljust(SEGMENT_HEADER_BYTES, b"\0"))[1]
            right = home.header(self.first_transaction_id, wall_milliseconds)
            if found == right:
                continue
            try:
                file.write_at(0, right)
                file.sync()
            except OSError as error:
                self._fail("writing of a header", error)
            restored += 1
        return restored

    def close(self) -> None:
        """Close the files as they are."""
        self.data_file.close()
        self.index.close()

    def _offsets(self, start: int, count: int) -> NDArray[np.int64]:
        """Return the offsets of `count` records from the zero-based `start` on, and the end of the
        last one.

        Raises CorruptionError: the offsets are impossible.
        """
        end = start + count + 1
        indexed = max(0, min(end, self._indexed_count) - start)
        parts = [self.index.entries(start, indexed)]
        if indexed < count + 1:
            entries = b"".join(self._not_indexed) + ENTRY.pack(self.size)
            rest = np.frombuffer(entries, ">i8").astype(np.int64)
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
                f"index of {self.data_path}: impossible offsets for {count} records from"
                f" transaction {self.first_transaction_id + start}"
            )
        return offsets

    def _reserve(self, count: int, needed: int, end: int, threshold: int) -> None:
        """Reserve space for `count` more records, the last of which ends at byte `end`, and for
        `needed` entries of the index."""
        try:
            if end > self._preallocation.end:
                self._preallocation.cover(end, ahead=data_bytes_ahead(end), limit=threshold)
            self.index.reserve(needed)
        except OSError as error:
            if not is_no_space(error):
                self._fail("reservation of space", error)
            raise no_space(f"{count} records in {self.data_path}") from error

    def _closed(self) -> SegmentFailedError:
        return SegmentFailedError(f"{self.data_path}: closed by an earlier failure")

    def _fail(self, action: str, error: OSError) -> NoReturn:
        self.failed = True
        # Back to the durable state: memory never claims more than the disk holds.
        self.size = self.durable_size
        self.next_transaction_id = self.durable_next
        kept = self.next_transaction_id - self.first_transaction_id - self._indexed_count
        self._not_indexed = [b"".join(self._not_indexed)[: kept * ENTRY_BYTES]]
        raise SegmentFailedError(f"{self.data_path}: {action} failed: {error}") from error


def _tell_fault(data_path: str, batch: RecordBatch, start: int) -> NoReturn:
    """Raise CorruptionError for the bytes read at `start`, where the index has `batch`."""
    where = f"{data_path} from byte {start}"
    try:
        found = batch_from_block(batch.block, batch.first_transaction_id)
    except CorruptionError as error:
        raise CorruptionError(f"{where}: {error}") from error
    raise CorruptionError(
        f"{where}: the index has {len(batch)} records from {batch.first_transaction_id}, the"
        f" data {len(found)}"
    )


def no_space(what: str) -> UnavailableError:
    return UnavailableError(f"no space for {what}: free some on its disk; nothing was written")


def create_segment(
    home: SegmentHome, first_transaction_id: TransactionId, wall_milliseconds: int
) -> Segment:
    """Make an empty segment; return once its files and their names are durable.

    An index file without a data file, left by a crash in this function, is reused. Raises
    SegmentFailedError; UnavailableError: no space, and then there is no data file.
    """
    header = home.header(first_transaction_id, wall_milliseconds)
    data_path = home.path(first_transaction_id, DATA_SUFFIX)
    files: list[File] = []
    try:
        index_file = create_index(home, first_transaction_id, header)
        files.append(index_file)
        data_file = create_file(home.disk, data_path, header)
        files.append(data_file)
        home.disk.sync_directory(home.directory)
    except OSError as error:
        for file in files:
            file.close()
        if is_no_space(error):
            raise no_space(f"a new segment {data_path}") from error
        raise SegmentFailedError(f"{data_path}: creation failed: {error}") from error
    return Segment(
        home,
        first_transaction_id,
        data_file,
        IndexFile(index_file, first_transaction_id, header_bytes=SEGMENT_HEADER_BYTES),
        size=SEGMENT_HEADER_BYTES,
        record_count=0,
    )


def create_file(disk: Disk, path: str, header: bytes) -> File:
    """Make the file, which must not exist; return once its header is synced. Its name is not synced
    yet.

    Raises OSError, and then the file is removed if the disk allows.
    """
    file = disk.open(path, create=True)
    try:
        file.write_at(0, header)
        file.sync()
    except OSError:
        file.close()
        with suppress(OSError):
            disk.remove(path)
        raise
    return file


def create_index(home: SegmentHome, first_transaction_id: TransactionId, header: bytes) -> File:
    """Make or empty the index file; return once its header is synced. Its name is not synced yet.

    Raises OSError.
    """
    path = home.path(first_transaction_id, INDEX_SUFFIX)
    if not home.disk.exists(path):
        return create_file(home.disk, path, header)
    file = home.disk.open(path)
    try:
        file.truncate(0)
        file.write_at(0, header)
        file.sync()
    except OSError:
        file.close()
        raise
    return file
