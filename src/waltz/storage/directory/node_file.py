"""The node file: what this release remembers of a directory in addition to the control file.

Owns `waltz-storage.node`: the directory's identity, and per partition the session fence and a copy
of the partition's current control struct, as opaque bytes. The file has everything twice, in two
equal areas, so that one lost sector loses nothing. Knows nothing of a struct's meaning; which of
the two files is right is judged in `control_file.py`. The Java original ignores this file.

    offset  size  header
         0     4  format version
         4     8  creation time, milliseconds since 1970
        12    16  cluster key
        28     4  number of partitions of the cluster
        32    16  directory ID, a UUID
        48     8  creation time of the control file
        56    68  reserved, zero
       124     4  CRC-32 of the bytes before it

then 64 bytes per partition

         0     4  partition ID
         4     4  flags: 1 this release wrote the partition's index, 2 the trace file has a trace
                  of its segments
         8     8  session fence, -1 for none
        16    36  copy of the current control struct
        52     8  sequence number of the slot, from 1
        60     4  CRC-32 of the bytes before it

A slot of zeros was never written. The second area starts at the next multiple of 4096. Big-endian.
An update writes the first area and syncs, then the second and syncs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final
from uuid import UUID
from zlib import crc32

import numpy as np

from waltz.errors import (
    ConfigurationError,
    CorruptionError,
    ForeignDirectoryError,
)
from waltz.host import Disk, File
from waltz.limits import PARTITIONS_MAX
from waltz.storage.directory.synced_file import SyncedFile
from waltz.types import NO_SESSION, PartitionId, SessionId

NODE_FILE_NAME: Final = "waltz-storage.node"
NODE_FORMAT_VERSION: Final = 0

NODE_HEADER: Final = struct.Struct(">iq16si16sq68s")
SLOT: Final = struct.Struct(">iiq36sq")
CHECKSUM: Final = struct.Struct(">I")

NODE_HEADER_BYTES: Final = NODE_HEADER.size + CHECKSUM.size
SLOT_BYTES: Final = SLOT.size + CHECKSUM.size
STRUCT_COPY_BYTES: Final = 36
AREA_ALIGNMENT_BYTES: Final = 4096
"""The second area starts at a multiple of this: no block of a disk or file system reaches into both
areas."""

assert NODE_HEADER_BYTES == 128
assert SLOT_BYTES == 64

INDEX_IS_OURS: Final = 1
IS_TRACED: Final = 2
"""The flag that the trace is up to date. Earlier releases, which know no trace, write it as 0, so
that the trace is not believed after them."""

NEVER_WRITTEN: Final = bytes(SLOT_BYTES)
LOST: Final = b"\xff"
"""The byte that stands for a part that was cut off: no valid slot consists of it."""
NO_COPY: Final = bytes(STRUCT_COPY_BYTES)


@dataclass(frozen=True, slots=True)
class NodeHeader:
    """The identity of the directory; only the number of partitions ever changes, and it only
    grows."""

    cluster_key: UUID
    partition_count: int
    directory_id: UUID
    created_milliseconds: int
    control_file_created_milliseconds: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The memory of one partition.

    `struct_copy` is the control struct that this release wrote or found last, zeros if none.
    `index_is_ours` says that this release was the last to write the partition's index at that time,
    `is_traced` that it has kept a trace of the partition's segments (`trace_file.py`).
    """

    fence: SessionId = NO_SESSION
    struct_copy: bytes = NO_COPY
    index_is_ours: bool = False
    sequence_number: int = 0
    is_traced: bool = False


EMPTY_SLOT: Final = Slot()


@dataclass(frozen=True, slots=True)
class NodeFileContent:
    """The content of a node file, and the writes that make the file whole again."""

    header: NodeHeader
    slots: Mapping[PartitionId, Slot | CorruptionError]
    """Slots that were ever written."""
    repairs: tuple[tuple[int, bytes], ...]
    notes: tuple[str, ...]
    """The faults that were found, as sentences for people."""


