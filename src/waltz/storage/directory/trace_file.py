"""The trace file: remembers the newest segment of each partition, outside its directory.

Owns `waltz-storage.trace`. Without it a partition that has lost both files of its newest segment
looks like one that never had them, and would vote as if it had never acknowledged their records.
The Java original and earlier releases of ours ignore this file; flag 2 of the partition's slot in
the node file says that the trace is up to date.

32 bytes per partition, big-endian

    offset  size
         0     4  partition ID
         4     4  number of the update, from 1
         8     8  first transaction ID of the newest segment
        16     8  every record before this transaction ID was durable
        24     4  CRC-32 of the directory ID and the bytes before it
        28     4  reserved, zero

A trace of zeros was never written. The file has everything twice; the second area starts at the
next multiple of 4096. An update writes the first area and syncs, then writes the second and syncs.
A segment is created durably before the trace names it, and the trace forgets a segment durably
before it is removed. So a segment that the trace names, and that is not there, is lost.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple
from uuid import UUID
from zlib import crc32

from waltz.errors import SegmentFailedError
from waltz.host import Disk, File
from waltz.types import PartitionId, TransactionId

TRACE_FILE_NAME: Final = "waltz-storage.trace"
TRACE: Final = struct.Struct(">iIqq")
CHECKSUM: Final = struct.Struct(">I4x")
TRACE_BYTES: Final = TRACE.size + CHECKSUM.size
AREA_ALIGNMENT_BYTES: Final = 4096
"""The second area starts at a multiple of this: no block of a disk or file system reaches into both
areas."""
UPDATES: Final = 2**32

assert TRACE_BYTES == 32


class SegmentTrace(NamedTuple):
    """The least that a partition's directory must hold."""

    newest: TransactionId
    """First transaction ID of the newest segment, whose two files were durable."""
    durable_next: TransactionId
    """Every record before this one was durable."""


def encode_trace(
    directory_id: UUID, partition_id: PartitionId, trace: SegmentTrace, update: int
) -> bytes:
    """Return one copy of a trace; `update` is its number."""
    body = TRACE.pack(partition_id, update, *trace)
    return body + CHECKSUM.pack(crc32(directory_id.bytes + body))


def decode_trace(
    directory_id: UUID, partition_id: PartitionId, data: bytes
) -> tuple[int, SegmentTrace] | None:
    """Return the number of the update and the trace; None if the bytes do not check out, were never
    written, or are another partition's or directory's."""
    if len(data) != TRACE_BYTES or not any(data):
        return None
    body = data[: TRACE.size]
    if CHECKSUM.unpack_from(data, TRACE.size)[0] != crc32(directory_id.bytes + body):
        return None
    found_id, update, newest, durable_next = TRACE.unpack(body)
    if found_id != partition_id or not 0 <= newest <= durable_next:
        return None
    return update, SegmentTrace(TransactionId(newest), TransactionId(durable_next))


