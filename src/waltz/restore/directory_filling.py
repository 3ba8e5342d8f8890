"""Fills empty storage directories from an archive, several at once.

Owns the order of the writes, so that a directory that was filled in part is never taken for a whole
one (`storage/directory/restored_files.py`). The records are those of the archive, byte for byte,
written by the storage node's own code. Each block is checked before it is written, and each
partition of each directory is read back and compared once it is durable. Knows no coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final, TypeAlias
from uuid import UUID

from waltz.arrays import np
from waltz.errors import ConfigurationError, CorruptionError
from waltz.host import Disk, File
from waltz.limits import SEGMENT_BYTES_THRESHOLD
from waltz.record import RecordBatch, batch_from_block
from waltz.restore.directory_report import DirectoryReport, PartitionHeld
from waltz.storage.directory.control_struct import ASSIGNED, CONTROL_FILE_NAME, FRESH, PartitionInfo
from waltz.storage.directory.node_file import NodeHeader
from waltz.storage.directory.restored_files import (
    MARK_FILE_NAME,
    RestoredPartition,
    write_promises,
)
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.storage.inspection.content import partition_parts
from waltz.storage.inspection.promises import read_promises
from waltz.storage.inspection.survey import list_partition
from waltz.storage.inspection.walk import Gap
from waltz.storage.log.listing import segment_names
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    SEGMENT_HEADER_BYTES,
    SegmentHome,
    first_stranger,
)
from waltz.storage.log.segment_recovery import NO_TRUST
from waltz.storage.log.segments import SegmentChain
from waltz.types import NO_GENERATION, Generation, PartitionId, ReplicaId, SessionId, TransactionId

SYNC_BYTES: Final = 64 * 1024 * 1024
"""Bytes written to a directory between two syncs: what a killed restore may have to write out."""

READ_BACK_BYTES: Final = 1024 * 1024
"""Bytes that are read back at a time."""

FIRST: Final = TransactionId(0)

Blocks: TypeAlias = Callable[[PartitionId, TransactionId, TransactionId], Iterator[bytes]]
"""The archive's `blocks`."""

Together: TypeAlias = Callable[[Sequence[Callable[[], None]]], None]
"""Calls all functions, perhaps at the same time, and returns once all have ended. Raises the error
of one that failed."""


def one_by_one(calls: Sequence[Callable[[], None]]) -> None:
    """Call the functions in order. Implements `Together`."""
    for call in calls:
        call()


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
        for path, wish in wishes.items():
            found = whole_directory(filling.disk, path, wish)
            if found is None:
                directories.append(_Directory(filling, path, wish, start_over=start_over))
            else:
                done[path] = found
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
        filling.together([partial(each.open, partition_id) for each in holders])
        content = _Content()
        unsynced = 0
        for block in blocks(partition_id, FIRST, TransactionId(last + 1)) if last >= FIRST else ():
            batch = checked_batch(block, partition_id, content.next_transaction_id)
            content.add(batch)
            filling.together([partial(each.write, batch) for each in holders])
            unsynced += len(block)
            if unsynced >= SYNC_BYTES:
                filling.together([each.sync for each in holders])
                unsynced = 0
            filling.progress(len(block))
        held = content.held()
        if held.last != last:
            raise CorruptionError(
                f"the archive gave transactions up to {held.last} of partition {partition_id};"
                f" expected {last}"
            )
        filling.together([partial(each.close, held) for each in holders])
    filling.together([each.seal for each in directories])


def checked_batch(block: bytes, partition_id: PartitionId, first: TransactionId) -> RecordBatch:
    """Return the records in a block of the archive. Raises CorruptionError: they are not those of
    this partition from `first` on, or do not check out."""
    batch = batch_from_block(block, first)
    stranger = first_stranger(block, batch.offsets, partition_id)
    if stranger is not None:
        raise CorruptionError(
            f"the archive gave a record {first + stranger} of another partition for partition"
            f" {partition_id}"
        )
    return batch


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
        content = _Content()
        for _, part in partition_parts(disk, list_partition(disk, f"{path}/{partition_id}")):
            if isinstance(part, Gap):
                raise CorruptionError(f"{path}, partition {partition_id}: {part.reason}")
            content.add(part.batch)
        found = held[partition_id] = content.held()
        if found.last != last:
            return None  # a node has worked in it
    return DirectoryReport(
        wish.restore_id, wish.replica_id, promises.node.header.directory_id, held
    )


class _Content:
    """The digest, the size and the highest IDs of a partition's records, taken while they pass."""

    def __init__(self) -> None:
        self.next_transaction_id = FIRST
        self._digest = sha256()
        self._byte_count = 0
        self._client_id = -1
        self._generation = int(NO_GENERATION)

    def add(self, batch: RecordBatch) -> None:
        if not len(batch):
            return
        self._digest.update(batch.block)
        self._byte_count += len(batch.block)
        ids = np.ascontiguousarray(batch.request_ids()[:, :8]).view(">i4")
        self._client_id = max(self._client_id, int(ids[:, 0].max()))
        self._generation = max(self._generation, int(ids[:, 1].max()))
        self.next_transaction_id = batch.next_transaction_id

    def held(self) -> PartitionHeld:
        return PartitionHeld(
            TransactionId(self.next_transaction_id - 1),
            self._digest.hexdigest(),
            self._byte_count,
            self._client_id,
            Generation(self._generation),
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
        self._chain: SegmentChain | None = None
        self._home: SegmentHome | None = None
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

    def open(self, partition_id: PartitionId) -> None:
        wish = self.wish
        self._home = SegmentHome(
            self._disk, f"{self.path}/{partition_id}", wish.cluster_key, partition_id
        )
        self._chain = SegmentChain(
            self._home,
            segment_bytes_threshold=self._filling.segment_bytes_threshold,
            wall_milliseconds=self._filling.wall_milliseconds,
        )
        self._chain.open(NO_TRUST)

    def write(self, batch: RecordBatch) -> None:
        assert self._chain is not None
        self._chain.write(batch)

    def sync(self) -> None:
        assert self._chain is not None
        self._chain.sync()

    def close(self, held: PartitionHeld) -> None:
        """Make the open partition durable, and compare its bytes with those of the archive."""
        assert self._chain is not None
        assert self._home is not None
        trace = SegmentTrace(self._chain.newest_segment, TransactionId(held.last + 1))
        self._chain.close()
        self._chain = None
        partition_id = self._home.partition_id
        found = _digest_of_files(self._home)
        if found != held.sha256:
            raise CorruptionError(
                f"{self._home.directory} was written and read back: its records have digest"
                f" {found}, those of the archive {held.sha256}; the disk does not keep what it is"
                " given"
            )
        self._partitions[partition_id] = RestoredPartition(self.wish.info(partition_id), trace)
        self._held[partition_id] = held

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

    def release(self) -> None:
        """Close what is open, and give back the lock."""
        if self._chain is not None:
            with suppress(OSError):
                self._chain.segments.close()
            self._chain = None
        self._release()


def _digest_of_files(home: SegmentHome) -> str:
    """Return the digest of what lies in the data files behind their headers. Raises OSError."""
    digest = sha256()
    for first in segment_names(home, DATA_SUFFIX):
        file = home.disk.open_to_read(home.path(first, DATA_SUFFIX))
        try:
            offset = SEGMENT_HEADER_BYTES
            while piece := file.read_at(offset, READ_BACK_BYTES):
                digest.update(piece)
                offset += len(piece)
        finally:
            file.close()
    return digest.hexdigest()