def encode_header(header: NodeHeader) -> bytes:
    body = NODE_HEADER.pack(
        NODE_FORMAT_VERSION,
        header.created_milliseconds,
        header.cluster_key.bytes,
        header.partition_count,
        header.directory_id.bytes,
        header.control_file_created_milliseconds,
        bytes(68),
    )
    return body + CHECKSUM.pack(crc32(body))


def encode_slot(partition_id: PartitionId, slot: Slot) -> bytes:
    body = SLOT.pack(
        partition_id,
        INDEX_IS_OURS * slot.index_is_ours | IS_TRACED * slot.is_traced,
        slot.fence,
        slot.struct_copy,
        slot.sequence_number,
    )
    return body + CHECKSUM.pack(crc32(body))


def decode_slot(data: bytes, partition_id: PartitionId) -> Slot | None:
    """Return the slot in `data`; None if it does not check out or is another partition's."""
    if data == NEVER_WRITTEN:
        return EMPTY_SLOT
    body = data[: SLOT.size]
    if len(data) != SLOT_BYTES or CHECKSUM.unpack_from(data, SLOT.size)[0] != crc32(body):
        return None
    found_id, flags, fence, struct_copy, sequence_number = SLOT.unpack(body)
    if found_id != partition_id:
        return None
    return Slot(
        SessionId(fence),
        struct_copy,
        bool(flags & INDEX_IS_OURS),
        sequence_number,
        bool(flags & IS_TRACED),
    )


