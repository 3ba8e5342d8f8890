"""Reads and judges the disks of storage nodes, without the product's help.

Files are read by code of its own, straight from the layout, so that an error in the product's
reader cannot hide itself.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import Final, NamedTuple
from zlib import crc32

from waltz.sim.judges.checkers import Log, attempts, show
from waltz.sim.judges.history import ContextVerdict, FedRecord, History
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

CONTROL_FILE: Final = "waltz-storage.ctl"
FILE_HEADER_BYTES: Final = 128
ENTRY_BYTES: Final = 76
FILES_MAX: Final = 64
"""Segment files whose records are remembered."""
_STRUCT: Final = struct.Struct(">qqqiiI")
_RECORD: Final = struct.Struct(">q4iiiI")
_CHECKSUM: Final = struct.Struct(">I")
_ENTRY: Final = struct.Struct(">q")


class Marks(NamedTuple):
    """The entry of a partition in a control file."""

    session_id: int
    low_water_mark: int
    local_low_water_mark: int


@dataclass(frozen=True, slots=True)
class ReplicaDisk:
    """One node's disk."""

    records: dict[PartitionId, list[FedRecord]]
    """Per partition: the records from the first on, up to the first damaged one."""
    marks: dict[PartitionId, Marks]
    """Marks of partitions with a sound entry in the control file."""
    files: Mapping[PartitionId, Mapping[str, bytes]] = field(default_factory=dict)
    """Per partition: its files by name."""


Replicas = Mapping[str, ReplicaDisk]
"""Replicas by the name of their node."""

Holders = Mapping[PartitionId, Collection[str]]
"""Per partition the names of the nodes that are meant."""


def replica_on(
    contents: Mapping[str, bytes | None], directory: str, partition_ids: Collection[PartitionId]
) -> ReplicaDisk:
    """Read a storage directory on a disk with these contents."""
    control = contents.get(f"{directory}/{CONTROL_FILE}") or b""
    records, marks = {}, {}
    files: dict[PartitionId, Mapping[str, bytes]] = {}
    for partition_id in partition_ids:
        prefix = f"{directory}/{partition_id}/"
        files[partition_id] = {
            path.removeprefix(prefix): data
            for path, data in contents.items()
            if data is not None and path.startswith(prefix)
        }
        records[partition_id] = records_on_disk(files[partition_id])
        found = _marks_in(control, partition_id)
        if found is not None:
            marks[partition_id] = found
    return ReplicaDisk(records, marks, files)


def records_on_disk(files: Mapping[str, bytes]) -> list[FedRecord]:
    """Return the records in the segment files of one partition, given by name.

    Reading ends at the first record that is cut short, has an unexpected ID or a wrong checksum.
    Source: Waltz Internals, "Segment Data File".
    """
    records: list[FedRecord] = []
    for name in sorted(name for name in files if name.endswith(".seg")):
        if int(name.removesuffix(".seg")) != len(records):
            break
        records += _records_in(files[name], TransactionId(len(records)))
    return records


def blocks_on_disk(contents: Mapping[str, bytes | None], directory: str) -> list[bytes]:
    """Return the bytes of each record of a partition, whose directory is on a disk with these
    contents; read as `records_on_disk` reads."""
    found: list[bytes] = []
    prefix = f"{directory}/"
    for path in sorted(contents):
        data = contents[path]
        name = path.removeprefix(prefix)
        if data is None or not path.startswith(prefix) or not name.endswith(".seg"):
            continue
        if int(name.removesuffix(".seg")) != len(found):
            break
        places = [offset for offset, _ in _placed_records(data, TransactionId(len(found)))]
        found += [data[start:end] for start, end in pairwise(places)]
    return found


