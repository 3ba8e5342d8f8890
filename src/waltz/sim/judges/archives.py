"""Judges the archive of a run by what restores make of it.

The archive is restored to cuts that were taken, to random marks and to its end: into a disk that
loses power in the middle, and again. What is on the disk then must be the log up to the point, as a
client was fed it, read by this package's own reader; a directory in which a node would start must
be so at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Final
from uuid import UUID

from waltz.archive.archive import Archive, read_archive
from waltz.archive.archive_target import Target
from waltz.archive.archive_verification import verify
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.errors import ConfigurationError, WaltzError
from waltz.restore.archived_cluster import archived_cluster
from waltz.restore.directory_filling import DirectoryWish, Filling, fill_directories
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.points import AtMarks, places
from waltz.restore.restore_plan import RestorePlan, make_plan
from waltz.restore.restored_nodes import restored_nodes
from waltz.sim.judges.history import FedRecord
from waltz.sim.judges.replicas import CONTROL_FILE, replica_on
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.types import NOTHING, PartitionId, ReplicaId, TransactionId

Marks = Mapping[PartitionId, TransactionId]
Log = Mapping[PartitionId, Sequence[FedRecord]]

CUTS_RESTORED_MAX: Final = 3
"""Cuts of a run that are restored: the last ones."""

RANDOM_MARKS: Final = 2
"""Restores of a run to random marks."""

RESTORING_MARK: Final = "waltz-storage.restoring"
"""The file of a directory whose restore has not ended: known by its name, as an operator knows
it."""

REFUSING_BATCH: Final = 2**62
"""A sink's note that names no lower batch refuses all."""

DIRECTORY: Final = "/restored"


class _PowerLostError(BaseException):
    """The machine of a restore loses power: nobody handles that."""


def check_archive(target: Target, cuts: Sequence[Marks], log: Log, random: Random) -> Iterator[str]:
    """Yield what is wrong with the archive of a log that was fed to a client as `log`."""
    found = verify(target)
    for finding in found.findings:
        yield f"archive: {finding}"
    if found.findings:
        return
    try:
        archive = read_archive(target)
        yield from _ends(archive, log)
        taken = [marks for marks in cuts if _is_archived(archive, marks)][-CUTS_RESTORED_MAX:]
        # A partition that a cut does not have was added after it.
        points = [{p: marks.get(p, NOTHING) for p in log} for marks in taken]
        points.append({p: TransactionId(archive.end(p) - 1) for p in log})
        for _ in range(RANDOM_MARKS):
            points.append({p: TransactionId(random.randrange(-1, archive.end(p))) for p in log})
        for point in points:
            yield from _restored(archive, point, log, random)
    except WaltzError as error:
        yield f"archive: it cannot be restored: {error!r}"


def _is_archived(archive: Archive, marks: Marks) -> bool:
    return all(mark < archive.end(p) for p, mark in marks.items())


def _ends(archive: Archive, log: Log) -> Iterator[str]:
    for partition_id, records in log.items():
        if archive.end(partition_id) != len(records):
            yield (
                f"archive: it has {archive.end(partition_id)} transactions of partition"
                f" {partition_id}, and the log has {len(records)}"
            )


def _restored(archive: Archive, point: Marks, log: Log, random: Random) -> Iterator[str]:
    archived = archived_cluster(archive)
    plan = make_plan(
        archived,
        places(archive, AtMarks(point), len(point)),
        archive=archive.url,
        point="simulated",
        same_key=True,
        storages=None,
        name=None,
        restore_id=UUID(int=random.getrandbits(128), version=4),
        new_key=UUID(int=random.getrandbits(128), version=4),
        wall_milliseconds=1,
    )
    disk, report, wrong = _filled(archive, plan, point, log, random)
    yield from wrong
    yield from _wrong_logs(disk, point, log, "once it has ended")
    reports = {
        each.replica_id: DirectoryReport(
            plan.restore_id, each.replica_id, report.directory_id,
            {p: report.partitions[p] for p in each.partitions},
        )
        for each in plan.storages
    }  # fmt: skip
    made = restored_nodes(plan, archived, reports, root=DEFAULT_ROOT)
    yield from _wrong_nodes(archive, dict(made.nodes), made.last[0])


def _filled(
    archive: Archive, plan: RestorePlan, point: Marks, log: Log, random: Random
) -> tuple[SimulatedDisk, DirectoryReport, list[str]]:
    """Fill a directory, losing power after a random number of operations, until it is filled, and
    once more then."""
    wish = DirectoryWish(
        plan.restore_id,
        plan.cluster_key,
        plan.partition_count,
        ReplicaId("restored:7000"),
        {p: (last, plan.sessions[p]) for p, last in plan.lasts.items()},
    )
    disk = SimulatedDisk([DIRECTORY])
    wrong: list[str] = []
    operations = random.choice((30, 100, 300))
    while True:
        left = random.randrange(1, operations)
        operations *= 2

        def fault(operation: DiskOperation, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _PowerLostError

        disk.fault = fault
        filling = Filling(
            disk, lambda: 1, lambda: UUID(int=random.getrandbits(128), version=4),
            segment_bytes_threshold=2_000,
        )  # fmt: skip
        try:
            (report,) = _fill(filling, archive, wish)
        except _PowerLostError:
            disk = disk.crash_clone(random)
            if _would_start(disk):
                wrong += _wrong_logs(disk, point, log, "after a power cut")
        else:
            disk.fault = None
            return disk.crash_clone(random), report, wrong


def _fill(filling: Filling, archive: Archive, wish: DirectoryWish) -> list[DirectoryReport]:
    try:
        return fill_directories(filling, archive.blocks, {DIRECTORY: wish})
    except ConfigurationError:
        return fill_directories(filling, archive.blocks, {DIRECTORY: wish}, start_over=True)


def _would_start(disk: SimulatedDisk) -> bool:
    names = disk.contents()
    return f"{DIRECTORY}/{CONTROL_FILE}" in names and f"{DIRECTORY}/{RESTORING_MARK}" not in names


def _wrong_logs(disk: SimulatedDisk, point: Marks, log: Log, when: str) -> list[str]:
    replica = replica_on(disk.contents(), DIRECTORY, point.keys())
    wrong = []
    for partition_id, last in point.items():
        found = replica.records[partition_id]
        if list(found) != list(log[partition_id][: last + 1]):
            wrong.append(
                f"restore: {when} a directory has {len(found)} records of partition {partition_id}"
                f" that are not the log's up to {last}"
            )
        marks = replica.marks.get(partition_id)
        if marks is None or (marks.low_water_mark, marks.local_low_water_mark) != (last, last):
            wrong.append(f"restore: {when} the marks of partition {partition_id} are {marks}")
    return wrong


def _wrong_nodes(archive: Archive, nodes: Mapping[str, bytes | None], last: str) -> Iterator[str]:
    paths = ClusterPaths(DEFAULT_ROOT)
    if last != paths.store or nodes.get(paths.store) is not None:
        yield f"restore: {last} is written last; the store parameters must be"
    for path in archive.coordinator_nodes:
        name = path.strip("/")
        if not name.startswith("notes/spark-"):
            continue
        data = nodes.get(f"{paths.root}/{name}")
        if data is None or json.loads(data)["batch"] < REFUSING_BATCH:
            yield f"restore: the note {name} lets a sink go on, as if no row had been lost"
