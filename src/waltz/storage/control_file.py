"""The control file of a storage directory: whose it is, and what each partition has promised.

Owns `waltz-storage.ctl`: its creation in one step, its lock, and the twin structs of every
partition, of which only the one not in use is ever overwritten. Knows nothing of segments.

    offset  size  header
         0     4  format version
         4     8  creation time, milliseconds since 1970
        12    16  cluster key
        28     4  number of partitions of the cluster
        32    96  reserved, zero

then 76 bytes per partition: the partition ID (4) and two structs of 36 bytes

         0     8  session ID
         8     8  low-water mark
        16     8  local low-water mark
        24     4  flags: 1 available, 4 assigned
        28     4  sequence number of the struct
        32     4  CRC-32 of the bytes before it

Big-endian. Source: Waltz Internals, "Control File"; flags and sequence number are the Java
original's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID
from zlib import crc32

from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    ForeignDirectoryError,
    SegmentFailedError,
)
from waltz.host import Disk, File
from waltz.types import NO_SESSION, NOTHING, PartitionId, SessionId, TransactionId

CONTROL_FILE_NAME: Final = "waltz-storage.ctl"
FORMAT_VERSION: Final = 0

CONTROL_HEADER: Final = struct.Struct(">iq16si96x")
PARTITION_ID: Final = struct.Struct(">i")
PARTITION_STRUCT: Final = struct.Struct(">qqqii")
CHECKSUM: Final = struct.Struct(">I")

STRUCT_BYTES: Final = PARTITION_STRUCT.size + CHECKSUM.size
PARTITION_BYTES: Final = PARTITION_ID.size + 2 * STRUCT_BYTES

assert CONTROL_HEADER.size == 128
assert STRUCT_BYTES == 36
assert PARTITION_BYTES == 76

AVAILABLE: Final = 1
ASSIGNED: Final = 4


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """What a replica has promised durably.

    `low_water_mark` is the cluster's high-water mark when session `session_id` began here,
    `local_low_water_mark` what this replica held and had synced at that moment: never more.
    """

    session_id: SessionId = NO_SESSION
    low_water_mark: TransactionId = NOTHING
    local_low_water_mark: TransactionId = NOTHING
    flags: int = AVAILABLE

    @property
    def is_available(self) -> bool:
        return bool(self.flags & AVAILABLE)

    @property
    def is_assigned(self) -> bool:
        return bool(self.flags & ASSIGNED)

    def with_flag(self, flag: int, is_set: bool) -> PartitionInfo:
        return replace(self, flags=self.flags | flag if is_set else self.flags & ~flag)


FRESH: Final = PartitionInfo()


def encode_struct(info: PartitionInfo, sequence_number: int) -> bytes:
    body = PARTITION_STRUCT.pack(
        info.session_id,
        info.low_water_mark,
        info.local_low_water_mark,
        info.flags,
        sequence_number,
    )
    return body + CHECKSUM.pack(crc32(body))


def decode_struct(data: bytes) -> tuple[PartitionInfo, int] | None:
    """Return the struct in these bytes and its sequence number; None if it does not check out."""
    if len(data) != STRUCT_BYTES:
        return None
    body = data[: PARTITION_STRUCT.size]
    if CHECKSUM.unpack_from(data, PARTITION_STRUCT.size)[0] != crc32(body):
        return None
    session_id, low, local_low, flags, sequence_number = PARTITION_STRUCT.unpack(body)
    info = PartitionInfo(SessionId(session_id), TransactionId(low), TransactionId(local_low), flags)
    return info, sequence_number


@dataclass(slots=True)
class _Entry:
    """A partition's current struct: which of the twins it is, 0 or 1, and its sequence number."""

    info: PartitionInfo
    sequence_number: int
    twin: int


