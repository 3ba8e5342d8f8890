"""A second reader of storage directories, written from the description of the files alone.

Shares no code with the product, so that a misunderstanding of the format cannot hide on both sides.
Parses a directory strictly, prints its bytes anew from the values it found, and says what the Java
original would keep of it. Files that only our release writes are passed over, as the original does.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

Files = Mapping[str, bytes]
"""The content of each file by its path relative to the storage directory."""

OURS_ALONE = re.compile(r"waltz-storage\.(node|reserve|trace)|\d+/damaged\.json|\d+/\d{19}\.jnl")


@dataclass(frozen=True)
class Struct:
    session: int
    low_water_mark: int
    local_low_water_mark: int
    flags: int
    sequence: int

    def to_bytes(self) -> bytes:
        body = struct.pack(
            ">qqqii",
            self.session,
            self.low_water_mark,
            self.local_low_water_mark,
            self.flags,
            self.sequence,
        )
        return body + struct.pack(">I", zlib.crc32(body))


@dataclass(frozen=True)
class Entry:
    """A partition in the control file."""

    number: int
    structs: tuple[Struct, Struct]

    @property
    def current(self) -> Struct:
        assert self.structs[0].sequence != self.structs[1].sequence
        return max(self.structs, key=lambda found: found.sequence)

    @property
    def is_assigned(self) -> bool:
        return bool(self.current.flags & 4)


@dataclass(frozen=True)
class Control:
    creation_time: int
    cluster_key: UUID
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class LogRecord:
    transaction_id: int
    request_id: bytes
    header: int
    data_checksum: int
    data: bytes

    def to_bytes(self) -> bytes:
        head = struct.pack(">q", self.transaction_id) + self.request_id
        head += struct.pack(">iiI", self.header, len(self.data), self.data_checksum)
        return head + self.data + struct.pack(">I", zlib.crc32(head + self.data))


@dataclass(frozen=True)
class Pair:
    """A segment: a data file and its index file, which may have entries for fewer records."""

    creation_times: tuple[int, int]
    cluster_key: UUID
    partition: int
    first: int
    records: tuple[LogRecord, ...]
    entry_count: int

    def header(self, creation_time: int) -> bytes:
        place = struct.pack(">iq", self.partition, self.first)
        return struct.pack(">iq", 0, creation_time) + self.cluster_key.bytes + place + bytes(88)

    def to_bytes(self) -> tuple[bytes, bytes]:
        """The data file and the index file."""
        data, index = bytearray(self.header(self.creation_times[0])), bytearray()
        for record in self.records[: self.entry_count]:
            index += struct.pack(">q", len(data))
            data += record.to_bytes()
        for record in self.records[self.entry_count :]:
            data += record.to_bytes()
        return bytes(data), self.header(self.creation_times[1]) + bytes(index)


@dataclass(frozen=True)
class StorageDirectory:
    control: Control
    partitions: dict[int, tuple[Pair, ...]]

    def records(self, partition: int) -> list[LogRecord]:
        return [record for pair in self.partitions[partition] for record in pair.records]

    def to_files(self) -> dict[str, bytes]:
        """Print every file anew from the values alone."""
        control = self.control
        text = struct.pack(">iq", 0, control.creation_time) + control.cluster_key.bytes
        text += struct.pack(">i", len(control.entries)) + bytes(96)
        for entry in control.entries:
            text += struct.pack(">i", entry.number)
            text += b"".join(found.to_bytes() for found in entry.structs)
        files = {"waltz-storage.ctl": text}
        for number, pairs in self.partitions.items():
            for pair in pairs:
                name = f"{number}/{pair.first:019d}"
                files[f"{name}.seg"], files[f"{name}.idx"] = pair.to_bytes()
        return files


def read_files(directory: Path) -> dict[str, bytes]:
    """Everything in a storage directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def parse_directory(files: Files) -> StorageDirectory:
    """Return what the files say. Every byte must have the meaning that the format gives it; raises
    AssertionError, struct.error."""
    known = {path: data for path, data in files.items() if not OURS_ALONE.fullmatch(path)}
    control = parse_control_file(known.pop("waltz-storage.ctl"))
    partitions: dict[int, list[Pair]] = {}
    while known:
        path = min(known)
        match = re.fullmatch(r"(\d+)/(\d{19})\.(?:idx|seg)", path)
        assert match, f"{path} is no file of a storage directory"
        stem = path[:-4]
        number, first = int(match[1]), int(match[2])
        pair = parse_pair(known.pop(f"{stem}.seg"), known.pop(f"{stem}.idx"))
        assert (pair.partition, pair.first) == (number, first)
        assert pair.cluster_key == control.cluster_key
        partitions.setdefault(number, []).append(pair)
    for pairs in partitions.values():
        following = 0
        for pair in pairs:
            assert pair.first == following, "the segments do not adjoin"
            following += len(pair.records)
    for entry in control.entries:
        if entry.is_assigned:
            pairs = partitions[entry.number]
            last = pairs[-1].first + len(pairs[-1].records) - 1
            assert entry.current.local_low_water_mark <= last
    return StorageDirectory(
        control, {number: tuple(partitions[number]) for number in sorted(partitions)}
    )


