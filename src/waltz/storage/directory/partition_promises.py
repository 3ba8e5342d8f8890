"""The promises of one partition: its struct in the control file, its slot in the node file.

Owns the order of updates: only the unused one of a partition's twin structs is ever overwritten;
the node file, which has a copy of the struct and the session fence, is updated after that. So a
copy that is one update ahead of the control file proves that the control file has lost an update.
Knows nothing of segments, nor of other partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltz.errors import CorruptionError, NotFoundError
from waltz.storage.directory.control_struct import (
    FRESH,
    FRESH_ENTRY,
    FRESH_STRUCTS,
    PARTITION_ID,
    Entry,
    PartitionInfo,
    encode_entry,
    partition_offset,
    struct_offset,
)
from waltz.storage.directory.node_file import NodeFile, Slot
from waltz.storage.directory.synced_file import SyncedFile
from waltz.storage.directory.trace_file import SegmentTrace, TraceFile
from waltz.types import NO_SESSION, PartitionId, SessionId
from waltz.wire.storage_protocol import SessionInfo


@dataclass(slots=True)
class PromiseFiles:
    """The open files of a directory that hold promises; larger ones take their place when the
    cluster gets more partitions."""

    control: SyncedFile
    node: NodeFile
    trace: TraceFile


def not_assigned(partition_id: PartitionId) -> NotFoundError:
    return NotFoundError(f"Partition:{partition_id} is not assigned.")


class PartitionPromises:
    """The durable promises of a partition. Promises of different partitions may change in
    different threads."""

    def __init__(
        self, files: PromiseFiles, partition_id: PartitionId, entry: Entry | CorruptionError
    ) -> None:
        self.partition_id = partition_id
        self._files = files
        self._entry = entry
        self._slot: Slot | CorruptionError
        self._is_ours = self._is_traced = False
        try:
            slot = self._slot = files.node.slot(partition_id)
        except CorruptionError as error:
            self._slot = error
        else:
            if isinstance(entry, Entry) and slot.struct_copy == encode_entry(entry):
                # The entry has not changed since the node file has said this.
                self._is_ours = slot.index_is_ours
                self._is_traced = slot.index_is_ours and slot.is_traced

    def info_and_fence(self) -> tuple[PartitionInfo, SessionId]:
        """Return `info` and `fence`. Raises CorruptionError."""
        entry, slot = self._entry, self._slot
        if isinstance(slot, CorruptionError):
            raise CorruptionError(str(slot))
        if isinstance(entry, CorruptionError):
            raise CorruptionError(str(entry))
        return entry.info, max(entry.info.session_id, slot.fence)

    @property
    def info(self) -> PartitionInfo:
        """Session, marks and flags. Raises CorruptionError: they cannot be trusted."""
        return self.info_and_fence()[0]

    @property
    def fence(self) -> SessionId:
        """The session below which every session is refused for ever. Raises CorruptionError."""
        return self.info_and_fence()[1]

    @property
    def session_info(self) -> SessionInfo:
        """The session that started here last, and its marks. Raises CorruptionError."""
        info = self.info
        return SessionInfo(info.session_id, info.low_water_mark, info.local_low_water_mark)

    def check_assigned(self) -> None:
        """Raises NotFoundError: the partition is not assigned; CorruptionError."""
        if not self.info.is_assigned:
            raise not_assigned(self.partition_id)

    @property
    def is_ours(self) -> bool:
        """Whether this release was the last to write the partition, so that its index proves what
        was durable. Raises CorruptionError."""
        self.info_and_fence()
        return self._is_ours

    def make_ours(self) -> None:
        """Note durably that this release wrote the partition's index.

        The index must be complete and synced: at the next opening it is taken as proof. Raises
        SegmentFailedError, CorruptionError.
        """
        is_traced = self._files.trace.trace(self.partition_id) is not None
        if self.is_ours and is_traced == self._is_traced:
            return
        self._is_traced |= is_traced
        self._remember(self.fence, index_is_ours=True)
        self._is_ours = True

    @property
    def is_traced(self) -> bool:
        """Whether this release was the last to write the partition, and has kept a trace of its
        segments. Raises CorruptionError."""
        return self.is_ours and self._is_traced

    def trace(self) -> SegmentTrace | None:
        """Return the trace of the partition's segments; None: there is none that checks out."""
        return self._files.trace.trace(self.partition_id)

    def keep_trace(self, trace: SegmentTrace) -> None:
        """Return once the trace is durable. Raises SegmentFailedError."""
        self._files.trace.keep(self.partition_id, trace)

    def doubt(self, info: PartitionInfo) -> None:
        """Durably replace the promises by weaker ones; the fence stays.

        Raises SegmentFailedError, CorruptionError.
        """
        was, fence = self.info_and_fence()
        if was == info:
            return
        if isinstance(self._slot, Slot) and fence > self._slot.fence:
            # The fence is in the struct only, and the struct is about to lose it.
            self._remember(fence, index_is_ours=self._is_ours)
        self._write_both(info)
        self._remember(fence, index_is_ours=self._is_ours)

    def raise_fence(self, session_id: SessionId) -> None:
        """Return once all sessions below `session_id` are refused durably. Raises
        SegmentFailedError, CorruptionError."""
        if session_id > self.fence:
            self._remember(session_id, index_is_ours=self._is_ours)

    def update(self, info: PartitionInfo) -> None:
        """Replace the promises; return once that is durable in both files.

        Raises SegmentFailedError, CorruptionError.
        """
        self.info_and_fence()
        self._write_struct(info)
        self._remember(self.fence, index_is_ours=self._is_ours)

    def reset(self) -> None:
        """Forget session, marks and flags, damaged or not; the fence stays.

        Raises SegmentFailedError.
        """
        self._is_ours = self._is_traced = False
        fence = NO_SESSION
        if isinstance(self._slot, Slot):  # else the fence is unknown
            fence = self._slot.fence
        if isinstance(self._entry, Entry):
            fence = max(fence, self._entry.info.session_id)
            self._write_both(FRESH)
        else:
            data = PARTITION_ID.pack(self.partition_id) + FRESH_STRUCTS
            self._files.control.write(partition_offset(self.partition_id), data)
            self._entry = FRESH_ENTRY
        self._remember(fence, index_is_ours=False)

    def _write_both(self, info: PartitionInfo) -> None:
        """Write `info` into both structs: damage to one must not bring back promises that were
        given up."""
        self._write_struct(info)
        self._write_struct(info)

    def _write_struct(self, info: PartitionInfo) -> None:
        """Write `info` into the twin that the current entry does not use."""
        assert isinstance(self._entry, Entry)
        following = Entry(info, self._entry.sequence_number + 1, 1 - self._entry.twin)
        place = struct_offset(self.partition_id, following.twin)
        self._files.control.write(place, encode_entry(following))
        self._entry = following

    def _remember(self, fence: SessionId, *, index_is_ours: bool) -> None:
        """Bring the node file up to date with the current struct."""
        assert isinstance(self._entry, Entry)
        self._slot = self._files.node.update(
            self.partition_id,
            fence=fence,
            struct_copy=encode_entry(self._entry),
            index_is_ours=index_is_ours,
            is_traced=index_is_ours and self._is_traced,
        )
