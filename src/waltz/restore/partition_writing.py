"""Writes the records of one partition, as an archive gives them, into directories without a node.

Owns the checks: each block before it is written, and all that was written once it is durable. The
records are written by the storage node's own code. Knows no promises: nothing that was written here
counts before the caller has written those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Final, TypeAlias

from waltz.arrays import np
from waltz.errors import CorruptionError
from waltz.host import Disk
from waltz.record import RecordBatch, batch_from_block
from waltz.restore.directory_report import PartitionHeld
from waltz.storage.directory.trace_file import SegmentTrace
from waltz.storage.inspection.content import partition_parts
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
from waltz.types import NO_GENERATION, Generation, PartitionId, TransactionId

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


class WrittenPartition:
    """The files of one partition while they are written; `trace` is known once they are closed."""

    trace: SegmentTrace

    def __init__(
        self,
        home: SegmentHome,
        *,
        segment_bytes_threshold: int,
        wall_milliseconds: Callable[[], int],
    ) -> None:
        self._home = home
        self._chain: SegmentChain | None = SegmentChain(
            home,
            segment_bytes_threshold=segment_bytes_threshold,
            wall_milliseconds=wall_milliseconds,
        )

    @property
    def partition_id(self) -> PartitionId:
        return self._home.partition_id

    @property
    def _segments(self) -> SegmentChain:
        assert self._chain is not None
        return self._chain

    def open(self) -> None:
        """Make the directory. Raises OSError."""
        self._segments.open(NO_TRUST)

    def write(self, batch: RecordBatch) -> None:
        self._segments.write(batch)

    def sync(self) -> None:
        self._segments.sync()

    def close(self, held: PartitionHeld) -> None:
        """Make the files durable, and compare their bytes with those of the archive. Raises
        CorruptionError, OSError."""
        self.trace = SegmentTrace(self._segments.newest_segment, TransactionId(held.last + 1))
        self._segments.close()
        self._chain = None
        found = _digest_of_files(self._home)
        if found != held.sha256:
            raise CorruptionError(
                f"{self._home.directory} was written and read back: its records have digest"
                f" {found}, those of the archive {held.sha256}; the disk does not keep what it is"
                " given"
            )

    def release(self) -> None:
        """Close what is open; nothing more is written."""
        if self._chain is not None:
            with suppress(OSError):
                self._chain.segments.close()
            self._chain = None


def write_partition(
    opened: Sequence[WrittenPartition],
    blocks: Blocks,
    partition_id: PartitionId,
    last: TransactionId,
    *,
    together: Together = one_by_one,
    progress: Callable[[int], None] = lambda count: None,
) -> PartitionHeld:
    """Write all records up to `last`, read them back, and return what each of `opened` holds.

    Raises CorruptionError, or an error of the archive: what the archive gave, or what was read
    back, does not check out; OSError.
    """
    together([each.open for each in opened])
    content = _Content()
    unsynced = 0
    for block in blocks(partition_id, FIRST, TransactionId(last + 1)) if last >= FIRST else ():
        batch = checked_batch(block, partition_id, content.next_transaction_id)
        content.add(batch)
        together([partial(each.write, batch) for each in opened])
        unsynced += len(block)
        if unsynced >= SYNC_BYTES:
            together([each.sync for each in opened])
            unsynced = 0
        progress(len(block))
    held = content.held()
    if held.last != last:
        raise CorruptionError(
            f"the archive gave transactions up to {held.last} of partition {partition_id};"
            f" expected {last}"
        )
    together([partial(each.close, held) for each in opened])
    return held


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


def held_in(disk: Disk, directory: str) -> PartitionHeld:
    """Return what a partition's directory holds, every record checked. Raises OSError,
    CorruptionError: a record does not check out."""
    content = _Content()
    for _, part in partition_parts(disk, list_partition(disk, directory)):
        if isinstance(part, Gap):
            raise CorruptionError(f"{directory}: {part.reason}")
        content.add(part.batch)
    return content.held()


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
