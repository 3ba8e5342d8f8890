"""Storage directories made from values alone, for the tests of what looks at them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID
from zlib import crc32

from tests.storage.independent_reader import (
    Control,
    Entry,
    Files,
    LogRecord,
    Pair,
    StorageDirectory,
    Struct,
)
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.directory.node_file import (
    NodeHeader,
    Slot,
    area_offsets,
    encode_header,
    encode_slot,
)
from waltz.storage.inspection.findings import FindingKind, Report
from waltz.storage.inspection.survey import find_target
from waltz.storage.inspection.verification import Options, verify
from waltz.types import PartitionId, SessionId

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
DIRECTORY_ID = UUID("12345678-1234-4234-8234-123456789abc")
CREATED = 1_700_000_000_000
ROOT = "/storage"


def segment_name(partition: int, first: int, suffix: str = ".seg") -> str:
    return f"{partition}/{first:019d}{suffix}"


def log_record(partition: int, number: int, size: int | None = None) -> LogRecord:
    data = b"record %d of %d " % (number, partition)
    data = data + b"." * (number % 7) if size is None else data.ljust(size, b"-")[:size]
    request = struct.pack(">iiii", 3, 1, partition, number)
    return LogRecord(number, request, number * 11, crc32(data), data)


def pairs(partition: int, counts: Sequence[int], *, size: int | None = None) -> tuple[Pair, ...]:
    """Segments with so many records each."""
    found, first = [], 0
    for count in counts:
        records = tuple(log_record(partition, first + i, size) for i in range(count))
        found.append(Pair((CREATED + 5,) * 2, KEY, partition, first, records, count))
        first += count
    return tuple(found)


def storage_directory(
    *logs: Sequence[int], mark: int = -1, size: int | None = None, flags: int = 5
) -> StorageDirectory:
    """Partitions with segments of so many records; all in session 4, which began at `mark`."""
    entries = tuple(
        Entry(number, (Struct(3, -1, -1, flags, 6), Struct(4, mark, mark, flags, 7)))
        for number in range(len(logs))
    )
    return StorageDirectory(
        Control(CREATED, KEY, entries),
        {number: pairs(number, counts, size=size) for number, counts in enumerate(logs)},
    )


def node_file(directory: StorageDirectory) -> bytes:
    """What our release keeps beside the control file of a directory that it wrote last."""
    entries = directory.control.entries
    header = encode_header(NodeHeader(KEY, len(entries), DIRECTORY_ID, CREATED, CREATED))
    slots = (
        encode_slot(
            PartitionId(entry.number),
            Slot(SessionId(9), entry.current.to_bytes(), index_is_ours=True, sequence_number=2),
        )
        for entry in entries
    )
    area = header + b"".join(slots)
    return area.ljust(area_offsets(len(entries))[1], b"\0") + area


def our_files(*logs: Sequence[int], mark: int = -1, size: int | None = None) -> dict[str, bytes]:
    """A directory as our node leaves it."""
    directory = storage_directory(*logs, mark=mark, size=size)
    return directory.to_files() | {"waltz-storage.node": node_file(directory)}


def their_files(*logs: Sequence[int], mark: int = -1) -> dict[str, bytes]:
    """A directory as the original leaves it, its data files made a little after their indexes."""
    directory = storage_directory(*logs, mark=mark)
    later = {
        number: tuple(replace(pair, creation_times=(CREATED + 7, CREATED + 5)) for pair in found)
        for number, found in directory.partitions.items()
    }
    return replace(directory, partitions=later).to_files()


def disk_of(files: Files) -> SimulatedDisk:
    """The files on a disk, durably."""
    directories = {ROOT, *(f"{ROOT}/{path.partition('/')[0]}" for path in files if "/" in path)}
    disk = SimulatedDisk(sorted(directories))
    for path, content in files.items():
        file = disk.open(f"{ROOT}/{path}", create=True)
        file.write_at(0, content)
        file.sync()
    for directory in directories:
        disk.sync_directory(directory)
    return disk


def write_files(directory: Path, files: Files) -> Path:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def look(files: Files, path: str = "", *, data_checksums: bool = False) -> Report:
    """Verify what `path` names in the directory."""
    disk = disk_of(files)
    target = find_target(disk, f"{ROOT}/{path}".rstrip("/"))
    return verify(disk, target, Options(data_checksums=data_checksums))


def kinds(report: Report) -> dict[FindingKind, int]:
    return dict(report.counts)


def flipped(files: Files, path: str, position: int, mask: int = 0x10) -> dict[str, bytes]:
    content = bytearray(files[path])
    content[position] ^= mask
    return {**files, path: bytes(content)}


def put(files: Files, path: str, position: int, data: bytes) -> dict[str, bytes]:
    content = bytearray(files[path])
    content[position : position + len(data)] = data
    return {**files, path: bytes(content)}


def cut(files: Files, path: str, size: int) -> dict[str, bytes]:
    return {**files, path: files[path][:size]}


def without(files: Files, *paths: str) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if path not in paths}
