"""Every byte of an archive and of a storage node's log is changed, one at a time.

Here are 105 transactions, in the segment file of a storage node and in an archive with the tree of
it, more than 200,000 bytes. `waltz attest check` has to find each change, and to name the first
transaction whose leaf differs. Which one that is says an oracle that shares no code with the
product: it reads segment and archive with `struct`, `hashlib` and zstandard alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from random import Random
from zlib import crc32

import zstandard

from tests.archive.archives import KEY, NOW
from tests.attest.trees import known_key
from tests.storage.support import DIRECTORY, SESSION, ZERO, fresh_disk, open_partition, succeed, t
from waltz.archive.archive import read_archive
from waltz.archive.archive_target import Listed
from waltz.archive.commits import commit, create_archive, write_object
from waltz.archive.log_object import ObjectWriter
from waltz.archive.manifest import Manifest, TimeMark
from waltz.attest.attester import Attester
from waltz.attest.notes import KeyKind
from waltz.attest.tree_files import TreeFiles
from waltz.cli.attest_check import Check, Finding, held_records, manifest_faults
from waltz.errors import CorruptionError, NotFoundError, RemoteStorageError, WaltzError
from waltz.operators.replicas_shell import Replica
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.types import PartitionId, ReplicaId, TransactionId
from waltz.wire.storage_protocol import AppendRecordsRequest

COUNT = 105
DATA_BYTES = 960
SEGMENT_HEADER_BYTES = 128
LOG_KEY = known_key("tampered", KeyKind.LOG, name=f"waltz/{KEY}")
REPLICA = Replica(PartitionId(0), ReplicaId("storage:1"), 1, True, None)
HINT = "manifests/hint"


def some_records() -> RecordBatch:
    """Return records whose data no compressor makes shorter, and some that it does."""
    random = Random(11)
    new = []
    for number in range(COUNT):
        data = random.randbytes(DATA_BYTES) if number % 10 else b"%d " % number * 300
        new.append(NewRecord(struct.pack(">iiii", 7, 1, 0, number), number, data, crc32(data)))
    return pack_records(TransactionId(0), new)


@dataclass(frozen=True, slots=True)
class Change:
    """The byte at `offset` of a file of the archive, or of the log with `path` None, becomes
    `value`."""

    path: str | None
    offset: int
    value: int


class MemoryTarget:
    """A place of an archive that is as fast as memory; implements `Target`."""

    url = "memory:"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def put_if_absent(self, path: str, data: bytes) -> bool:
        return not self.put_all_if_absent([(path, data)])

    def put_all_if_absent(self, objects: Sequence[tuple[str, bytes]]) -> list[str]:
        return [path for path, data in objects if self.objects.setdefault(path, data) is not data]

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def get(self, path: str, bytes_max: int) -> bytes:
        if path not in self.objects:
            raise NotFoundError(path)
        return self.objects[path]

    def get_range(self, path: str, start: int, count: int) -> bytes:
        return self.get(path, 0)[start : start + count]

    def exists(self, path: str) -> bool:
        return path in self.objects

    def list(self, prefix: str, after: str | None = None) -> Iterator[Listed]:
        for path, data in sorted(self.objects.items()):
            if path.startswith(f"{prefix}/") and path > (after or ""):
                yield Listed(path, len(data), NOW)

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)


class Tampered:
    """The log and the archive, and who changes them."""

    def __init__(self) -> None:
        self.target = MemoryTarget()
        records = some_records()
        writer = ObjectWriter(KEY, PartitionId(0), TransactionId(0))
        writer.add(records)
        file = write_object(self.target, writer.finish(), "0" * 16)
        change = Manifest(
            0,
            None,
            NOW,
            "writer",
            files=(file,),
            time_marks={PartitionId(0): (TimeMark(TransactionId(COUNT - 1), NOW),)},
            nodes={"/store": b"made for tests"},
            verified={PartitionId(0): (ReplicaId("storage:1"),)},
        )
        commit(self.target, create_archive(self.target, KEY).contents, change)
        archive = read_archive(self.target)
        Attester(TreeFiles(self.target, ZERO), KEY, ZERO, LOG_KEY).extend(archive, t(COUNT))
        disk = fresh_disk()
        partition = open_partition(disk)
        succeed(partition, AppendRecordsRequest(SESSION, 1, ZERO, records, False))
        partition.close()
        self._disk = disk.contents()
        (self.segment,) = (path for path in self._disk if path.endswith(".seg"))
        assert self.segment.startswith(DIRECTORY)
        self.oracle = Oracle(self.log, self.read(file.path))

    @property
    def log(self) -> bytes:
        data = self._disk[self.segment]
        assert data is not None
        return data

    def read(self, path: str) -> bytes:
        return self.target.objects[path]

    def footer_at(self) -> int:
        """Return where the footer of the object begins, as the manifest tells."""
        (told,) = json.loads(self.read("manifests/00000000000000000000.json"))["files"]
        return int(told["footer_at"])

    def footerless(self, path: str) -> bytes:
        """Return the frames of an object."""
        return self.read(path)[64 : self.footer_at()]

    def places(self) -> list[tuple[str | None, int]]:
        """Return every byte of records, archive and tree: file and offset."""
        found: list[tuple[str | None, int]] = [
            (None, offset) for offset in range(SEGMENT_HEADER_BYTES, len(self.log))
        ]
        for path, data in sorted(self.target.objects.items()):
            found += [(path, offset) for offset in range(len(data))]
        return found

    def changed(self, change: Change) -> list[Finding]:
        """Return what is found with this change, which is taken back."""
        if change.path is None:
            disk = SimulatedDisk(contents=self._disk)
            disk.damage(self.segment, change.offset, bytes([change.value]))
            return [self._compared(disk)]
        kept = self.read(change.path)
        changed = bytearray(kept)
        changed[change.offset] = change.value
        self.target.objects[change.path] = bytes(changed)
        try:
            return self._archived()
        finally:
            self.target.objects[change.path] = kept

    def _archived(self) -> list[Finding]:
        """Check as the command does; an archive that cannot be opened is a finding, too."""
        try:
            archive = read_archive(self.target)
        except WaltzError as error:
            return [Finding(None, "archive", False, str(error))]
        check = Check(self.target, archive, ZERO, LOG_KEY.public_key)
        return [*manifest_faults(self.target), check.archived()]

    def _compared(self, disk: SimulatedDisk) -> Finding:
        archive = read_archive(self.target)
        check = Check(self.target, archive, ZERO, LOG_KEY.public_key)
        reader = Node(disk)
        return check.compared("storage node", lambda at: held_records(reader, REPLICA, at.size))  # type: ignore[arg-type]


class Node:
    """A storage node that has just been started, and is asked by its administrator."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def read_records(self, replica: Replica, first: int, end: int) -> Iterator[RecordBatch]:
        try:
            partition = open_partition(self._disk)
            position = first
            while position < end:
                batch = partition.log.records.read(
                    t(position), count_max=end - position, bytes_max=1 << 20
                )
                if not len(batch):
                    return
                yield batch
                position = batch.next_transaction_id
        except CorruptionError as error:
            raise RemoteStorageError(str(error)) from None


