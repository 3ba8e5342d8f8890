"""Replaces one partition in the storage directory of a node that is stopped, from an archive.

Owns the order. The records are written next to the partition, and read back; then the node's
promises for the partition are given up, so that it takes part in nothing; the partition's directory
is set aside, never deleted; the new one takes its place; and the promises of the new one are made,
each step durable before the next. So a directory is at any moment one that holds the partition as
before, one that has not taken the partition, or one that holds the restored one. The other
partitions are not touched. Knows no coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.errors import ConfigurationError, WaltzError
from waltz.host import Disk
from waltz.restore.directory_filling import Filling
from waltz.restore.directory_report import DirectoryReport, PartitionHeld
from waltz.restore.partition_writing import Blocks, WrittenPartition, held_in, write_partition
from waltz.storage.directory.control_file import open_control_file
from waltz.storage.directory.control_struct import (
    ASSIGNED,
    CONTROL_FILE_NAME,
    FRESH,
    PartitionInfo,
)
from waltz.storage.directory.partition_promises import PartitionPromises
from waltz.storage.inspection.survey import end_of_log, list_partition
from waltz.storage.log.segment import SegmentHome
from waltz.types import NOTHING, PartitionId, ReplicaId, SessionId, TransactionId

STAGED_SUFFIX: Final = ".restoring"
"""The ending of the directory in which a partition is being restored: always a copy of what the
archive has, so it may be removed at any time."""


@dataclass(frozen=True, slots=True)
class PartitionWish:
    """The wished content of a partition in one directory.

    directory_id      the directory that the node works in, as the coordinator knows it.
    abandons_suffix   whether records beyond `last` may be set aside.
    """

    restore_id: UUID
    cluster_key: UUID
    partition_count: int
    replica_id: ReplicaId
    directory_id: UUID | None
    partition_id: PartitionId
    last: TransactionId
    session_id: SessionId
    abandons_suffix: bool

    @property
    def info(self) -> PartitionInfo:
        """The promises: the session began when the replica held all that it holds."""
        return PartitionInfo(self.session_id, self.last, self.last, FRESH.flags | ASSIGNED)


@dataclass(frozen=True, slots=True)
class FilledPartition:
    """A partition that was restored.

    set_aside  the directory with what was there before; None: there was nothing.
    last       the last transaction in it; None: nothing can be read there.
    """

    report: DirectoryReport
    set_aside: str | None
    last: TransactionId | None


def fill_partition(
    filling: Filling, blocks: Blocks, directory: str, wish: PartitionWish
) -> FilledPartition:
    """Replace the partition in the directory, and return what it holds. May be repeated at any
    time; what is as wished already is checked and left.

    Raises ConfigurationError, with nothing changed: the directory is not that of a node of this
    cluster, or it holds more than is restored; DirectoryInUseError: its node runs;
    CorruptionError, or an error of the archive: what the archive gave, or what was read back, does
    not check out; OSError.
    """
    disk = filling.disk
    place = f"{directory}/{wish.partition_id}"
    aside = f"{place}.lost-{wish.restore_id}"
    with _promises(filling, directory, wish) as (promises, directory_id):
        was_set_aside = disk.exists(aside)
        if (held := _held_as_wished(disk, place, promises, wish)) is None:
            if not was_set_aside and not wish.abandons_suffix:
                _check_expendable(disk, place, promises, wish)
            held = _replace(filling, blocks, directory, promises, wish)
        report = DirectoryReport(
            wish.restore_id, wish.replica_id, directory_id, {wish.partition_id: held}
        )
        has_aside = disk.exists(aside)
        return FilledPartition(
            report, aside if has_aside else None, _last_in(disk, aside) if has_aside else None
        )


@contextmanager
def _promises(
    filling: Filling, directory: str, wish: PartitionWish
) -> Iterator[tuple[PartitionPromises, UUID]]:
    """Lock the directory, and yield the partition's promises and the directory's ID."""
    disk = filling.disk
    if not disk.exists(f"{directory}/{CONTROL_FILE_NAME}"):
        raise ConfigurationError(
            f"{directory} has no {CONTROL_FILE_NAME}: a single partition is restored into a"
            " directory in which its storage node has worked. Start the node there once with"
            " --assign-all, and stop it; a whole cluster is restored with waltz restore cluster"
        )
    control = open_control_file(
        disk,
        directory,
        cluster_key=wish.cluster_key,
        partition_count=wish.partition_count,
        assigned=(),
        directory_id=filling.new_id(),
        wall_milliseconds=filling.wall_milliseconds(),
    )
    try:
        if wish.directory_id is not None and control.directory_id != wish.directory_id:
            raise ConfigurationError(
                f"{directory} is storage directory {control.directory_id}, and storage node"
                f" {wish.replica_id} works in {wish.directory_id}: name the directory in which"
                " that node worked last"
            )
        yield control.promises(wish.partition_id), control.directory_id
    finally:
        control.close()


def _held_as_wished(
    disk: Disk, place: str, promises: PartitionPromises, wish: PartitionWish
) -> PartitionHeld | None:
    """Return what the partition holds if it was restored before. Raises CorruptionError."""
    try:
        if promises.info != wish.info:
            return None
    except WaltzError:
        return None
    held = held_in(disk, place)
    return held if held.last == wish.last else None


def _check_expendable(
    disk: Disk, place: str, promises: PartitionPromises, wish: PartitionWish
) -> None:
    """Raise ConfigurationError if the partition has, or may have, more than is restored."""
    remedy = (
        "While a majority of the replicas is there do not restore: servers fill the others. Else"
        " run waltz restore partition again, with --abandon-suffix"
    )
    last = _last_in(disk, place)
    if last is None:
        raise ConfigurationError(
            f"nobody can tell which transactions {place} holds: it is damaged, and some beyond"
            f" {wish.last}, where the restore ends, may be there and would be set aside. {remedy}"
        )
    with suppress(WaltzError):
        last = max(last, promises.info.low_water_mark)
    if last > wish.last:
        raise ConfigurationError(
            f"{place} holds transactions up to {last}, and the restore ends with {wish.last}:"
            f" transactions {wish.last + 1} to {last} may have been committed and would be set"
            f" aside. {remedy}"
        )


def _last_in(disk: Disk, place: str) -> TransactionId | None:
    """Return the last transaction in a partition's directory; None: that cannot be told."""
    if not disk.exists(place):
        return NOTHING
    files = list_partition(disk, place)
    if not files.segments:
        return NOTHING
    end = end_of_log(disk, files)
    return None if end is None else TransactionId(end - 1)


