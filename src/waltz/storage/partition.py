"""One partition's replica on this node: its segments, its session, its answers.

Owns the bytes on disk, fencing and permission. Runs in a worker thread, one call at a time; only
`announce` may be called meanwhile. Knows nothing of connections.

What holds always: the first failed write or sync ends the partition's writer until it is reopened;
what was durable before is still read.
Source: Waltz Storage, "Messages"; Waltz Internals, "Sessions".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import numpy as np

from waltz.errors import (
    CorruptionError,
    FencedError,
    NotFoundError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.host import Disk
from waltz.limits import SEGMENTS_OPEN_MAX
from waltz.record import RecordBatch, empty_batch, join_batches
from waltz.storage.control_file import ASSIGNED, AVAILABLE, ControlFile, PartitionInfo
from waltz.storage.drain import Drain
from waltz.storage.recovery import TornTail, is_unfinished, open_segment
from waltz.storage.segment import (
    DATA_SUFFIX,
    INDEX_SUFFIX,
    NAME_DIGITS,
    Segment,
    SegmentHome,
    create_segment,
)
from waltz.types import NOTHING, PartitionId, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo, StorageMessage

FIRST: Final = TransactionId(0)


@dataclass(slots=True)
class PartitionCounters:
    """Since the node started."""

    requests: int = 0
    refusals: int = 0
    records_appended: int = 0
    bytes_appended: int = 0
    drains_synced: int = 0


def not_assigned(partition_id: PartitionId) -> NotFoundError:
    return NotFoundError(f"Partition:{partition_id} is not assigned.")


class StoragePartition:
    """A partition of this node, assigned or not, healthy or not; `open` it before anything else."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        control_file: ControlFile,
        partition_id: PartitionId,
        *,
        cluster_key: UUID,
        segment_bytes_threshold: int,
        wall_milliseconds: Callable[[], int],
    ) -> None:
        self.partition_id = partition_id
        self.counters = PartitionCounters()
        self.damage: StorageError | None = None
        """Why the partition refuses all service; only giving it up, or a restart, ends that."""
        self._disk = disk
        self._parent = directory
        self._home = SegmentHome(disk, f"{directory}/{partition_id}", cluster_key, partition_id)
        self._control_file = control_file
        self._segment_bytes_threshold = segment_bytes_threshold
        self._wall_milliseconds = wall_milliseconds
        self._current_session_id = SessionId(-1)
        self._firsts: list[TransactionId] = []
        """First IDs of all segments, ascending."""
        self._last: Segment | None = None
        self._complete: OrderedDict[TransactionId, Segment] = OrderedDict()
        """Complete segments that are open, the one used longest ago first."""
        self._failure: SegmentFailedError | None = None

    # Opening and closing

    def open(self, *, ceiling: TransactionId | None = None) -> TornTail | None:
        """Open the partition if it is assigned, making files that a fresh one lacks; return what
        recovery had to cut.

        Damage is remembered, not raised: the partition then refuses service.
        """
        self._close_files()
        self.damage = self._failure = None
        try:
            info = self._control_file.info(self.partition_id)
            self.announce(info.session_id)
            return self._open_files(info, ceiling) if info.is_assigned else None
        except StorageError as error:
            self._close_files()
            self.damage = error
        except OSError as error:
            self._close_files()
            self.damage = StorageError(f"{self._home.directory} cannot be opened: {error}")
        return None

    def close(self) -> None:
        """Bring the index up to date and close all files. Raises SegmentFailedError."""
        try:
            if self._last is not None and not self._last.failed:
                self._last.write_index()
        finally:
            self._close_files()

    def _open_files(self, info: PartitionInfo, ceiling: TransactionId | None) -> TornTail | None:
        self._make_directory(info)
        # Names that a killed process gave and did not sync are seen, but a power cut takes them.
        self._disk.sync_directory(self._parent)
        self._disk.sync_directory(self._home.directory)
        firsts = self._find_segments()
        while ceiling is not None and len(firsts) > 1 and firsts[-1] >= ceiling:
            # Nothing in it is known to be durable, perhaps not even its header.
            self._remove_segment(firsts.pop())
        if (
            firsts
            and firsts[-1] > info.local_low_water_mark
            and is_unfinished(self._home, firsts[-1])
        ):
            # A crash in the middle of a roll-over; the next append makes it anew.
            self._disk.remove(self._home.path(firsts.pop(), DATA_SUFFIX))
            self._disk.sync_directory(self._home.directory)
        if not firsts:
            if info.local_low_water_mark != NOTHING:
                raise CorruptionError(
                    f"{self._home.directory} has no segments; expected records up to"
                    f" {info.local_low_water_mark}"
                )
            self._last = create_segment(self._home, FIRST, self._wall_milliseconds())
            self._firsts = [FIRST]
            return None
        if firsts[0] != FIRST:
            raise CorruptionError(
                f"{self._home.directory} starts with transaction {firsts[0]}; expected {FIRST}"
            )
        self._firsts = firsts
        for first in firsts[:-1]:
            self._complete_segment(first)
        self._last, torn = open_segment(
            self._home,
            firsts[-1],
            local_low_water_mark=info.local_low_water_mark,
            following=None,
            ceiling=ceiling,
        )
        return torn

    def _make_directory(self, info: PartitionInfo) -> None:
        if self._disk.exists(self._home.directory):
            return
        if info.local_low_water_mark != NOTHING:
            raise CorruptionError(
                f"no directory {self._home.directory}; expected records up to"
                f" {info.local_low_water_mark}"
            )
        self._disk.make_directory(self._home.directory)

    def _find_segments(self) -> list[TransactionId]:
        return [
            TransactionId(int(name[:NAME_DIGITS]))
            for name in self._disk.list_directory(self._home.directory)
            if len(name) == NAME_DIGITS + len(DATA_SUFFIX)
            and name.endswith(DATA_SUFFIX)
            and name[:NAME_DIGITS].isdigit()
        ]

    def _close_files(self) -> None:
        for segment in self._complete.values():
            segment.close()
        self._complete.clear()
        if self._last is not None:
            self._last.close()
            self._last = None
        self._firsts = []

    # What the node asks for

    @property
    def info(self) -> PartitionInfo:
        """Raises CorruptionError."""
        return self._control_file.info(self.partition_id)

    @property
    def session_info(self) -> SessionInfo:
        """Raises CorruptionError."""
        info = self.info
        return SessionInfo(info.session_id, info.low_water_mark, info.local_low_water_mark)

    @property
    def next_transaction_id(self) -> TransactionId:
        """One past the last durable record, between calls of `process`."""
        return FIRST if self._last is None else self._last.next_transaction_id

    @property
    def segment_count(self) -> int:
        return len(self._firsts)

    @property
    def is_writable(self) -> bool:
        """Whether nothing has failed that only reopening can mend."""
        return self._last is not None and self._failure is None

    def announce(self, session_id: SessionId) -> None:
        """Let a session that was heard of fence out all lower ones: on receipt of a request, before
        the ones that wait are processed."""
        self._current_session_id = max(self._current_session_id, session_id)

    def assign(self) -> TornTail | None:
        """Make the partition belong to this node, if it does not already; return what had to be cut
        from files that were left from another time. Raises what `open` remembers."""
        info = self.info
        if info.is_assigned and self.damage is None:
            return None
        self._close_files()
        try:
            torn = self._open_files(info, None)
        except BaseException:
            self._close_files()
            raise
        if not info.is_assigned:
            self._control_file.update(self.partition_id, info.with_flag(ASSIGNED, True))
        self.damage = self._failure = None
        return torn

    def unassign(self, *, delete_files: bool) -> None:
        """Forget all that was promised for the partition and stop serving it.

        Raises NotFoundError: it is not assigned, and nothing was touched; SegmentFailedError;
        OSError.
        """
        if not self._is_damaged_in_control_file() and not self.info.is_assigned:
            raise not_assigned(self.partition_id)
        self._close_files()
        self._control_file.reset(self.partition_id)
        self._current_session_id = self.info.session_id
        self.damage = self._failure = None
        if delete_files and self._disk.exists(self._home.directory):
            for name in reversed(self._disk.list_directory(self._home.directory)):
                if name.endswith((DATA_SUFFIX, INDEX_SUFFIX)):
                    self._disk.remove(f"{self._home.directory}/{name}")
            self._disk.sync_directory(self._home.directory)

    def set_available(self, available: bool) -> TornTail | None:
        """Allow or refuse reads and writes by servers; return what had to be cut, if anything.

        Allowing also reopens a partition whose writer has failed or that was found damaged, and
        only what was known to be durable is kept. Raises SegmentFailedError, CorruptionError.
        """
        self.check_assigned()
        info = self.info
        torn = None
        if available and not self.is_writable:
            known = self.next_transaction_id if self._last is not None else None
            torn = self.open(ceiling=known)
            self.check_healthy()
        if info.is_available != available:
            self._control_file.update(self.partition_id, info.with_flag(AVAILABLE, available))
        return torn

    @property
    def is_checkpoint_due(self) -> bool:
        return self._failure is None and self._last is not None and self._last.is_checkpoint_due

    def checkpoint(self) -> None:
        """Bring the index up to date, which bounds the time of the next start.

        Raises SegmentFailedError.
        """
        assert self._last is not None
        self._write(self._last.checkpoint)

    # Requests

    def process(self, requests: Sequence[StorageMessage]) -> list[StorageMessage]:
        """Take `requests` in order and return one answer each.

        Appends that adjoin are written with one write; all of them are synced with one sync, before
        this returns. Never raises for a disk's or a peer's fault.
        """
        return Drain(self, requests).run()

    def check_permission(self, request: StorageMessage) -> None:
        """Raises NotFoundError, UnavailableError, FencedError, StorageError.

        Source: Waltz Storage, "Sessions"; the order of the checks is the original's.
        """
        info = self.info
        self.check_assigned()
        if getattr(request, "offline", False):
            if info.is_available:
                raise UnavailableError(
                    f"offline recovery of partition {self.partition_id} is disabled while it is"
                    " available"
                )
            expected = info.session_id
        else:
            if not info.is_available:
                raise UnavailableError(
                    f"read and write of partition {self.partition_id} are disabled"
                )
            expected = self._current_session_id
        if request.session_id != expected:
            raise FencedError(
                f"ConcurrentUpdate: session ID of partition {self.partition_id} has changed to"
                f" {expected}, the request's is {request.session_id}"
            )
        self.check_healthy()

    def check_assigned(self) -> None:
        """Raises NotFoundError, CorruptionError."""
        if not self.info.is_assigned:
            raise not_assigned(self.partition_id)

    def check_healthy(self) -> None:
        """Raises StorageError: why the partition refuses service."""
        if self.damage is not None:
            raise type(self.damage)(*self.damage.args)

    def check_writable(self) -> Segment:
        """Return the segment that takes writes. Raises SegmentFailedError."""
        if self._failure is not None:
            raise SegmentFailedError(f"no writes after a failed one: {self._failure}")
        assert self._last is not None
        return self._last

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, rolling over where a segment passes its threshold; `sync` makes it
        durable. Raises SegmentFailedError."""
        self.check_writable()
        self._write(lambda: self._write_batch(batch))

    def sync(self) -> None:
        """Raises SegmentFailedError."""
        self._write(self.check_writable().sync)

    def truncate(self, last_transaction_id: TransactionId) -> TransactionId:
        """Remove everything after `last_transaction_id` and return the last ID that is left.

        A replica that was written off is cut to a mark that may be below what a session that never
        opened has set here. The local mark follows, first and durably: what it covers must be here.
        """
        last = self.check_writable()
        if last_transaction_id >= last.next_transaction_id - 1:
            return TransactionId(last.next_transaction_id - 1)
        info = self.info
        if last_transaction_id < info.local_low_water_mark:
            lowered = replace(info, local_low_water_mark=last_transaction_id)
            self._write(lambda: self._control_file.update(self.partition_id, lowered))
        self._write(lambda: self._truncate(last_transaction_id))
        return last_transaction_id

    def set_low_water_mark(self, session_id: SessionId, low_water_mark: TransactionId) -> None:
        """Start session `session_id` here, durably: the cluster's high-water mark is
        `low_water_mark`, this replica's is what it holds.

        Raises StorageError: the mark is below what is here; FencedError.
        """
        last = self.check_writable()
        info = self.info
        held = TransactionId(last.next_transaction_id - 1)
        if session_id < info.session_id:
            raise FencedError(
                f"ConcurrentUpdate: session {info.session_id} has started here, not {session_id}"
            )
        if held > low_water_mark:
            raise StorageError(
                f"low-water mark {low_water_mark} is lower than the max transaction id {held}"
            )
        if low_water_mark < info.low_water_mark:
            raise StorageError(
                f"low-water mark {low_water_mark} is lower than the one of session"
                f" {info.session_id}, {info.low_water_mark}: what the cluster has committed only"
                " grows"
            )
        assert held >= info.local_low_water_mark, "truncation lowers it"
        started = replace(
            info,
            session_id=session_id,
            low_water_mark=low_water_mark,
            local_low_water_mark=held,
        )
        self._write(last.write_index)
        self._write(lambda: self._control_file.update(self.partition_id, started))

    def read(
        self, first_transaction_id: TransactionId, *, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Return records from `first_transaction_id` on, every one checked, across segments: as
        many as are here and fit, one at least; empty if the first is not here.

        Raises CorruptionError, OSError.
        """
        if not 0 <= first_transaction_id < self.next_transaction_id:
            return empty_batch(FIRST)
        batches: list[RecordBatch] = []
        position = first_transaction_id
        while count_max > 0 and position < self.next_transaction_id:
            segment = self._segment_of(position)
            batch = segment.read(position, count_max=count_max, bytes_max=bytes_max)
            if batches and len(batch.block) > bytes_max:
                break
            batches.append(batch)
            position = batch.next_transaction_id
            count_max -= len(batch)
            bytes_max -= len(batch.block)
            if bytes_max <= 0 or position != segment.next_transaction_id:
                break
        return join_batches(batches) if batches else empty_batch(FIRST)

    # Segments

    def _write_batch(self, batch: RecordBatch) -> None:
        while len(batch):
            last = self.check_writable()
            is_empty = last.next_transaction_id == last.first_transaction_id
            if last.size > self._segment_bytes_threshold and not is_empty:
                last = self._roll_over(last)
            # A segment exceeds the threshold by its last record at most.
            room = self._segment_bytes_threshold - last.size
            count = max(1, int(np.searchsorted(batch.offsets[:-1], room, side="right")))
            last.write(batch.slice(batch.first_transaction_id, count))
            batch = batch.slice(last.next_transaction_id, len(batch) - count)

    def _roll_over(self, last: Segment) -> Segment:
        last.write_index()
        first = last.next_transaction_id
        self._last = create_segment(self._home, first, self._wall_milliseconds())
        self._firsts.append(first)
        self._keep_open(last)
        return self._last

    def _truncate(self, last_transaction_id: TransactionId) -> None:
        """The newest segment goes first, each durably, so that a crash leaves no gap."""
        while len(self._firsts) > 1 and self._firsts[-1] > last_transaction_id + 1:
            removed = self._firsts[-1]
            segment = self._complete_segment(self._firsts[-2])
            assert self._last is not None
            self._last.close()
            self._complete.pop(segment.first_transaction_id)
            self._last = segment
            self._firsts.pop()
            try:
                self._remove_segment(removed)
            except OSError as error:
                raise SegmentFailedError(
                    f"{self._home.path(removed, DATA_SUFFIX)}: removal failed: {error}"
                ) from error
        assert self._last is not None
        self._last.truncate(last_transaction_id)

    def _remove_segment(self, first: TransactionId) -> None:
        self._disk.remove(self._home.path(first, DATA_SUFFIX))
        index_path = self._home.path(first, INDEX_SUFFIX)
        if self._disk.exists(index_path):
            self._disk.remove(index_path)
        self._disk.sync_directory(self._home.directory)

    def _segment_of(self, transaction_id: TransactionId) -> Segment:
        first = self._firsts[bisect_right(self._firsts, transaction_id) - 1]
        if self._last is not None and first == self._last.first_transaction_id:
            return self._last
        return self._complete_segment(first)

    def _complete_segment(self, first: TransactionId) -> Segment:
        """Return the segment, open and the one used last. Raises CorruptionError, OSError."""
        segment = self._complete.get(first)
        if segment is None:
            following = self._firsts[bisect_right(self._firsts, first)]
            segment, _ = open_segment(
                self._home, first, local_low_water_mark=NOTHING, following=following
            )
        self._keep_open(segment)
        return segment

    def _keep_open(self, segment: Segment) -> None:
        self._complete[segment.first_transaction_id] = segment
        self._complete.move_to_end(segment.first_transaction_id)
        while len(self._complete) > SEGMENTS_OPEN_MAX:
            self._complete.popitem(last=False)[1].close()

    def _write(self, action: Callable[[], None]) -> None:
        try:
            action()
        except SegmentFailedError as error:
            self._failure = error
            raise

    def _is_damaged_in_control_file(self) -> bool:
        try:
            return not self.info
        except CorruptionError:
            return True
