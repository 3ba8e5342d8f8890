"""Lists the files of a storage directory: the control file as it stands, partitions, segments.

Owns the meaning of a path that a person gave, and of file names. Judges nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from posixpath import basename, dirname
from typing import Final
from uuid import UUID

from waltz.errors import ConfigurationError, CorruptionError
from waltz.host import Disk
from waltz.limits import PARTITIONS_MAX
from waltz.storage.directory.control_struct import (
    CONTROL_FILE_NAME,
    CONTROL_HEADER,
    PARTITION_BYTES,
    PARTITION_ID,
    STRUCT_BYTES,
    PartitionInfo,
    decode_struct,
    partition_offset,
)
from waltz.storage.directory.node_file import NODE_FILE_NAME
from waltz.storage.inspection.walk import open_view, read_run
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    JOURNAL_SUFFIX,
    NAME_DIGITS,
    SEGMENT_HEADER_BYTES,
)
from waltz.types import PartitionId, TransactionId

SEGMENT_NAME: Final = re.compile(
    rf"(\d{{{NAME_DIGITS}}})({re.escape(DATA_SUFFIX)}|{re.escape(INDEX_SUFFIX)})", re.ASCII
)
JOURNAL_NAME: Final = re.compile(
    rf"\d{{{NAME_DIGITS}}}{re.escape(JOURNAL_SUFFIX)}(\.new)?", re.ASCII
)
"""The name of a journal, or of one that replaces it: nothing of what a node holds rests on it."""

CONTROL_FILE_BYTES_MAX: Final = CONTROL_HEADER.size + PARTITION_BYTES * (PARTITIONS_MAX + 1)
PARTITION_NAME: Final = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class ControlEntry:
    """A partition in the control file. `found_id` is the ID in the entry; the twins are its two
    structs with their sequence numbers, None where the checksum fails."""

    partition_id: PartitionId
    found_id: int
    twins: tuple[tuple[PartitionInfo, int] | None, tuple[PartitionInfo, int] | None]

    @property
    def current(self) -> int | None:
        """The twin that counts, 0 or 1; None if neither can be trusted."""
        numbers = {number: twin[1] for number, twin in enumerate(self.twins) if twin is not None}
        if len(numbers) == 2 and numbers[0] == numbers[1]:
            return None
        return max(numbers, key=lambda number: numbers[number], default=None)

    @property
    def info(self) -> PartitionInfo | None:
        twin = None if self.current is None else self.twins[self.current]
        return None if twin is None else twin[0]


@dataclass(frozen=True, slots=True)
class Control:
    """A control file as it stands; `entries` has as many entries as the file is long enough for."""

    path: str
    content: bytes
    version: int
    created_milliseconds: int
    cluster_key: UUID
    partition_count: int
    entries: tuple[ControlEntry, ...]


def read_control(disk: Disk, path: str) -> Control:
    """Return the control file at `path`. Raises ConfigurationError: there is no such file;
    CorruptionError: it is too short for a header; OSError."""
    try:
        content = read_file(disk, path, bytes_max=CONTROL_FILE_BYTES_MAX)
    except FileNotFoundError:
        raise ConfigurationError(
            f"no {path}: give a storage directory, which has a {CONTROL_FILE_NAME}, or that file"
        ) from None
    if len(content) < CONTROL_HEADER.size:
        raise CorruptionError(
            f"{path} has {len(content)} bytes; a control file has at least {CONTROL_HEADER.size}"
        )
    version, created, key, count, _ = CONTROL_HEADER.unpack_from(content)
    whole = (len(content) - CONTROL_HEADER.size) // PARTITION_BYTES
    entries = tuple(
        _entry(content, PartitionId(number)) for number in range(min(max(0, count), whole))
    )
    return Control(path, content, version, created, UUID(bytes=key), count, entries)


def _entry(content: bytes, partition_id: PartitionId) -> ControlEntry:
    start = partition_offset(partition_id)
    found_id = PARTITION_ID.unpack_from(content, start)[0]
    first = start + PARTITION_ID.size
    second = first + STRUCT_BYTES
    twins = (
        decode_struct(content[first:second]),
        decode_struct(content[second : second + STRUCT_BYTES]),
    )
    return ControlEntry(partition_id, found_id, twins)


def read_file(disk: Disk, path: str, *, bytes_max: int) -> bytes:
    """Return the whole file, or its first `bytes_max`. Raises OSError, which names the file."""
    file = disk.open_to_read(path)
    try:
        return file.read_at(0, min(file.size(), bytes_max))
    except OSError as error:
        error.filename = error.filename or path
        raise
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """The sizes of a segment's files in bytes; None for a missing file."""

    first: TransactionId
    data_bytes: int | None
    index_bytes: int | None

    @property
    def is_bare_index(self) -> bool:
        return self.data_bytes is None and (self.index_bytes or 0) <= SEGMENT_HEADER_BYTES


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """The files of a partition; `partition_id` is None if the directory's name does not tell it."""

    directory: str
    partition_id: PartitionId | None
    segments: tuple[SegmentFiles, ...]
    others: tuple[str, ...]
    """Names of files that belong to no segment, journals aside."""

    def path(self, first: TransactionId, suffix: str) -> str:
        return f"{self.directory}/{first:0{NAME_DIGITS}d}{suffix}"

    @property
    def chain(self) -> tuple[SegmentFiles, ...]:
        """The segments, without those at the end that have no data file and an empty index: a crash
        in the middle of a roll-over leaves one."""
        count = len(self.segments)
        while count and self.segments[count - 1].is_bare_index:
            count -= 1
        return self.segments[:count]

    def following(self, first: TransactionId) -> TransactionId | None:
        """Return the first ID of the next segment; None for the last segment."""
        return min((segment.first for segment in self.chain if segment.first > first), default=None)

    @property
    def bytes(self) -> int:
        return sum((each.data_bytes or 0) + (each.index_bytes or 0) for each in self.segments)