def parse_control_file(text: bytes) -> Control:
    version, creation_time, key, count = struct.unpack_from(">iq16si", text)
    assert version == 0
    assert text[32:128] == bytes(96)
    assert len(text) == 128 + 76 * count
    entries = []
    for number in range(count):
        start = 128 + 76 * number
        assert struct.unpack_from(">i", text, start) == (number,)
        first, second = (
            parse_struct(text[begin : begin + 36]) for begin in (start + 4, start + 40)
        )
        entries.append(Entry(number, (first, second)))
    return Control(creation_time, UUID(bytes=key), tuple(entries))


def parse_struct(text: bytes) -> Struct:
    *values, checksum = struct.unpack(">qqqiiI", text)
    assert checksum == zlib.crc32(text[:32])
    return Struct(*values)


def parse_pair(data: bytes, index: bytes) -> Pair:
    """Parse a data file and its index file, which may lack entries at its end."""
    assert data[:4] == index[:4] == bytes(4)
    assert data[12:40] == index[12:40]
    assert data[40:128] == index[40:128] == bytes(88)
    (data_time,), (index_time,) = struct.unpack(">q", data[4:12]), struct.unpack(">q", index[4:12])
    partition, first = struct.unpack(">iq", data[28:40])
    records: list[LogRecord] = []
    offsets = []
    position = 128
    while position < len(data):
        number, request, header, length, checksum = struct.unpack_from(">q16siiI", data, position)
        assert number == first + len(records)
        end = position + 36 + length
        body = data[position + 36 : end]
        assert len(body) == length
        assert zlib.crc32(body) == checksum
        assert struct.pack(">I", zlib.crc32(data[position:end])) == data[end : end + 4]
        offsets.append(position)
        records.append(LogRecord(number, request, header, checksum, body))
        position = end + 4
    assert position == len(data)
    count = (len(index) - 128) // 8
    assert list(struct.unpack(f">{count}q", index[128:])) == offsets[:count]
    return Pair(
        (data_time, index_time), UUID(bytes=data[12:28]), partition, first, tuple(records), count
    )


def read_independently(seg: bytes, idx: bytes) -> list[tuple[int, bytes, int, bytes]]:
    """The records of a pair of files: transaction ID, request ID, header, data."""
    return [
        (record.transaction_id, record.request_id, record.header, record.data)
        for record in parse_pair(seg, idx).records
    ]


def kept_by_the_original(data: bytes, index: bytes, local_low_water_mark: int) -> int:
    """One past the last record that the original keeps of a segment when it opens it.

    It trusts the index up to the mark or the last thousand, and cuts the rest at the first record
    that does not check out. Raises AssertionError where it refuses to start.
    """
    first = int.from_bytes(data[32:40], "big")
    indexed_last = first + (len(index) - 128) // 8 - 1
    start = indexed_last
    if indexed_last > local_low_water_mark:
        start = max(int((indexed_last - 1) / 1000) * 1000, local_low_water_mark)
    position, expected = 128, first
    if start > first:
        entry = 128 + 8 * (start - first)
        position = int.from_bytes(index[entry : entry + 8], "big", signed=True)
        assert position >= 0, "index corrupted"
        assert _end_of_record(data, position, start), "record corrupted"
        expected = start
    while end := _end_of_record(data, position, expected):
        position, expected = end, expected + 1
    return expected


def _end_of_record(data: bytes, position: int, transaction_id: int) -> int:
    """Where a valid record with that ID ends; 0 if there is none."""
    if position + 40 > len(data):
        return 0
    number, _, _, length, _ = struct.unpack_from(">q16siiI", data, position)
    end = position + 36 + int(length)
    if number != transaction_id or length < 0 or end + 4 > len(data):
        return 0
    if struct.pack(">I", zlib.crc32(data[position:end])) != data[end : end + 4]:
        return 0
    return end + 4