def trace_offsets(partition_count: int, partition_id: PartitionId) -> tuple[int, int]:
    """Return the bytes at which the two copies of a partition's trace start."""
    area = partition_count * TRACE_BYTES
    second = -(-area // AREA_ALIGNMENT_BYTES) * AREA_ALIGNMENT_BYTES
    return partition_id * TRACE_BYTES, second + partition_id * TRACE_BYTES


def trace_file_bytes(partition_count: int) -> int:
    return trace_offsets(partition_count, PartitionId(partition_count))[1]


def trace_file_count(content: bytes, partition_count: int) -> int:
    """Return how many partitions a file was made for: fewer than the cluster has by now if its size
    and the zeros between its areas say so, otherwise `partition_count`."""
    for count in range(1, partition_count):
        start = trace_offsets(count, PartitionId(0))[1]
        if trace_file_bytes(count) == len(content):
            return partition_count if any(content[count * TRACE_BYTES : start]) else count
    return partition_count


class TraceContent(NamedTuple):
    """The content of a trace file, by partition."""

    known: dict[PartitionId, tuple[int, SegmentTrace]]
    """The trace that counts, with the number of its update."""
    whole: frozenset[PartitionId]
    """Partitions whose two copies are equal."""
    notes: tuple[str, ...]
    """The faults that were found, as sentences for people."""


def decode_trace_file(content: bytes, directory_id: UUID, partition_count: int) -> TraceContent:
    """Return the content as values; every byte is checked."""
    known: dict[PartitionId, tuple[int, SegmentTrace]] = {}
    whole, notes = set(), []
    for partition_id in map(PartitionId, range(partition_count)):
        copies = [
            content[offset : offset + TRACE_BYTES]
            for offset in trace_offsets(partition_count, partition_id)
        ]
        found = [decode_trace(directory_id, partition_id, copy) for copy in copies]
        if valid := [each for each in found if each is not None]:
            known[partition_id] = max(valid)
        if copies[0] == copies[1]:
            whole.add(partition_id)
        elif len(valid) == 2:
            notes.append(
                f"the copies of the trace of partition {partition_id} differ: an update was cut"
                " short, or one is old"
            )
        for number, (copy, each) in enumerate(zip(copies, found, strict=True), 1):
            if each is None and (any(copy) or valid):
                notes.append(
                    f"copy {number} of the trace of partition {partition_id} fails its checksum"
                    " or was not written"
                )
    end, start = partition_count * TRACE_BYTES, trace_offsets(partition_count, PartitionId(0))[1]
    if content[end:start].strip(b"\0"):
        notes.append("bytes between the areas are not zero")
    if len(content) != (expected := trace_file_bytes(partition_count)):
        notes.append(f"{len(content)} bytes; expected {expected}")
    return TraceContent(known, frozenset(whole), tuple(notes))


class TraceFile:
    """An open trace file. Updates of different partitions may come from different threads."""

    def __init__(self, file: File, directory_id: UUID, partition_count: int) -> None:
        self._file = file
        self._directory_id = directory_id
        self._partition_count = partition_count
        content = file.read_at(0, trace_file_bytes(partition_count) + 1)
        found = decode_trace_file(content, directory_id, partition_count)
        self._known, self._whole = found.known, set(found.whole)

    def trace(self, partition_id: PartitionId) -> SegmentTrace | None:
        """Return the partition's trace; None: there is none that checks out."""
        known = self._known.get(partition_id)
        return None if known is None else known[1]

    def keep(self, partition_id: PartitionId, trace: SegmentTrace) -> None:
        """Replace the trace; return once both copies are durable. An equal trace is not written
        again. Raises SegmentFailedError."""
        update, before = self._known.get(partition_id, (0, None))
        if trace == before and partition_id in self._whole:
            return
        update = (update + 1) % UPDATES
        data = encode_trace(self._directory_id, partition_id, trace, update)
        try:
            for offset in trace_offsets(self._partition_count, partition_id):
                self._file.write_at(offset, data)
                self._file.sync()
        except OSError as error:
            # The next call writes both copies. If the failed sync has dropped another partition's
            # write, that partition's trace is older than its segments, or names some that were cut:
            # it proves less, or makes the partition abstain once; it never vouches for more.
            self._whole.discard(partition_id)
            raise SegmentFailedError(
                f"{TRACE_FILE_NAME}, partition {partition_id}: {error}"
            ) from error
        self._known[partition_id] = update, trace
        self._whole.add(partition_id)

    def grow(self, disk: Disk, directory: str, partition_count: int) -> TraceFile:
        """Replace this file, in one step and durably, by one of more partitions; return the new
        file, open, with this one closed.

        No update may be under way. With `partition_count` partitions or more nothing is done.
        Raises OSError: this file is still in place, and open.
        """
        if partition_count <= self._partition_count:
            return self
        content = bytearray(trace_file_bytes(partition_count))
        for partition_id, (update, trace) in self._known.items():
            data = encode_trace(self._directory_id, partition_id, trace, update)
            for offset in trace_offsets(partition_count, partition_id):
                content[offset : offset + TRACE_BYTES] = data
        path = f"{directory}/{TRACE_FILE_NAME}"
        temporary = f"{path}.new"
        exists = disk.exists(temporary)
        file = disk.open(temporary) if exists else disk.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, bytes(content))
            file.sync()
            disk.rename(temporary, path)
            disk.sync_directory(directory)
            grown = TraceFile(file, self._directory_id, partition_count)
        except BaseException:
            file.close()
            raise
        self._file.close()
        return grown

    def close(self) -> None:
        self._file.close()


def open_trace_file(
    disk: Disk, directory: str, *, directory_id: UUID, partition_count: int
) -> TraceFile:
    """Open the trace file, or make an empty one durably; the caller holds the directory's lock.

    A file that was made for fewer partitions grows. Raises OSError.
    """
    path = f"{directory}/{TRACE_FILE_NAME}"
    file = disk.open(path) if disk.exists(path) else disk.open(path, create=True)
    try:
        content = file.read_at(0, trace_file_bytes(partition_count) + 1)
        made_for = trace_file_count(content, partition_count)
        missing = trace_file_bytes(made_for) - file.size()
        if missing > 0:
            # Written, not left as a hole: an update must not need space.
            file.write_at(file.size(), bytes(missing))
        # Writes of a killed process must be durable before anything rests on them.
        file.sync()
        disk.sync_directory(directory)
        return TraceFile(file, directory_id, made_for).grow(disk, directory, partition_count)
    except BaseException:
        file.close()
        raise
