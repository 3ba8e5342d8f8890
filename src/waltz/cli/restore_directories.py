"""Filling storage directories of this machine: space, threads, progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from waltz.cli.disk_output import human_bytes
from waltz.cli.output import progress_bar
from waltz.errors import ConfigurationError, StorageError
from waltz.restore.directory_filling import DirectoryWish, Filling, fill_directories
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.restore_plan import RestorePlan
from waltz.storage.log.index_file import ENTRY_BYTES
from waltz.system.real_disk import RealDisk
from waltz.types import PartitionId, ReplicaId

if TYPE_CHECKING:
    from waltz.archive.archive import Archive

DIRECTORIES_MAX = 16
"""Directories that are written to at the same time."""


def directory_wish(plan: RestorePlan, replica_id: ReplicaId) -> DirectoryWish:
    """Return what the directory of a storage node is to hold. Raises ConfigurationError: the plan
    has no such node."""
    return DirectoryWish(
        plan.restore_id,
        plan.cluster_key,
        plan.partition_count,
        replica_id,
        {p: (plan.lasts[p], plan.sessions[p]) for p in plan.storage(replica_id).partitions},
    )


def fill_here(
    archive: Archive,
    plan: RestorePlan,
    directories: Mapping[ReplicaId, Path],
    byte_count: Callable[[PartitionId], int],
    *,
    start_over: bool,
) -> list[DirectoryReport]:
    """Fill the directories of these storage nodes, all at once, with a bar on a terminal.

    `byte_count` returns about how many bytes of a partition are restored. Raises as
    `fill_directories`, but StorageError in the place of OSError; ConfigurationError: a disk has too
    little room.
    """
    wishes = {
        str(directory): directory_wish(plan, replica_id)
        for replica_id, directory in directories.items()
    }
    if not wishes:
        return []
    needed = {
        path: sum(
            byte_count(p) + ENTRY_BYTES * (last + 1) for p, (last, _) in wish.partitions.items()
        )
        for path, wish in wishes.items()
    }
    check_room({path: each for path, each in needed.items() if _is_empty(path)})
    partitions = {p for wish in wishes.values() for p in wish.partitions}
    with (
        ThreadPoolExecutor(min(len(wishes), DIRECTORIES_MAX)) as pool,
        progress_bar("restore", sum(map(byte_count, partitions))) as progress,
    ):

        def together(calls: Sequence[Callable[[], None]]) -> None:
            if len(calls) == 1:
                calls[0]()
                return
            futures = [pool.submit(call) for call in calls]
            wait(futures)
            for future in futures:
                future.result()

        filling = Filling(
            RealDisk(),
            lambda: int(time.time() * 1000),
            uuid4,
            together,
            progress,
        )
        try:
            return fill_directories(filling, archive.blocks, wishes, start_over=start_over)
        except OSError as error:
            raise StorageError(
                f"the restore into {', '.join(wishes)} failed: {error}; directories that were not"
                " finished are of no use until the same command has run again with --start-over"
            ) from error


def _is_empty(path: str) -> bool:
    return Path(path).is_dir() and not any(Path(path).iterdir())


def check_room(needed: Mapping[str, int]) -> None:
    """Raise ConfigurationError if a disk has less room than all directories on it need."""
    by_disk: dict[int, list[str]] = {}
    for path in needed:
        by_disk.setdefault(Path(path).stat().st_dev, []).append(path)
    for paths in by_disk.values():
        free = RealDisk().space(paths[0]).free_bytes
        wanted = sum(needed[path] for path in paths)
        if wanted > free:
            raise ConfigurationError(
                f"the restore writes about {human_bytes(wanted)} into {', '.join(paths)}, and their"
                f" disk has {human_bytes(free)} left"
            )
