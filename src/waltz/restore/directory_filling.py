"""Fills empty storage directories from an archive, several at once.

Owns the order of the writes, so that a directory that was filled in part is never taken for a whole
one (`storage/directory/restored_files.py`). The records are those of the archive, byte for byte,
written and compared by `partition_writing.py`. Knows no coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from waltz.errors import ConfigurationError
from waltz.host import Disk, File
from waltz.limits import SEGMENT_BYTES_THRESHOLD
from waltz.restore.directory_report import DirectoryReport, PartitionHeld
from waltz.restore.partition_writing import (
    Blocks,
    Together,
    WrittenPartition,
    held_in,
    one_by_one,
    write_partition,
)
from waltz.storage.directory.control_struct import ASSIGNED, CONTROL_FILE_NAME, FRESH, PartitionInfo
from waltz.storage.directory.node_file import NodeHeader
from waltz.storage.directory.restored_files import (
    MARK_FILE_NAME,
    RestoredPartition,
    write_promises,
)
from waltz.storage.inspection.promises import read_promises
from waltz.storage.log.segment import (
    SegmentHome,
)
from waltz.types import PartitionId, ReplicaId, SessionId, TransactionId


@dataclass(frozen=True, slots=True)
class DirectoryWish:
    """The wished content of a directory.

    partitions  the last transaction and the store session of each partition.
    """

    restore_id: UUID
    cluster_key: UUID
    partition_count: int
    replica_id: ReplicaId
    partitions: Mapping[PartitionId, tuple[TransactionId, SessionId]]

    def info(self, partition_id: PartitionId) -> PartitionInfo:
        """Return the promises of a partition: its session began when it held all that it holds."""
        last, session_id = self.partitions[partition_id]
        return PartitionInfo(session_id, last, last, FRESH.flags | ASSIGNED)


@dataclass(frozen=True, slots=True)
class Filling:
    """The doors and settings of a filling.

    disk      where the directories are.
    together  how work for several directories is done.
    new_id    makes the ID of a directory.
    progress  gets the bytes of each block once it is written.
    """

    disk: Disk
    wall_milliseconds: Callable[[], int]
    new_id: Callable[[], UUID]
    together: Together = one_by_one
    progress: Callable[[int], None] = lambda count: None
    segment_bytes_threshold: int = SEGMENT_BYTES_THRESHOLD


def fill_directories(
    filling: Filling,
    blocks: Blocks,
    wishes: Mapping[str, DirectoryWish],
    *,
    start_over: bool = False,
) -> list[DirectoryReport]:
    """Fill the directories at the paths `wishes`, and return what each of them holds.

    A directory that holds what is wished already is checked and left as it is. With `start_over`
    the remains of a restore that was cut short are removed first. Raises ConfigurationError, with
    nothing written: a directory is missing, not empty, or has such remains; DirectoryInUseError:
    another restore fills it; CorruptionError, or an error of the archive: what the archive gave, or
    what was read back, does not check out; OSError. After a failure no directory is usable that was
    not whole before.
    """
    done: dict[str, DirectoryReport] = {}
    directories: list[_Directory] = []
    try:
        try:
            for path, wish in wishes.items():
                found = whole_directory(filling.disk, path, wish)
                if found is None:
                    directories.append(_Directory(filling, path, wish, start_over=start_over))
                else:
                    done[path] = found
        except Exception:
            for each in directories:
                each.leave()
            raise
        if directories:
            _fill(filling, blocks, directories)
        for each in directories:
            done[each.path] = each.report()
    finally:
        for each in directories:
            each.release()
    return [done[path] for path in wishes]


def _fill(filling: Filling, blocks: Blocks, directories: Sequence[_Directory]) -> None:
    partitions = {
        partition_id: wished
        for each in directories
        for partition_id, wished in each.wish.partitions.items()
    }
    for partition_id, (last, _) in sorted(partitions.items()):
        holders = [each for each in directories if partition_id in each.wish.partitions]
        opened = [each.open(partition_id) for each in holders]
        held = write_partition(
            opened,
            blocks,
            partition_id,
            last,
            together=filling.together,
            progress=filling.progress,
        )
        for each in holders:
            each.keep(held)
    filling.together([each.seal for each in directories])


def whole_directory(disk: Disk, path: str, wish: DirectoryWish) -> DirectoryReport | None:
    """Return the report of a directory that holds exactly what is wished, every record checked;
    None: it was not filled for this restore, or not to its end. Raises OSError, CorruptionError: a
    record does not check out."""
    if disk.exists(f"{path}/{MARK_FILE_NAME}") or not disk.exists(f"{path}/{CONTROL_FILE_NAME}"):
        return None
    promises = read_promises(disk, path)
    assigned = {
        PartitionId(number)
        for number in range(promises.partition_count)
        if (info := promises.info(PartitionId(number))) is not None and info.is_assigned
    }
    if (
        promises.node is None
        or promises.cluster_key != wish.cluster_key
        or promises.partition_count != wish.partition_count
        or assigned != wish.partitions.keys()
        or any(promises.info(each) != wish.info(each) for each in wish.partitions)
    ):
        return None
    held = {}
    for partition_id, (last, _) in sorted(wish.partitions.items()):
        found = held[partition_id] = held_in(disk, f"{path}/{partition_id}")
        if found.last != last:
            return None  # a node has worked in it
    return DirectoryReport(
        wish.restore_id, wish.replica_id, promises.node.header.directory_id, held
    )


class _Directory:
    """A directory that is being filled; it is locked, and marked as not usable."""

    def __init__(
        self, filling: Filling, path: str, wish: DirectoryWish, *, start_over: bool
    ) -> None:
        """Mark the directory, and check that it is empty. Raises as `fill_directories`."""
        self.path = path
        self.wish = wish
        self._filling = filling
        self._disk = filling.disk
        self._mark = f"{path}/{MARK_FILE_NAME}"
        self._partitions: dict[PartitionId, RestoredPartition] = {}
        self._held: dict[PartitionId, PartitionHeld] = {}
        self._open: WrittenPartition | None = None
        self._was_empty = False
        self._directory_id = filling.new_id()
        if not self._disk.exists(path):
            raise ConfigurationError(f"there is no directory {path}; create it, empty")
        if not self._disk.exists(self._mark):
            self._check_empty()
            # If another process makes it first, one of the two finds it locked.
            with suppress(FileExistsError):
                self._disk.open(self._mark, create=True).close()
        self._release = self._disk.lock(self._mark)
        file = self._disk.open(self._mark)
        try:
            self._claim(file, start_over=start_over)
        except BaseException:
            self._release()
            raise
        finally:
            file.close()

    def _others(self) -> list[str]:
        return [name for name in self._disk.list_directory(self.path) if name != MARK_FILE_NAME]

    def _check_empty(self) -> None:
        if others := self._others():
            more = f" and {len(others) - 1} more" if len(others) > 1 else ""
            raise ConfigurationError(
                f"{self.path} is not empty: it has {others[0]}{more}. A restore fills an empty"
                " directory: move this one to another place, and make an empty one"
            )

    def _claim(self, file: File, *, start_over: bool) -> None:
        """Write into the mark, durably, that the directory was empty: whatever is there from then
        on is of a restore. An empty mark says nothing of the files next to it."""
        if not file.size():
            self._check_empty()
            self._was_empty = True
            file.write_at(0, f"restore {self.wish.restore_id}\n".encode())
            file.sync()
            self._disk.sync_directory(self.path)
        elif not start_over:
            raise ConfigurationError(
                f"an earlier restore into {self.path} was cut short, and nothing in it can be used:"
                " run the same command with --start-over, which removes what that restore has"
                " written and fills the directory from the beginning"
            )
        else:
            self._remove_remains(self._others())

    def _remove_remains(self, names: Sequence[str]) -> None:
        """Remove what a restore has written; the directory was empty when it began. The control
        file goes first, so that at no time a part of the files looks whole."""
        for name in sorted(names, key=lambda each: each != CONTROL_FILE_NAME):
            path = f"{self.path}/{name}"
            if name.isdigit():
                for segment in self._disk.list_directory(path):
                    self._disk.remove(f"{path}/{segment}")
                self._disk.sync_directory(path)
            else:
                self._disk.remove(path)
                self._disk.sync_directory(self.path)

    def open(self, partition_id: PartitionId) -> WrittenPartition:
        """Begin to write a partition."""
        home = SegmentHome(
            self._disk, f"{self.path}/{partition_id}", self.wish.cluster_key, partition_id
        )
        self._open = WrittenPartition(
            home,
            segment_bytes_threshold=self._filling.segment_bytes_threshold,
            wall_milliseconds=self._filling.wall_milliseconds,
        )
        return self._open

    def keep(self, held: PartitionHeld) -> None:
        """Note the open partition, which is durable and was read back."""
        assert self._open is not None
        partition_id = self._open.partition_id
        self._partitions[partition_id] = RestoredPartition(
            self.wish.info(partition_id), self._open.trace
        )
        self._held[partition_id] = held
        self._open = None

    def seal(self) -> None:
        """Make the directory usable. Raises OSError."""
        now = self._filling.wall_milliseconds()
        header = NodeHeader(
            self.wish.cluster_key, self.wish.partition_count, self._directory_id, now, now
        )
        self._disk.sync_directory(self.path)
        write_promises(self._disk, self.path, header, self._partitions)
        self._disk.remove(self._mark)
        self._disk.sync_directory(self.path)

    def report(self) -> DirectoryReport:
        return DirectoryReport(
            self.wish.restore_id, self.wish.replica_id, self._directory_id, self._held
        )

    def leave(self) -> None:
        """Take the mark back, before anything was written: the directory is empty again. With
        remains of an earlier restore it stays marked."""
        if self._was_empty:
            with suppress(OSError):
                self._disk.remove(self._mark)
                self._disk.sync_directory(self.path)

    def release(self) -> None:
        """Close what is open, and give back the lock."""
        if self._open is not None:
            self._open.release()
            self._open = None
        self._release()
