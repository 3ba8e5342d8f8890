"""The control file's bytes: the promises of each partition, and what holds if bytes were lost.

Owns the layout of `waltz-storage.ctl` and the judgement between a partition's twin structs and the
copy of the current one that the node file keeps. Opens nothing.

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
        24     4  flags: 1 writable, 2 reads differ from writes, 4 assigned
        28     4  sequence number of the struct
        32     4  CRC-32 of the bytes before it

Big-endian. Source: Waltz Internals, "Control File"; flags 1 and 4 and the sequence number are the
Java original's, which calls flag 1 available and knows no flag 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID
from zlib import crc32

import numpy as np

from waltz.errors import CorruptionError
from waltz.storage.directory.node_file import (
    LOST,
    NO_COPY,
    NODE_FILE_NAME,
    STRUCT_COPY_BYTES,
    NodeHeader,
)
from waltz.types import NO_SESSION, NOTHING, PartitionId, SessionId, TransactionId

CONTROL_FILE_NAME: Final = "waltz-storage.ctl"
FORMAT_VERSION: Final = 0

CONTROL_HEADER: Final = struct.Struct(">iq16si96s")
COUNT_OFFSET: Final = 28
"""The byte of the header at which the number of partitions begins."""
PARTITION_ID: Final = struct.Struct(">i")
PARTITION_STRUCT: Final = struct.Struct(">qqqii")
CHECKSUM: Final = struct.Struct(">I")

STRUCT_BYTES: Final = PARTITION_STRUCT.size + CHECKSUM.size
PARTITION_BYTES: Final = PARTITION_ID.size + 2 * STRUCT_BYTES

assert CONTROL_HEADER.size == 128
assert STRUCT_BYTES == 36
assert PARTITION_BYTES == 76
assert STRUCT_BYTES == STRUCT_COPY_BYTES

AVAILABLE: Final = 1
READS_DIFFER: Final = 2
ASSIGNED: Final = 4


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The durable promises of a replica.

    `low_water_mark` is the cluster's high-water mark when session `session_id` started here.
    `local_low_water_mark` is the last record that this replica held, synced, at that moment.
    """

    session_id: SessionId = NO_SESSION
    low_water_mark: TransactionId = NOTHING
    local_low_water_mark: TransactionId = NOTHING
    flags: int = AVAILABLE

    @property
    def is_writable(self) -> bool:
        return bool(self.flags & AVAILABLE)

    @property
    def is_readable(self) -> bool:
        return bool(self.flags & AVAILABLE) != bool(self.flags & READS_DIFFER)

    @property
    def is_assigned(self) -> bool:
        return bool(self.flags & ASSIGNED)

    @property
    def is_serving(self) -> bool:
        """Whether the replica is assigned, and takes reads and writes."""
        return self.flags & (AVAILABLE | READS_DIFFER | ASSIGNED) == AVAILABLE | ASSIGNED

    def with_flag(self, flag: int, is_set: bool) -> PartitionInfo:
        return replace(self, flags=self.flags | flag if is_set else self.flags & ~flag)

    def with_access(self, *, readable: bool, writable: bool) -> PartitionInfo:
        info = self.with_flag(AVAILABLE, writable)
        return info.with_flag(READS_DIFFER, readable != writable)


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
    """Return the struct in `data` and its sequence number; None if it does not check out."""
    if len(data) != STRUCT_BYTES:
        return None
    body = data[: PARTITION_STRUCT.size]
    if CHECKSUM.unpack_from(data, PARTITION_STRUCT.size)[0] != crc32(body):
        return None
    session_id, low, local_low, flags, sequence_number = PARTITION_STRUCT.unpack(body)
    info = PartitionInfo(SessionId(session_id), TransactionId(low), TransactionId(local_low), flags)
    return info, sequence_number


@dataclass(frozen=True, slots=True)
class Entry:
    """A partition's current struct, with its sequence number and its place among the twins, 0 or
    1."""

    info: PartitionInfo
    sequence_number: int
    twin: int


def encode_fresh_structs(info: PartitionInfo) -> bytes:
    """Return both structs of a partition in a new control file."""
    return encode_struct(info, -1) + encode_struct(info, 0)