def leftovers_in(files: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what in the segment files of one partition is not part of the log: bytes after the last
    record, and index entries that are not the place of their record. An entry of 0 is not counted:
    entries may be late. Source: Waltz Internals, "Segment Index File"."""
    for name, file in sorted(files.items()):
        if not name.endswith(".seg"):
            continue
        stem = name.removesuffix(".seg")
        places = [offset for offset, _ in _placed_records(file, TransactionId(int(stem)))]
        end = places.pop()
        if end < len(file):
            yield f"{name} has {len(file) - end} bytes after its {len(places)} records"
        index = files.get(f"{stem}.idx", b"")[FILE_HEADER_BYTES:]
        entries = [
            entry
            for (entry,) in _ENTRY.iter_unpack(index[: len(index) // _ENTRY.size * _ENTRY.size])
        ]
        for position, entry in enumerate(entries):
            place = places[position] if position < len(places) else None
            if entry not in (0, place):
                yield f"{stem}.idx says {entry} of record {position}; it is at {place}"
                break


def _records_in(file: bytes, first: TransactionId) -> Iterator[FedRecord]:
    return (record for _, record in _placed_records(file, first) if record is not None)


@lru_cache(maxsize=FILES_MAX)
def _placed_records(file: bytes, first: TransactionId) -> Sequence[tuple[int, FedRecord | None]]:
    """Each record with the place of its first byte, and the place after the last one with None.

    The same file is looked at for several reasons, and again before it has changed.
    """
    return tuple(_checked_records(file, first))


def _checked_records(file: bytes, first: TransactionId) -> Iterator[tuple[int, FedRecord | None]]:
    offset = FILE_HEADER_BYTES
    expected = int(first)
    while offset + _RECORD.size + _CHECKSUM.size <= len(file):
        found, client, generation, partition, sequence, header, length, checksum = (
            _RECORD.unpack_from(file, offset)
        )
        end = offset + _RECORD.size + length
        if found != expected or length < 0 or end + _CHECKSUM.size > len(file):
            break
        data = file[offset + _RECORD.size : end]
        if (crc32(file[offset:end]),) != _CHECKSUM.unpack_from(file, end) or crc32(
            data
        ) != checksum:
            break
        yield (
            offset,
            FedRecord(
                TransactionId(found),
                RequestId(
                    ClientId(client), Generation(generation), PartitionId(partition), sequence
                ),
                header,
                data,
            ),
        )
        offset = end + _CHECKSUM.size
        expected += 1
    yield offset, None


def _marks_in(control: bytes, partition_id: PartitionId) -> Marks | None:
    """Return the newer of a partition's two structs that are sound."""
    start = FILE_HEADER_BYTES + ENTRY_BYTES * partition_id + 4
    found: list[tuple[int, Marks]] = []
    for position in (start, start + _STRUCT.size):
        if position + _STRUCT.size > len(control):
            continue
        *marks, _, sequence, checksum = _STRUCT.unpack_from(control, position)
        if crc32(control[position : position + _STRUCT.size - 4]) == checksum:
            found.append((sequence, Marks(*marks)))
    return max(found)[1] if found else None


# Judgement


def agreement(replicas: Replicas, log: Log, assigned: Holders) -> list[str]:
    """I2 and I12: every replica assigned holds the log, byte for byte."""
    violations = []
    for partition_id, records in log.items():
        for name in sorted(assigned[partition_id]):
            held = replicas[name].records.get(partition_id, [])[: len(records)]
            if held == records:
                continue
            for record, there in zip_longest(records, held):
                if record != there:
                    violations.append(
                        f"I2 agreement: {name} holds {show(there)} in partition {partition_id}"
                        f" where the log has {show(record)}"
                    )
                    break
    return violations


def tidiness(replicas: Replicas, assigned: Holders) -> list[str]:
    """I12: segment files hold the log and its index, and nothing else: a reader that reads them to
    their end, or uses the index, finds what is there."""
    return [
        f"I12 convergence: {name}, partition {partition_id}: {leftover}"
        for partition_id, names in assigned.items()
        for name in sorted(names)
        for leftover in leftovers_in(replicas[name].files.get(partition_id, {}))
    ]


def settledness(members: Holders, assigned: Holders) -> list[str]:
    """I12: a change of replicas ends."""
    return [
        f"I12 convergence: the metadata of partition {partition_id} names"
        f" {sorted(members[partition_id])}; assigned are {sorted(names)}"
        for partition_id, names in assigned.items()
        if members[partition_id] != names
    ]


def held_by_enough(
    history: History, replicas: Replicas, members: Holders, harmed_count: int = 0
) -> list[str]:
    """I1 on disks: what was reported committed is on a majority of the disks of those replicas
    whose majority the next session asks, less those that were harmed."""
    held = {name: attempts(replica.records) for name, replica in replicas.items()}
    violations = []
    for context, submission in history.submissions.items():
        if not submission.has_ended(ContextVerdict.COMMITTED):
            continue
        names = members[submission.partition_id]
        count = sum(context in held[name] for name in names)
        # Counted by hand on purpose: were the product's rule wrong, a judge that used it would be
        # wrong in the same way and see nothing.
        if count < len(names) // 2 + 1 - harmed_count:
            violations.append(
                f"I1 durability: context {context} of {submission.client} was reported committed"
                f" in partition {submission.partition_id} and lies on {count} of {len(names)} disks"
            )
    return violations


class MarkWatch:
    """I10: marks on disks only grow, and the transactions below them stay the log for good."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, PartitionId], Marks] = {}
        self._settled: dict[tuple[str, PartitionId], Sequence[FedRecord]] = {}
        self.violations: list[str] = []

    def look(
        self,
        replicas: Replicas,
        harmed: Collection[str],
        written_off: Collection[tuple[str, PartitionId]] = (),
    ) -> None:
        """Take note of the present marks. Harmed disks do not count, and replicas that were written
        off are not held to their earlier marks."""
        for name, replica in replicas.items():
            if name in harmed:
                continue
            for partition_id, marks in replica.marks.items():
                key = (name, partition_id)
                if key in written_off:
                    self._newest.pop(key, None)
                    self._settled.pop(key, None)
                before = self._newest.get(key, marks)
                if any(new < old for new, old in zip(marks, before, strict=True)):
                    self.violations.append(
                        f"I10 mark order: {name} went from {before} to {marks} in partition"
                        f" {partition_id}"
                    )
                held = replica.records[partition_id]
                if marks.local_low_water_mark >= len(held):
                    self.violations.append(
                        f"I10 mark order: {name} holds {len(held)} transactions of partition"
                        f" {partition_id} and says {marks}"
                    )
                settled = self._settled.get(key, ())
                if list(settled) != held[: len(settled)]:
                    self.violations.append(
                        f"I10 mark order: {name} has changed transactions of partition"
                        f" {partition_id} up to its mark {before.local_low_water_mark}"
                    )
                self._newest[key] = marks
                self._settled[key] = held[: marks.local_low_water_mark + 1]

    def judge(self, log: Log) -> list[str]:
        """Return all violations, given the log in the end."""
        violations = self.violations
        for (name, partition_id), settled in self._settled.items():
            records = log.get(partition_id, ())
            marks = self._newest[name, partition_id]
            if marks.low_water_mark >= len(records):
                violations.append(
                    f"I10 mark order: {name} says {marks} in partition {partition_id}, whose log"
                    f" has {len(records)} transactions"
                )
            if list(settled) != list(records[: len(settled)]):
                violations.append(
                    f"I10 mark order: {name} held other transactions up to its mark"
                    f" {marks.local_low_water_mark} of partition {partition_id} than the log has"
                )
        return violations