def decode_partition(data: bytes, partition_id: PartitionId) -> _Entry:
    """Return the current one of the twins in a partition's 76 bytes: valid, and the later one.

    Raises CorruptionError: neither checks out, they have the same sequence number, or the bytes are
    those of another partition.
    """
    place = f"partition {partition_id} in {CONTROL_FILE_NAME}"
    if len(data) != PARTITION_BYTES:
        raise CorruptionError(f"{place} is cut off: {len(data)} of {PARTITION_BYTES} bytes")
    twins = [
        decode_struct(data[start : start + STRUCT_BYTES])
        for start in (PARTITION_ID.size, PARTITION_ID.size + STRUCT_BYTES)
    ]
    valid = [_Entry(*found, twin) for twin, found in enumerate(twins) if found is not None]
    if not valid:
        raise CorruptionError(f"{place}: both structs fail their checksum")
    found_id = PARTITION_ID.unpack_from(data)[0]
    if found_id != partition_id:
        raise CorruptionError(f"{place} carries partition ID {found_id}")
    if len(valid) == 2 and valid[0].sequence_number == valid[1].sequence_number:
        raise CorruptionError(
            f"{place}: both structs have sequence number {valid[0].sequence_number}"
        )
    return max(valid, key=lambda entry: entry.sequence_number)


def encode_fresh_partition(partition_id: PartitionId, info: PartitionInfo) -> bytes:
    return PARTITION_ID.pack(partition_id) + encode_struct(info, -1) + encode_struct(info, 0)


def encode_fresh_file(
    cluster_key: UUID,
    partition_count: int,
    *,
    assigned: Collection[PartitionId],
    wall_milliseconds: int,
) -> bytes:
    header = CONTROL_HEADER.pack(
        FORMAT_VERSION, wall_milliseconds, cluster_key.bytes, partition_count
    )
    infos = (
        (PartitionId(number), FRESH.with_flag(ASSIGNED, number in assigned))
        for number in range(partition_count)
    )
    return header + b"".join(encode_fresh_partition(*pair) for pair in infos)


class ControlFile:
    """An open control file; while it is open its directory is locked.

    Updates of different partitions may come from different threads. After the first failed write or
    sync nobody knows which structs the disk holds, so that every later update is refused.
    """

    def __init__(
        self, file: File, release: Callable[[], None], *, partition_count: int, was_created: bool
    ) -> None:
        self._file = file
        self._release = release
        self._failed = False
        self.was_created = was_created
        """Whether this opening made the file: the directory was fresh."""
        self._entries = [self._read_entry(PartitionId(number)) for number in range(partition_count)]

    def info(self, partition_id: PartitionId) -> PartitionInfo:
        """Raises CorruptionError: no struct of the partition can be trusted."""
        return self._entry(partition_id).info

    def update(self, partition_id: PartitionId, info: PartitionInfo) -> None:
        """Replace the partition's info; return once that is durable.

        Raises SegmentFailedError, CorruptionError.
        """
        entry = self._entry(partition_id)
        twin, sequence_number = 1 - entry.twin, entry.sequence_number + 1
        self._write(
            _partition_offset(partition_id) + PARTITION_ID.size + twin * STRUCT_BYTES,
            encode_struct(info, sequence_number),
        )
        self._entries[partition_id] = _Entry(info, sequence_number, twin)

    def reset(self, partition_id: PartitionId) -> None:
        """Put the partition back to what it was in a fresh directory, damaged or not.

        Raises SegmentFailedError.
        """
        self._write(_partition_offset(partition_id), encode_fresh_partition(partition_id, FRESH))
        self._entries[partition_id] = _Entry(FRESH, 0, 1)

    def close(self) -> None:
        self._file.close()
        self._release()

    def _entry(self, partition_id: PartitionId) -> _Entry:
        entry = self._entries[partition_id]
        if isinstance(entry, CorruptionError):
            raise CorruptionError(str(entry))
        return entry

    def _read_entry(self, partition_id: PartitionId) -> _Entry | CorruptionError:
        data = self._file.read_at(_partition_offset(partition_id), PARTITION_BYTES)
        try:
            return decode_partition(data, partition_id)
        except CorruptionError as error:
            return error

    def _write(self, offset: int, data: bytes) -> None:
        if self._failed:
            raise SegmentFailedError(f"{CONTROL_FILE_NAME} takes no update after a failed one")
        try:
            self._file.write_at(offset, data)
            self._file.sync()
        except OSError as error:
            self._failed = True
            raise SegmentFailedError(f"{CONTROL_FILE_NAME} at byte {offset}: {error}") from error