FRESH_ENTRY: Final = Entry(FRESH, 0, 1)
FRESH_STRUCTS: Final = encode_fresh_structs(FRESH)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The promises of a partition after its entry was compared with the copy in the node file."""

    entry: Entry | CorruptionError
    repair: bytes | None = None
    """The bytes that should replace the 76; None: they are right."""
    note: str | None = None
    """The fault that was found, as a sentence for people."""


def judge_partition(
    data: bytes, partition_id: PartitionId, struct_copy: bytes = NO_COPY
) -> Judgement:
    """Judge a partition's 76 bytes by the copy of its current struct in the node file.

    Two valid structs are believed, whatever the copy says: the Java original may have written after
    the copy was made. If one struct fails and the copy has the next sequence number, the failed
    struct was that update. If both fail, only the copy is left. If the partition ID is wrong but
    the struct is the one that was copied, or the structs are fresh, only the ID is damaged.
    """
    place = f"partition {partition_id} in {CONTROL_FILE_NAME}"
    copied = decode_struct(struct_copy)
    found = _current_struct(data, partition_id)
    if isinstance(found, CorruptionError):
        head = PARTITION_ID.pack(partition_id)
        structs = data[PARTITION_ID.size :]
        if copied is None:
            if structs != FRESH_STRUCTS:
                return Judgement(found)
            return Judgement(FRESH_ENTRY, head + structs, f"{found}; restored")
        current = _current_struct(head + structs, partition_id)
        if isinstance(current, Entry):
            if struct_copy not in (structs[:STRUCT_BYTES], structs[STRUCT_BYTES:]):
                return Judgement(found)
            return Judgement(current, head + structs, f"{found}; restored")
        info, number = copied
        return Judgement(
            Entry(info, number, 1),
            head + encode_struct(info, number - 1) + struct_copy,
            f"{found}; restored from {NODE_FILE_NAME}",
        )
    failed = [twin for twin, valid in enumerate(_twins(data)) if valid is None]
    if failed and copied is not None and copied[1] == found.sequence_number + 1:
        start = PARTITION_ID.size + failed[0] * STRUCT_BYTES
        return Judgement(
            Entry(*copied, failed[0]),
            data[:start] + struct_copy + data[start + STRUCT_BYTES :],
            f"{place}: the current struct fails its checksum; restored from {NODE_FILE_NAME}",
        )
    if failed:
        return Judgement(found, note=f"{place}: one struct fails its checksum; the other one holds")
    if copied is not None and copied[1] > found.sequence_number:
        return Judgement(
            found,
            note=f"{place} has sequence number {found.sequence_number}, its copy in"
            f" {NODE_FILE_NAME} {copied[1]}: another release has reset it, or an older file was put"
            " back",
        )
    return Judgement(found)


def _twins(data: bytes) -> list[tuple[PartitionInfo, int] | None]:
    return [
        decode_struct(data[start : start + STRUCT_BYTES])
        for start in (PARTITION_ID.size, PARTITION_ID.size + STRUCT_BYTES)
    ]


def _current_struct(data: bytes, partition_id: PartitionId) -> Entry | CorruptionError:
    """Return the current struct of the twins: the later valid one."""
    place = f"partition {partition_id} in {CONTROL_FILE_NAME}"
    if len(data) != PARTITION_BYTES:
        return CorruptionError(f"{place} is cut off: {len(data)} of {PARTITION_BYTES} bytes")
    valid = [Entry(*found, twin) for twin, found in enumerate(_twins(data)) if found is not None]
    if not valid:
        return CorruptionError(f"{place}: both structs fail their checksum")
    found_id = PARTITION_ID.unpack_from(data)[0]
    if found_id != partition_id:
        return CorruptionError(f"{place} carries partition ID {found_id}")
    if len(valid) == 2 and valid[0].sequence_number == valid[1].sequence_number:
        return CorruptionError(
            f"{place}: both structs have sequence number {valid[0].sequence_number}"
        )
    return max(valid, key=lambda entry: entry.sequence_number)


def encode_fresh_file(
    cluster_key: UUID,
    partition_count: int,
    *,
    assigned: Collection[PartitionId],
    wall_milliseconds: int,
) -> bytes:
    fresh = dict.fromkeys(assigned, FRESH.with_flag(ASSIGNED, True))
    return encode_control_file(
        cluster_key, partition_count, fresh, wall_milliseconds=wall_milliseconds
    )


def encode_control_file(
    cluster_key: UUID,
    partition_count: int,
    infos: Mapping[PartitionId, PartitionInfo],
    *,
    wall_milliseconds: int,
) -> bytes:
    """Return a new control file, in which partitions have these promises; the others are fresh."""
    header = CONTROL_HEADER.pack(
        FORMAT_VERSION, wall_milliseconds, cluster_key.bytes, partition_count, bytes(96)
    )
    structs = {info: encode_fresh_structs(info) for info in {*infos.values()}}
    return header + b"".join(
        PARTITION_ID.pack(number) + (structs[infos[number]] if number in infos else FRESH_STRUCTS)
        for number in map(PartitionId, range(partition_count))
    )


def grown(
    content: bytes, made_for: int, partition_count: int, copied: Collection[PartitionId]
) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
    """Return two writes, offset and bytes each, that make a control file of `made_for` partitions
    one of `partition_count`; the first must be durable before the second.

    `content` is the file as far as `partition_count` partitions reach. Entries beyond `made_for`
    that exist already stay: then the number in the header was damaged. `copied` are the partitions
    of which the node file has a copy; if the entry of one is lost, its copy decides.
    """
    entries = []
    for partition_id in map(PartitionId, range(made_for, partition_count)):
        start = partition_offset(partition_id)
        data = content[start : start + PARTITION_BYTES]
        if isinstance(_current_struct(data, partition_id), Entry):
            entries.append(data)
        elif partition_id in copied:
            entries.append(data.ljust(PARTITION_BYTES, LOST))  # the copy decides
        else:
            entries.append(PARTITION_ID.pack(partition_id) + FRESH_STRUCTS)
    first = partition_offset(PartitionId(made_for))
    return (first, b"".join(entries)), (COUNT_OFFSET, struct.pack(">i", partition_count))


def header_notes(header: bytes, node: NodeHeader) -> list[str]:
    """Return notes on oddities of the control file's header that do not prevent a start."""
    _, created, _, _, reserved = CONTROL_HEADER.unpack(header)
    notes = []
    if created != node.control_file_created_milliseconds:
        notes.append(
            f"{CONTROL_FILE_NAME} says that it was created at {created}, {NODE_FILE_NAME} at"
            f" {node.control_file_created_milliseconds}: damage, or not made for each other"
        )
    if reserved.strip(b"\0"):
        notes.append(f"{CONTROL_FILE_NAME}: reserved bytes of the header are not zero")
    return notes