class Oracle:
    """Says which transaction a change concerns, without a line of the product."""

    def __init__(self, segment: bytes, archived: bytes) -> None:
        self._starts = []
        place = SEGMENT_HEADER_BYTES
        for number in range(COUNT):
            found, _, _, length = struct.unpack_from(">q16sii", segment, place)
            assert found == number
            self._starts.append(place)
            place += 36 + length + 4
        assert place == len(segment)
        self._segment = segment
        self._archived = archived

    def changed_record(self, offset: int) -> int:
        """Return the transaction in whose record that byte of the segment lies."""
        return max(number for number, start in enumerate(self._starts) if start <= offset)

    @cached_property
    def leaves(self) -> list[bytes]:
        ends = [*self._starts[1:], len(self._segment)]
        return [
            leaf(self._segment[start:end]) for start, end in zip(self._starts, ends, strict=True)
        ]

    def changed_leaf(self, change: Change, footer_at: int, step: int) -> int | None:
        """Return the first transaction that the changed object has no more, or has otherwise;
        None: all are there. Up to `step` bytes before what cannot be unpacked may be left out."""
        data = bytearray(self._archived)
        data[change.offset] = change.value
        same = max(0, min(change.offset, footer_at) - 64 - 1)
        found = list(left_in(bytes(data[64:footer_at]), same, step))
        for number, expected in enumerate(self.leaves):
            if number >= len(found) or found[number] != expected:
                return number
        return None


def leaf(record: bytes) -> bytes:
    return sha256(b"\x00" + KEY.bytes + struct.pack(">i", 0) + record[:-4]).digest()


def left_in(body: bytes, same: int, step: int) -> Iterator[bytes]:
    """Yield the leaf hashes of the records that frames give before the first fault: the first
    `same` bytes are sound, the others are unpacked `step` at a time."""
    raw = bytearray()
    unpacker = zstandard.ZstdDecompressor().decompressobj(read_across_frames=True)
    try:
        raw += unpacker.decompress(body[:same])
        for place in range(same, len(body), step):
            raw += unpacker.decompress(body[place : place + step])
    except zstandard.ZstdError:
        pass  # what came before it counts
    place = number = 0
    while len(raw) - place >= 40:
        found, _, _, length = struct.unpack_from(">q16sii", raw, place)
        end = place + 40 + length
        if found != number or length < 0 or end > len(raw):
            return
        yield leaf(bytes(raw[place:end]))
        place, number = end, number + 1


def judge(tampered: Tampered, change: Change) -> None:
    """Raises AssertionError: the change is not found, or another transaction is named."""
    findings = tampered.changed(change)
    assert any(each.is_well is False for each in findings), change
    named = findings[-1].transaction
    path, oracle = change.path, tampered.oracle
    if path is None:
        assert named == oracle.changed_record(change.offset), (change, findings)
    elif path.endswith(".wal"):
        expected = oracle.changed_leaf(change, tampered.footer_at(), step=4096)
        if named != expected:  # exactly, at some cost
            expected = oracle.changed_leaf(change, tampered.footer_at(), step=1)
        assert named == expected, (change, expected, findings)
    elif "/tile/0/" in path:
        assert named == change.offset // 32, (change, findings)
        assert "the tree was changed" in findings[-1].text, (change, findings)
    else:
        assert named is None, (change, findings)


def changes(tampered: Tampered, seed: object) -> Iterator[Change]:
    """Yield a change of every byte."""
    random = Random(f"{seed}")
    for path, offset in tampered.places():
        kept = tampered.log[offset] if path is None else tampered.read(path)[offset]
        yield Change(path, offset, kept ^ random.randrange(1, 256))