def _partition_offset(partition_id: PartitionId) -> int:
    return CONTROL_HEADER.size + PARTITION_BYTES * partition_id


def open_control_file(
    disk: Disk,
    directory: str,
    *,
    cluster_key: UUID,
    partition_count: int,
    assigned: Collection[PartitionId],
    wall_milliseconds: int,
) -> ControlFile:
    """Open the control file of `directory`, or make it with `assigned` partitions, and lock it.

    Raises ConfigurationError, and then nothing was touched: no such directory, or a format of
    another release; DirectoryInUseError; ForeignDirectoryError: other key or partition count, or
    partitions without a control file. Raises OSError.
    """
    if not disk.exists(directory):
        raise ConfigurationError(f"no storage directory {directory}; create it")
    path = f"{directory}/{CONTROL_FILE_NAME}"
    release: Callable[[], None] | None = None
    if not disk.exists(path):
        content = encode_fresh_file(
            cluster_key, partition_count, assigned=assigned, wall_milliseconds=wall_milliseconds
        )
        release = _create(disk, directory, content)
    was_created = release is not None
    release = release or disk.lock(path)
    try:
        file = disk.open(path)
        try:
            _check_header(file, directory, cluster_key, partition_count)
            # What a killed process wrote is seen, but promises are kept only for what is durable.
            file.sync()
            disk.sync_directory(directory)
            return ControlFile(
                file, release, partition_count=partition_count, was_created=was_created
            )
        except BaseException:
            file.close()
            raise
    except BaseException:
        release()
        raise


def _create(disk: Disk, directory: str, content: bytes) -> Callable[[], None] | None:
    """Make the control file in one step and return the release of its lock.

    The lock is taken before the file has its name, so that of two processes in one fresh directory
    only one makes it; None if the other one was faster.
    """
    leftovers = [name for name in disk.list_directory(directory) if name.isdigit()]
    if leftovers:
        raise ForeignDirectoryError(
            f"{directory} holds partitions {', '.join(leftovers)} but no {CONTROL_FILE_NAME}:"
            " give a fresh directory, or put the control file back"
        )
    path = f"{directory}/{CONTROL_FILE_NAME}"
    temporary = f"{path}.new"
    try:
        file = disk.open(temporary, create=True)
    except FileExistsError:
        file = disk.open(temporary)
    try:
        try:
            release = disk.lock(temporary)
        except FileNotFoundError:
            return None
        try:
            if disk.exists(path):
                release()
                return None
            file.truncate(0)
            file.write_at(0, content)
            file.sync()
            disk.rename(temporary, path)
            disk.sync_directory(directory)
        except BaseException:
            release()
            raise
        return release
    finally:
        file.close()


def _check_header(file: File, directory: str, cluster_key: UUID, partition_count: int) -> None:
    header = file.read_at(0, CONTROL_HEADER.size)
    if len(header) < CONTROL_HEADER.size:
        raise ConfigurationError(
            f"{CONTROL_FILE_NAME} in {directory} has {len(header)} bytes, expected at least"
            f" {CONTROL_HEADER.size}: remove it if the directory holds no partitions"
        )
    version, _, found_key, found_count = CONTROL_HEADER.unpack(header)
    if version != FORMAT_VERSION:
        raise ConfigurationError(
            f"{CONTROL_FILE_NAME} in {directory} has format version {version};"
            f" this release knows {FORMAT_VERSION}"
        )
    if found_key != cluster_key.bytes:
        raise ForeignDirectoryError(
            f"{directory} belongs to cluster {UUID(bytes=found_key)}, not to {cluster_key}"
        )
    if found_count != partition_count:
        raise ForeignDirectoryError(
            f"{directory} was made for {found_count} partitions, the cluster has {partition_count}"
        )