def list_partition(disk: Disk, directory: str) -> PartitionFiles:
    """Raises OSError."""
    sizes: dict[TransactionId, dict[str, int]] = {}
    others = []
    for name in disk.list_directory(directory):
        match = SEGMENT_NAME.fullmatch(name)
        if match is None:
            if JOURNAL_NAME.fullmatch(name) is None:
                others.append(name)
            continue
        try:
            size = file_size(disk, f"{directory}/{name}")
        except FileNotFoundError:
            continue
        sizes.setdefault(TransactionId(int(match[1])), {})[match[2]] = size
    segments = tuple(
        SegmentFiles(first, found.get(DATA_SUFFIX), found.get(INDEX_SUFFIX))
        for first, found in sorted(sizes.items())
    )
    name = basename(directory)
    number = PartitionId(int(name)) if PARTITION_NAME.fullmatch(name) else None
    return PartitionFiles(directory, number, segments, tuple(others))


def file_size(disk: Disk, path: str) -> int:
    """Raises OSError."""
    file = disk.open_to_read(path)
    try:
        return file.size()
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class InspectionTarget:
    """The meaning of a path: a storage directory, a partition in it, or a segment of a partition.

    The directory is None if the partition is in none; the partition directory and the segment's
    first ID are None if all of them are meant.
    """

    directory: str | None
    partition_directory: str | None = None
    first: TransactionId | None = None


def find_target(disk: Disk, path: str) -> InspectionTarget:
    """Return the meaning of the absolute `path`.

    Raises ConfigurationError: it is nothing of a storage node; OSError.
    """
    if not disk.exists(path):
        raise ConfigurationError(f"no such file or directory: {path}")
    names = _names(disk, path)
    if names is None:
        match = SEGMENT_NAME.fullmatch(basename(path))
        if match is not None:
            partition = dirname(path)
            first = TransactionId(int(match[1]))
            return InspectionTarget(_around(disk, partition), partition, first)
        if basename(path) == CONTROL_FILE_NAME:
            return InspectionTarget(dirname(path))
    elif CONTROL_FILE_NAME in names:
        return InspectionTarget(path)
    elif any(SEGMENT_NAME.fullmatch(name) for name in names):
        return InspectionTarget(_around(disk, path), path)
    elif any(PARTITION_NAME.fullmatch(name) for name in names) or NODE_FILE_NAME in names:
        return InspectionTarget(path)
    elif (around := _around(disk, path)) is not None and PARTITION_NAME.fullmatch(basename(path)):
        return InspectionTarget(around, path)
    raise ConfigurationError(
        f"{path} is not a file or directory of a storage node; expected a storage directory,"
        f" which has a {CONTROL_FILE_NAME}, one of its partition directories, or a file"
        f" {'0' * NAME_DIGITS}{DATA_SUFFIX}"
    )


def _names(disk: Disk, path: str) -> list[str] | None:
    """Return the names in the directory; None if `path` is a file."""
    try:
        return list(disk.list_directory(path))
    except NotADirectoryError:
        return None


def _around(disk: Disk, partition_directory: str) -> str | None:
    """Return the storage directory that a partition directory is in; None if it is in none."""
    directory = dirname(partition_directory)
    is_inside = PARTITION_NAME.fullmatch(basename(partition_directory)) is not None
    return directory if is_inside and disk.exists(f"{directory}/{CONTROL_FILE_NAME}") else None


def partition_directories(disk: Disk, directory: str) -> list[str]:
    """Return the directories in a storage directory whose names are numbers, in their order."""
    names = [name for name in disk.list_directory(directory) if PARTITION_NAME.fullmatch(name)]
    paths = [f"{directory}/{name}" for name in sorted(names, key=int)]
    return [path for path in paths if _names(disk, path) is not None]


def end_of_log(disk: Disk, files: PartitionFiles) -> TransactionId | None:
    """Return one past the last record, found by the last segment's index and the data after the
    last entry; None if there is no segment or the index is no help. Raises OSError."""
    whole = [segment for segment in files.segments if segment.data_bytes is not None]
    if not whole:
        return None
    first = whole[-1].first
    paths = (files.path(first, DATA_SUFFIX), files.path(first, INDEX_SUFFIX))
    with open_view(disk, *paths, first) as view:
        position, transaction_id = SEGMENT_HEADER_BYTES, first
        used = view.index.proved_count()
        if used:
            transaction_id = TransactionId(first + used - 1)
            place = view.data.indexed_place(transaction_id)
            if place is None:
                return None
            position = place
        while position < view.data.size:
            run = read_run(view.data, transaction_id, position)
            if run is None:
                break
            position += len(run.batch.block)
            transaction_id = run.batch.next_transaction_id
        return transaction_id
