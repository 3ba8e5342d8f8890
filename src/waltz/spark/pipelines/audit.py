"""Compares the copies that storage nodes have of the log with each other, and with the archive.

Servers hand out what is committed from whichever replica answers; a replica that differs is found
only by reading each of them. Tasks read a few blocks from every copy, compare digests, and where
these differ look for the first transaction that does. Nothing is changed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

from waltz import NOTHING, Replica, ReplicaMarks, ReplicaReader
from waltz.errors import CorruptionError, RemoteStorageError, UnavailableError, WaltzError
from waltz.spark.any_archive import open_archive, read_file
from waltz.spark.archive_files import SCHEMA
from waltz.spark.archive_location import ArchiveLocation
from waltz.spark.block_digests import BlockDigester, block_ranges
from waltz.spark.codes import DIFFERENT
from waltz.spark.copies import (
    ARCHIVE,
    Copy,
    CopyDifference,
    comparable_to,
    comparisons,
    first_difference,
    missing_promised,
)
from waltz.spark.offsets import TransactionRange, select_partitions
from waltz.spark.parquet_archive import NOTHING_ARCHIVED, Contents
from waltz.spark.pipelines.definition import PipelineDefinition
from waltz.spark.schema import record_batch
from waltz.spark.tasks import LogAccess
from waltz.spark.work import run_tasks
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result for one copy of a partition.

    compared  the number of its transactions that were compared with another copy.
    trouble   why some were not compared that should have been; None if all were.
    note      why the copy was not compared to the end of the log, though nothing is wrong with it;
              None if it was.
    """

    partition_id: PartitionId
    name: str
    compared: int
    trouble: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit; `logged` is the number of transactions of each partition, as far as
    it is known."""

    logged: Mapping[PartitionId, int]
    copies: tuple[CopyReport, ...]
    differences: tuple[CopyDifference, ...]

    @property
    def is_complete(self) -> bool:
        """Return whether every copy was compared as far as it must equal the log."""
        return all(each.trouble is None for each in self.copies)

    @property
    def is_equal(self) -> bool:
        """Return whether everything was compared and is equal."""
        return self.is_complete and not self.differences

    @property
    def transactions(self) -> int:
        """Return how many transactions were compared."""
        most: Counter[PartitionId] = Counter()
        for each in self.copies:
            most[each.partition_id] = max(most[each.partition_id], each.compared)
        return most.total()

    def to_json(self) -> dict[str, Any]:
        return {
            "equal": self.is_equal,
            "complete": self.is_complete,
            "transactions": self.transactions,
            "partitions": [
                {
                    "partition": partition_id,
                    "log": count,
                    "copies": [
                        {
                            "name": each.name,
                            "compared": each.compared,
                            "trouble": each.trouble,
                            "note": each.note,
                        }
                        for each in self.copies
                        if each.partition_id == partition_id
                    ],
                }
                for partition_id, count in sorted(self.logged.items())
            ],
            "differences": [
                {
                    "partition": each.partition_id,
                    "transaction": each.transaction_id,
                    "copies": list(each.names),
                    "text": str(each),
                }
                for each in self.differences
            ],
        }

    def to_text(self) -> str:
        lines = []
        for partition_id, count in sorted(self.logged.items()):
            lines.append(f"partition {partition_id}: {count:,} transactions")
            for each in self.copies:
                if each.partition_id == partition_id:
                    told = "not compared" if each.trouble else f"compared {each.compared:,}"
                    if each.trouble and each.compared:
                        told = f"compared {each.compared:,}, then no more"
                    reason = each.trouble or each.note
                    lines.append(f"  {each.name}: {told}" + (f": {reason}" if reason else ""))
        if self.differences:
            lines += ["different:", *(f"{DIFFERENT} {each}" for each in self.differences)]
        elif not self.is_complete:
            lines.append("no difference in what was compared, but not everything could be compared")
        else:
            lines.append(f"equal: {self.transactions:,} transactions")
        return "\n".join(lines)


def audit(spark: SparkSession, access: LogAccess, definition: PipelineDefinition) -> AuditReport:
    """Compare all copies and write the result to the definition's target, as JSON.

    Raises ConfigurationError: an archive of another cluster, no such partition; WaltzError: the
    coordinator does not answer; and Spark's error when a task has failed too often.
    """
    plan = _plan(access, definition)
    work = [
        _Work(wanted, holding)
        for partition_id, copies in plan.copies.items()
        for wanted, holding in comparisons(partition_id, copies)
    ]
    place = _Place(access, plan.cluster_key, definition.archive)
    report = _report(plan, work, run_tasks(spark, work, place.compare))
    draft = definition.target.with_name(f".{definition.target.name}.{os.getpid()}")
    draft.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    draft.replace(definition.target)
    return report


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of one task: a range, and the copies to compare in it."""

    range: TransactionRange
    copies: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a task; `compared` are transactions per copy, `troubles` the errors of copies
    that gave none."""

    compared: Mapping[str, int]
    troubles: Mapping[str, str]
    differences: Sequence[CopyDifference]


@dataclass(slots=True)
class _Plan:
    """The copies to compare, and the known troubles of all others."""

    cluster_key: UUID
    logged: dict[PartitionId, int] = field(default_factory=dict)
    copies: dict[PartitionId, list[Copy]] = field(default_factory=dict)
    troubles: dict[tuple[PartitionId, str], str] = field(default_factory=dict)
    notes: dict[tuple[PartitionId, str], str] = field(default_factory=dict)
    differences: list[CopyDifference] = field(default_factory=list)


class _DamagedError(Exception):
    """A copy cannot give a transaction that it must have."""

    def __init__(self, difference: CopyDifference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def _plan(access: LogAccess, definition: PipelineDefinition) -> _Plan:
    archive, archived = None, NOTHING_ARCHIVED
    if definition.archive is not None:
        # Before the marks: a run may add to it after the log was asked.
        archive = open_archive(definition.archive)
        archived = archive.contents()
    with access.opened() as log:
        cluster_key = log.cluster_key
        selected = select_partitions(definition.partitions, log.partition_count)
        high_water_marks: dict[PartitionId, TransactionId | None] = dict.fromkeys(selected)
        for partition_id in selected:
            try:
                high_water_marks[partition_id] = log.high_water_mark(partition_id)
            except UnavailableError:
                break  # each copy would wait this long, which is too long in all
    plan = _Plan(cluster_key)
    if archive is not None:
        archive.expect_cluster(cluster_key)
    # Marks first, then sessions: what is committed stays committed in every later session.
    with access.opened_replicas(cluster_key) as nodes:
        replicas = nodes.replicas()
        asking = _Asking(nodes)
        for partition_id, mark in high_water_marks.items():
            found = [each for each in replicas if each.partition_id == partition_id]
            _plan_partition(plan, asking, partition_id, found, mark)
            end = archived.next_ids().get(partition_id)
            if end is not None:
                plan.copies[partition_id].append(Copy(ARCHIVE, end))
    return plan


class _Asking:
    """Asks storage nodes for their marks, and those that do not answer once only."""

    def __init__(self, nodes: ReplicaReader) -> None:
        self._nodes = nodes
        self._silent: dict[str, str] = {}

    def marks(self, replica: Replica, asked: int) -> ReplicaMarks | str:
        """Return the marks, or why there are none."""
        if replica.replica_id in self._silent:
            return self._silent[replica.replica_id]
        try:
            return self._nodes.marks(replica, asked)
        except UnavailableError as error:
            self._silent[replica.replica_id] = str(error)
            return str(error)
        except RemoteStorageError as error:
            return str(error)


def _plan_partition(
    plan: _Plan,
    asking: _Asking,
    partition_id: PartitionId,
    replicas: Sequence[Replica],
    high_water_mark: TransactionId | None,
) -> None:
    is_known = high_water_mark is not None
    if high_water_mark is None:  # the mark when the last session began
        asked = [asking.marks(each, NOTHING) for each in replicas]
        known = [each.low_water_mark for each in asked if isinstance(each, ReplicaMarks)]
        high_water_mark = max(known, default=NOTHING)
    plan.logged[partition_id] = high_water_mark + 1
    copies = plan.copies.setdefault(partition_id, [])
    for each in replicas:
        marks = asking.marks(each, high_water_mark)
        if isinstance(marks, str):
            plan.troubles[partition_id, each.replica_id] = marks
            continue
        if (lost := missing_promised(each, marks)) is not None:
            plan.differences.append(lost)
        last = comparable_to(each, marks, high_water_mark)
        copies.append(Copy(each.replica_id, TransactionId(last + 1), each))
        if last < high_water_mark:
            plan.notes[partition_id, each.replica_id] = (
                f"it holds transactions to {marks.last}"
                if last == marks.last
                else (
                    f"the replica takes no part in the store session; settled to transaction {last}"
                )
            )
        elif not is_known:
            plan.notes[partition_id, each.replica_id] = (
                "no server gave the high-water mark; compared up to the last known one"
            )


def _report(plan: _Plan, work: Sequence[_Work], found: Sequence[_Found]) -> AuditReport:
    compared: Counter[tuple[PartitionId, str]] = Counter()
    troubles = dict(plan.troubles)
    for item, seen in zip(work, found, strict=True):
        for name, count in seen.compared.items():
            compared[item.range.partition_id, name] += count
        for name, reason in seen.troubles.items():
            troubles.setdefault((item.range.partition_id, name), reason)
    for partition_id, copies in plan.copies.items():
        others = sorted(each.end for each in copies)[:-1]
        for copy in copies:
            if copy.end > max(others, default=TransactionId(0)):
                troubles.setdefault(
                    (partition_id, copy.name),
                    f"no other copy to compare with from transaction {max(others, default=0)} on",
                )
    places = {
        (partition_id, copy.name)
        for partition_id in plan.copies
        for copy in plan.copies[partition_id]
    }
    return AuditReport(
        plan.logged,
        tuple(
            CopyReport(*place, compared[place], troubles.get(place), plan.notes.get(place))
            for place in sorted(places | troubles.keys())
        ),
        tuple(
            sorted(
                chain(plan.differences, *(each.differences for each in found)),
                key=lambda each: (each.partition_id, each.transaction_id),
            )
        ),
    )


@dataclass(frozen=True)
class _Place:
    """Gives tasks access to the copies."""

    access: LogAccess
    cluster_key: UUID
    archive: ArchiveLocation | None

    def compare(self, work: _Work) -> _Found:
        """The work of one task."""
        compared: Counter[str] = Counter()
        troubles: dict[str, str] = {}
        differences: list[CopyDifference] = []
        archived = NOTHING_ARCHIVED
        if self.archive is not None:
            archived = open_archive(self.archive).contents()
        with self.access.opened_replicas(self.cluster_key) as nodes:
            side = _Side(nodes, self.archive, archived)
            for block in block_ranges(work.range):
                digests: dict[Copy, str] = {}
                for copy in work.copies:
                    if copy.name in troubles:
                        continue
                    try:
                        digests[copy] = side.digest(copy, block)
                    except _DamagedError as error:
                        differences.append(error.difference)
                    except UnavailableError as error:
                        troubles[copy.name] = str(error)
                if len(digests) > 1:
                    compared.update({copy.name: block.row_count for copy in digests})
                if len({*digests.values()}) > 1:
                    differences += side.search(list(digests), block)
        return _Found(compared, troubles, differences)


@dataclass(frozen=True)
class _Side:
    """Reads copies within a task."""

    nodes: ReplicaReader
    directory: ArchiveLocation | None
    archived: Contents

    def digest(self, copy: Copy, block: TransactionRange) -> str:
        """Return the digest of a block. Raises UnavailableError: the node does not answer;
        _DamagedError."""
        digester, position, digest = BlockDigester(), block.first, None
        reason = "it is missing"
        try:
            for batch in self._batches(copy, block):
                whole = digester.add(block, batch)
                position = TransactionId(position + len(batch))
                digest = whole.digest if whole is not None else None
        except (RemoteStorageError, CorruptionError) as error:
            reason = f"it cannot be read: {error}"
        if digest is None:
            raise _DamagedError(
                CopyDifference(block.partition_id, position, (copy.name,), f"{copy.name}: {reason}")
            )
        return digest

    def search(self, copies: Sequence[Copy], block: TransactionRange) -> list[CopyDifference]:
        """Return the first transaction of a block that is not the same in all copies."""
        sides = {copy.name: self._rows(copy, block) for copy in copies}
        try:
            found = first_difference(block, sides)
        except WaltzError as error:
            text = f"the digests of {block} differ; the place could not be found: {error}"
            found = CopyDifference(block.partition_id, block.first, tuple(sides), text)
        return [] if found is None else [found]  # none: it was repaired meanwhile

    def _batches(self, copy: Copy, wanted: TransactionRange) -> Iterator[Any]:
        if copy.replica is not None:
            for columns in self.nodes.read(copy.replica, wanted.first, wanted.end):
                yield record_batch(wanted.partition_id, columns, SCHEMA)
            return
        assert self.directory is not None
        for file, part in self.archived.within(wanted):
            yield from read_file(self.directory, file, part)

    def _rows(self, copy: Copy, wanted: TransactionRange) -> Iterator[dict[str, Any]]:
        return chain.from_iterable(batch.to_pylist() for batch in self._batches(copy, wanted))