def area_offsets(partition_count: int) -> tuple[int, int]:
    """Return the bytes at which the two areas start."""
    size = _area_bytes(partition_count)
    return 0, -(-size // AREA_ALIGNMENT_BYTES) * AREA_ALIGNMENT_BYTES


def node_file_bytes(partition_count: int) -> int:
    return area_offsets(partition_count)[1] + _area_bytes(partition_count)


def _area_bytes(partition_count: int) -> int:
    return NODE_HEADER_BYTES + SLOT_BYTES * partition_count


def decode_node_file(
    content: bytes, *, cluster_key: UUID, partition_count: int, place: str
) -> NodeFileContent:
    """Return the content of the file at `place`; every byte is checked.

    Raises ConfigurationError: no header checks out, or the format is another release's;
    ForeignDirectoryError: the file is another cluster's.
    """
    size = _area_bytes(partition_count)
    starts = area_offsets(partition_count)
    # A part that was cut off must not look as if it had never been written.
    whole = content.ljust(node_file_bytes(partition_count), LOST)
    areas = [whole[start : start + size] for start in starts]
    repairs: list[tuple[int, bytes]] = []
    notes: list[str] = []
    heads = [area[:NODE_HEADER_BYTES] for area in areas]
    right_head = _right_head(heads, cluster_key, place)
    header = _decode_header(right_head, place)
    _check_owner(header, cluster_key, partition_count, place)
    for copy, head in enumerate(heads):
        if head != right_head:
            repairs.append((starts[copy], right_head))
            notes.append(f"{place}: copy {copy + 1} of the header was damaged; restored")
    slots: dict[PartitionId, Slot | CorruptionError] = {}
    for partition_id in _written(areas):
        offset = NODE_HEADER_BYTES + SLOT_BYTES * partition_id
        found = [area[offset : offset + SLOT_BYTES] for area in areas]
        valid = [
            (slot.sequence_number, slot, data)
            for data in found
            if (slot := decode_slot(data, partition_id)) is not None
        ]
        if not valid:
            slots[partition_id] = CorruptionError(
                f"partition {partition_id} in {place}: both copies of its slot fail their checksum;"
                " give the partition up and take it again"
            )
            continue
        _, slot, right = max(valid, key=lambda each: each[0])
        for copy, data in enumerate(found):
            if data != right:
                # Both copies, for a failed sync may have left the good one in memory only.
                repairs += [(start + offset, right) for start in starts]
                notes.append(
                    f"{place}: copy {copy + 1} of the slot of partition {partition_id} was damaged"
                    " or of an update cut short; restored"
                )
        if right != NEVER_WRITTEN:
            slots[partition_id] = slot
    if whole[size : starts[1]].strip(b"\0"):
        repairs.append((size, bytes(starts[1] - size)))
        notes.append(f"{place}: bytes between the areas were not zero; restored")
    if len(content) != node_file_bytes(partition_count):
        notes.append(
            f"{place} has {len(content)} bytes; expected {node_file_bytes(partition_count)}"
        )
    return NodeFileContent(header, slots, tuple(repairs), tuple(notes))


def node_file_count(content: bytes, counts: Sequence[int], cluster_key: UUID) -> int:
    """Return how many partitions a node file was made for, according to the first copy of its
    header, or else the second, which lies where one of `counts` puts it; a header of the cluster's
    own counts before a foreign one. Without either return the first of `counts`: decoding the file
    by it tells what is wrong."""
    starts = (0, *(area_offsets(count)[1] for count in counts))
    heads = [content[start : start + NODE_HEADER_BYTES] for start in starts]
    sound = [head for head in heads if len(head) == NODE_HEADER_BYTES and _is_sound(head)]
    for head in (*_own(sound, cluster_key), *sound):
        count = NODE_HEADER.unpack_from(head)[3]
        if 0 < count <= PARTITIONS_MAX:
            return int(count)
    return counts[0]


def _is_sound(head: bytes) -> bool:
    checksum = CHECKSUM.unpack_from(head, NODE_HEADER.size)[0]
    return bool(checksum == crc32(head[: NODE_HEADER.size]))


def _own(heads: Iterable[bytes], cluster_key: UUID) -> list[bytes]:
    """Return the sound headers that are the cluster's own: a block of records that strayed here may
    have a matching checksum in the same place."""
    return [head for head in heads if NODE_HEADER.unpack_from(head)[2] == cluster_key.bytes]


def _right_head(heads: list[bytes], cluster_key: UUID, place: str) -> bytes:
    """Return the copy of the header that checks out, the cluster's own if there is one."""
    valid = {head for head in heads if _is_sound(head)}
    valid = set(_own(valid, cluster_key)) or valid
    if len(valid) != 1:
        raise ConfigurationError(
            f"{place}: both copies of the header fail their checksum or they differ: put the file"
            " back, or start with a fresh directory"
        )
    return valid.pop()


def _decode_header(head: bytes, place: str) -> NodeHeader:
    version, created, key, count, directory, control_created, _ = NODE_HEADER.unpack_from(head)
    if version != NODE_FORMAT_VERSION:
        raise ConfigurationError(
            f"{place} has format version {version}; this release knows {NODE_FORMAT_VERSION}"
        )
    return NodeHeader(UUID(bytes=key), count, UUID(bytes=directory), created, control_created)


def _check_owner(header: NodeHeader, cluster_key: UUID, partition_count: int, place: str) -> None:
    if header.cluster_key != cluster_key:
        raise ForeignDirectoryError(
            f"{place} belongs to cluster {header.cluster_key}, not to {cluster_key}"
        )
    if header.partition_count != partition_count:
        raise ForeignDirectoryError(
            f"{place} was made for {header.partition_count} partitions, the cluster has"
            f" {partition_count}"
        )


def _written(areas: list[bytes]) -> Iterator[PartitionId]:
    """Yield the partitions that have a copy which is not all zeros."""
    words = np.stack([np.frombuffer(area, np.uint64, offset=NODE_HEADER_BYTES) for area in areas])
    rows = words.reshape(len(areas), -1, SLOT_BYTES // 8).any(axis=(0, 2))
    return (PartitionId(number) for number in np.flatnonzero(rows).tolist())


class NodeFile:
    """An open node file. Updates of different partitions may come from different threads.

    After a failed write or sync nobody knows what the disk holds, so that every later update is
    refused; only a write that found no space may be tried again.
    """

    def __init__(self, file: File, content: NodeFileContent) -> None:
        self.header = content.header
        self.notes = content.notes
        self._file = SyncedFile(file, NODE_FILE_NAME)
        self._slots = dict(content.slots)
        self._starts = area_offsets(content.header.partition_count)

    @property
    def partition_ids(self) -> frozenset[PartitionId]:
        """Partitions whose slot was ever written."""
        return frozenset(self._slots)

    def slot(self, partition_id: PartitionId) -> Slot:
        """Return the partition's slot. Raises CorruptionError: neither copy can be trusted."""
        slot = self._slots.get(partition_id, EMPTY_SLOT)
        if isinstance(slot, CorruptionError):
            raise CorruptionError(str(slot))
        return slot

    def update(
        self,
        partition_id: PartitionId,
        *,
        fence: SessionId,
        struct_copy: bytes,
        index_is_ours: bool,
        is_traced: bool = False,
    ) -> Slot:
        """Replace the slot; return the new one once both copies are durable. Raises
        SegmentFailedError."""
        found = self._slots.get(partition_id, EMPTY_SLOT)
        number = 0 if isinstance(found, CorruptionError) else found.sequence_number
        slot = Slot(fence, struct_copy, index_is_ours, number + 1, is_traced)
        data = encode_slot(partition_id, slot)
        for start in self._starts:
            self._file.write(start + NODE_HEADER_BYTES + SLOT_BYTES * partition_id, data)
        self._slots[partition_id] = slot
        return slot

    def grow(self, disk: Disk, directory: str, partition_count: int) -> NodeFile:
        """Replace this file, in one step and durably, by one of more partitions; return the new
        file, open, with this one closed.

        No update may be under way. Raises SegmentFailedError: an earlier update has failed, so that
        nobody knows what the disk holds; OSError: this file is still in place, and open.
        """
        self._file.check_sound()
        header = replace(self.header, partition_count=partition_count)
        create_node_file(disk, directory, header, self._slots)
        file = disk.open(f"{directory}/{NODE_FILE_NAME}")
        self._file.close()
        return NodeFile(file, NodeFileContent(header, self._slots, (), self.notes))

    def close(self) -> None:
        self._file.close()


def create_node_file(
    disk: Disk,
    directory: str,
    header: NodeHeader,
    slots: Mapping[PartitionId, Slot | CorruptionError] = MappingProxyType({}),
) -> None:
    """Make a node file with `slots`, in one step and durably. Raises OSError.

    The caller holds the directory's lock; the remains of an earlier attempt are replaced.
    """
    path = f"{directory}/{NODE_FILE_NAME}"
    temporary = f"{path}.new"
    try:
        file = disk.open(temporary, create=True)
    except FileExistsError:
        file = disk.open(temporary)
    try:
        file.truncate(0)
        for start in area_offsets(header.partition_count):
            file.write_at(start, encode_header(header))
            for partition_id, slot in slots.items():
                data = LOST * SLOT_BYTES
                if isinstance(slot, Slot):
                    data = encode_slot(partition_id, slot)
                file.write_at(start + NODE_HEADER_BYTES + SLOT_BYTES * partition_id, data)
        # Slots are holes until they are written.
        file.truncate(node_file_bytes(header.partition_count))
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(directory)


def open_node_file(
    disk: Disk, directory: str, *, cluster_key: UUID, partition_count: int
) -> NodeFile:
    """Open the node file and repair each copy from the other.

    The caller holds the directory's lock. Raises ConfigurationError, ForeignDirectoryError,
    FileNotFoundError, OSError.
    """
    file = disk.open(f"{directory}/{NODE_FILE_NAME}")
    try:
        content = decode_node_file(
            file.read_at(0, node_file_bytes(partition_count) + 1),
            cluster_key=cluster_key,
            partition_count=partition_count,
            place=f"{directory}/{NODE_FILE_NAME}",
        )
        cut_off = node_file_bytes(partition_count) - file.size()
        if cut_off > 0:
            # The repairs lengthen the file; a hole must not pass for a slot that was never written.
            file.write_at(file.size(), LOST * cut_off)
        # Writes of a killed process, and repairs, must be durable before anything rests on them.
        file.sync()
        second = area_offsets(partition_count)[1]
        for repairs in (
            [repair for repair in content.repairs if repair[0] < second],
            [repair for repair in content.repairs if repair[0] >= second],
        ):
            for offset, data in repairs:
                file.write_at(offset, data)
            if repairs:
                file.sync()
        return NodeFile(file, content)
    except BaseException:
        file.close()
        raise