def _replace(
    filling: Filling,
    blocks: Blocks,
    directory: str,
    promises: PartitionPromises,
    wish: PartitionWish,
) -> PartitionHeld:
    disk = filling.disk
    place = f"{directory}/{wish.partition_id}"
    staged = f"{place}{STAGED_SUFFIX}"
    aside = f"{place}.lost-{wish.restore_id}"
    if disk.exists(aside) and disk.exists(place):
        # An attempt of this restore was cut short before the promises were made.
        promises.reset()
        disk.rename(place, staged)
    elif not disk.exists(staged):
        disk.make_directory(staged)
    disk.sync_directory(directory)
    _empty(disk, staged)
    written = WrittenPartition(
        SegmentHome(disk, staged, wish.cluster_key, wish.partition_id),
        segment_bytes_threshold=filling.segment_bytes_threshold,
        wall_milliseconds=filling.wall_milliseconds,
    )
    try:
        held = write_partition(
            [written], blocks, wish.partition_id, wish.last, progress=filling.progress
        )
    finally:
        written.release()
    disk.sync_directory(staged)
    promises.reset()
    promises.raise_fence(wish.session_id)
    if disk.exists(place):
        disk.rename(place, aside)
        disk.sync_directory(directory)
    disk.rename(staged, place)
    disk.sync_directory(directory)
    promises.keep_trace(written.trace)
    promises.update(wish.info)
    promises.make_ours()
    return held


def _empty(disk: Disk, directory: str) -> None:
    """Remove the files of a directory that a restore has made."""
    for name in disk.list_directory(directory):
        disk.remove(f"{directory}/{name}")
    disk.sync_directory(directory)
