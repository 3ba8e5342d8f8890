"""The files of partition 0 on a simulated disk: what the tests of its replica share."""

from __future__ import annotations

from tests.storage.support import DIRECTORY, open_partition
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.partition_replica import StoragePartition


def names(disk: SimulatedDisk, suffix: str = ".seg") -> list[int]:
    return [
        int(name[:19]) for name in disk.list_directory(f"{DIRECTORY}/0") if name.endswith(suffix)
    ]


def path(first: int, suffix: str = ".seg") -> str:
    return f"{DIRECTORY}/0/{first:019d}{suffix}"


def reopen(disk: SimulatedDisk, old: StoragePartition, **options: int) -> StoragePartition:
    """As a restart of the node does, without a word from the old one."""
    disk.release_locks()
    partition = open_partition(disk, **options)
    partition.announce(old.promises.info.session_id)
    return partition


def is_writable(partition: StoragePartition) -> bool:
    return partition.writer.is_open


def damaged(partition: StoragePartition) -> list[tuple[int, int]]:
    return [(first, following) for first, following in partition.log.damage]


def disk_without_lock(disk: SimulatedDisk) -> SimulatedDisk:
    disk.release_locks()
    return disk