def encode_entry(entry: Entry) -> bytes:
    return encode_struct(entry.info, entry.sequence_number)


def partition_offset(partition_id: PartitionId) -> int:
    return CONTROL_HEADER.size + PARTITION_BYTES * partition_id


def struct_offset(partition_id: PartitionId, twin: int) -> int:
    return partition_offset(partition_id) + PARTITION_ID.size + twin * STRUCT_BYTES


def judge_partitions(
    content: bytes,
    partition_count: int,
    struct_copy: Callable[[PartitionId], bytes],
    copied: Collection[PartitionId],
) -> dict[PartitionId, Judgement]:
    """Return the judgement of every partition that is not as in a fresh directory.

    `content` is the whole control file, `copied` are the partitions of which there is a copy.
    """
    body = np.frombuffer(content, np.uint8)[CONTROL_HEADER.size :]
    count = min(len(body) // PARTITION_BYTES, partition_count)
    rows = body[: count * PARTITION_BYTES].reshape(count, PARTITION_BYTES)
    fresh = np.frombuffer(FRESH_STRUCTS, np.uint8)
    is_fresh = (rows[:, PARTITION_ID.size :] == fresh).all(axis=1)
    numbers = np.ascontiguousarray(rows[:, : PARTITION_ID.size]).view(">i4").reshape(count)
    is_fresh &= numbers == np.arange(count)
    looked_at = {*np.flatnonzero(~is_fresh).tolist(), *range(count, partition_count), *copied}
    judgements = {}
    for partition_id in map(PartitionId, sorted(looked_at)):
        start = partition_offset(partition_id)
        data = content[start : start + PARTITION_BYTES]
        judgements[partition_id] = judge_partition(data, partition_id, struct_copy(partition_id))
    return judgements
