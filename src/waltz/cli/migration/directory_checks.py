"""A storage directory of the original, looked at without changing a byte of it.

Files are opened to read; no lock is taken, and nothing is written to measure the disk. The original
may be running on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.disk_output import disk_door
from waltz.cli.disk_state import wait_for_writer
from waltz.cli.doctor.disk_checks import DiskState, space_finding
from waltz.cli.doctor.finding import Checked
from waltz.cli.partition_list import listed_partitions
from waltz.errors import ConfigurationError, CorruptionError
from waltz.storage.directory.control_struct import CONTROL_FILE_NAME
from waltz.storage.directory.node_file import NODE_FILE_NAME
from waltz.storage.directory.space import FreeMinimum
from waltz.storage.inspection.findings import FindingKind
from waltz.storage.inspection.promises import Promises, read_promises
from waltz.storage.inspection.survey import find_target
from waltz.storage.inspection.verification import Options, verify
from waltz.types import PartitionId

FINDINGS_SHOWN: Final = 5
"""Faults of one directory that the check names; `waltz disk verify` names more."""

REPAIR: Final = (
    "repair it while the original still runs: let the other replicas fill an empty directory"
)


def directory_findings(
    path: Path,
    metadata: ClusterMetadata | None,
    held: Collection[PartitionId],
    minimum: FreeMinimum,
    *,
    with_records: bool,
    progress: Callable[[int], None],
) -> Iterator[Checked]:
    """Yield what is found in the directory at `path`; `metadata` is None if it is not known.

    held  the partitions that the cluster assigns to the directory's node, as far as that is known.
    with_records  read every record, which takes as long as the disk needs for it.
    """
    subject = str(path)
    try:
        promises = _promises(path)
    except (ConfigurationError, CorruptionError, OSError) as error:
        remedy = "name the directory of the storage node, and run as its user"
        yield Checked("directory", subject, False, "cannot be read", str(error), remedy)
        return
    damage = [each.text for each in promises.findings if each.kind.is_damage]
    if damage or promises.control is None:
        text = "; ".join(damage[:FINDINGS_SHOWN]) or "the control file cannot be read"
        yield Checked("directory", subject, False, "the control file is damaged", text, REPAIR)
        return
    before = " after a node of this program" if (path / NODE_FILE_NAME).exists() else ""
    count = promises.control.partition_count
    yield Checked(
        "directory", subject, True, f"written by the original{before}, {count} partitions"
    )
    yield from owner_findings(subject, _not_writable(path))
    yield from _room_findings(path, subject, minimum)
    if metadata is not None:
        yield from _belonging(subject, promises, metadata)
    yield from _assignments(subject, promises, held)
    yield from _record_findings(path, subject, with_records=with_records, progress=progress)


def _promises(path: Path) -> Promises:
    """Raises ConfigurationError: it is no storage directory. CorruptionError. OSError."""
    directory = str(path.absolute())
    if not (path / CONTROL_FILE_NAME).exists():
        raise ConfigurationError(f"{path} has no {CONTROL_FILE_NAME}")
    return read_promises(disk_door, directory, wait_for_writer)


def _not_writable(path: Path) -> list[Path]:
    """Return the paths that the node would have to write and this user may not; changes nothing."""
    wanted = (path, path / CONTROL_FILE_NAME)
    return [each for each in wanted if not os.access(each, os.W_OK, effective_ids=True)]


def owner_findings(subject: str, not_writable: Sequence[Path]) -> Iterator[Checked]:
    if not_writable:
        cause = f"this user may not write {not_writable[0]}"
        remedy = "run the check, and the storage node, as the user that owns the directory"
        yield Checked("directory-owner", subject, False, "of another user", cause, remedy)


def _room_findings(path: Path, subject: str, minimum: FreeMinimum) -> Iterator[Checked]:
    """Judge the space: the original writes until a disk is full, a node here refuses appends
    before. `waltz doctor` measures the disk."""
    found = os.statvfs(path)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    yield space_finding(subject, DiskState(None, free, total, ()), minimum)


def _belonging(subject: str, promises: Promises, metadata: ClusterMetadata) -> Iterator[Checked]:
    control = promises.control
    assert control is not None
    if control.cluster_key != metadata.cluster_key:
        cause = f"its key is {control.cluster_key}, the cluster's is {metadata.cluster_key}"
        remedy = "name the directory of this cluster, or the ZooKeeper of the directory's"
        yield Checked("directory-cluster", subject, False, "of another cluster", cause, remedy)
        return
    yield Checked("directory-cluster", subject, True, f"of cluster {metadata.name}")
    if control.partition_count != metadata.partition_count:
        cause = f"it was made for {control.partition_count}; there are {metadata.partition_count}"
        remedy = (
            "end the addition of partitions first: waltz cluster verify"
            if control.partition_count < metadata.partition_count
            else "name another directory: partitions are never taken away"
        )
        yield Checked(
            "directory-partitions", subject, False, "another number of partitions", cause, remedy
        )
    newer = [
        PartitionId(number)
        for number, found in metadata.partitions.items()
        if (info := promises.info(number)) is not None and info.session_id > found.session_id
    ]
    if newer:
        cause = f"partitions {listed_partitions(newer)} have sessions that ZooKeeper does not know"
        remedy = "ZooKeeper was set back: docs/operating/coordinator-backup.md"
        yield Checked("directory-sessions", subject, False, "newer than the cluster", cause, remedy)


def _assignments(
    subject: str, promises: Promises, held: Collection[PartitionId]
) -> Iterator[Checked]:
    missing = [
        number for number in held if (info := promises.info(number)) is None or not info.is_assigned
    ]
    if missing:
        cause = f"the cluster counts on partitions {listed_partitions(missing)} of this node"
        remedy = "waltz admin storage sync-partitions, while the original runs"
        yield Checked(
            "directory-assignment", subject, False, "it has not taken them", cause, remedy
        )


def _record_findings(
    path: Path, subject: str, *, with_records: bool, progress: Callable[[int], None]
) -> Iterator[Checked]:
    if not with_records:
        yield Checked("directory-records", subject, True, "not read; --records reads all of them")
        return
    try:
        target = find_target(disk_door, str(path.absolute()))
        report = verify(disk_door, target, Options(progress=progress, wait=wait_for_writer))
    except (ConfigurationError, OSError) as error:
        remedy = "run the check as the user of the storage node; waltz disk verify looks again"
        yield Checked(
            "directory-records", subject, None, "could not be read to the end", str(error), remedy
        )
        return
    if not report.is_damaged:
        torn = report.counts[FindingKind.TORN_TAIL]
        cut = "; an end is torn, as after a crash: the next start cuts it off" if torn else ""
        yield Checked("directory-records", subject, True, f"{report.records} check out{cut}")
        return
    texts = [f"{each.path}: {each.text}" for each in report.findings if each.kind.is_damage]
    yield Checked(
        "directory-records",
        subject,
        False,
        f"faults: {len(texts)}",
        "; ".join(texts[:FINDINGS_SHOWN]),
        REPAIR,
    )
