"""One partition's replica on this node: its session, its permissions, its answers.

Owns fencing, marks, assignment and availability; the bytes on disk are the segment chain's. Runs in
a worker thread, one call at a time; only `announce` may be called meanwhile. Knows nothing of
connections.

What holds always: the first failed write or sync ends the partition's writer until it is reopened;
what was durable before is still read.
Source: Waltz Storage, "Messages"; Waltz Internals, "Sessions".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec
from uuid import UUID

from waltz.errors import (
    CorruptionError,
    FencedError,
    NotFoundError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.host import Disk
from waltz.limits import DAMAGED_RANGES_MAX, SEGMENTS_OPEN_MAX
from waltz.record import RecordBatch
from waltz.storage.directory.control_file import ControlFile
from waltz.storage.directory.control_struct import ASSIGNED, FRESH, PartitionInfo
from waltz.storage.directory.space import SpaceAccount, is_no_space
from waltz.storage.directory.trace_file import TRACE_FILE_NAME
from waltz.storage.drain import Drain
from waltz.storage.log.damage import Damage, damage_text, left_of, range_text
from waltz.storage.log.listing import holds_segments
from waltz.storage.log.segment import SegmentHome
from waltz.storage.log.segment_recovery import TornTail, Trust
from waltz.storage.log.segments import ScrubStep, SegmentChain
from waltz.storage.permission import check_access, is_offline
from waltz.types import NO_SESSION, NOTHING, PartitionId, SessionId, TransactionId
from waltz.wire.storage_protocol import (
    DamagedRange,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SessionInfo,
    StorageMessage,
)

P = ParamSpec("P")


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
        segments_open_max: int = SEGMENTS_OPEN_MAX,
        wall_milliseconds: Callable[[], int],
        space: SpaceAccount | None = None,
    ) -> None:
        """`space` refuses appends while the disk is short of room; None: nothing does."""
        self.partition_id = partition_id
        self.counters = PartitionCounters()
        self.damage: StorageError | None = None
        """Why the partition refuses all service; only giving it up, or a restart, ends that."""
        self.loss: str | None = None
        """What was lost, so that it does not vote before a session has filled it up and has begun
        here; None: nothing is known to be lost."""
        self._home = SegmentHome(disk, f"{directory}/{partition_id}", cluster_key, partition_id)
        self._chain = SegmentChain(
            self._home,
            segment_bytes_threshold=segment_bytes_threshold,
            segments_open_max=segments_open_max,
            wall_milliseconds=wall_milliseconds,
            keep_trace=lambda trace: control_file.keep_trace(partition_id, trace),
        )
        self._control_file = control_file
        self._announced_session_id = NO_SESSION
        """The highest one heard of, changed by `announce` alone."""
        self._failure: SegmentFailedError | None = None
        self._space = space
        self._durable_next: TransactionId | None = None
        """While reopening has failed: one past what was known to be durable before it."""
        self._accepted: tuple[SessionId, Damage] = (NO_SESSION, ())
        """The damage with which a session goes on, for no replica can give these records."""

    # Opening and closing

    def open(self, *, ceiling: TransactionId | None = None) -> TornTail | None:
        """Open the partition if it is assigned, making files that a fresh one lacks; return what
        recovery had to cut.

        Damage is remembered, not raised: the partition then refuses service.
        """
        self._chain.close_files()
        self.damage = self._failure = None
        try:
            info = self._control_file.info(self.partition_id)
            if not info.is_assigned:
                return None
            torn = self._open_chain(info, ceiling)
        except StorageError as error:
            self.damage = error
        except (OSError, UnavailableError) as error:
            self.damage = StorageError(f"{self._home.directory} cannot be opened: {error}")
            self.damage.__cause__ = error
        else:
            try:
                self._make_ours()
            except SegmentFailedError as error:
                self._failure = error
            return torn
        return None

    def reopen(self) -> TornTail | None:
        """Open the files anew after a failure, keeping only what was known to be durable; return
        what had to be cut. Raises StorageError: why the partition goes on to refuse service, or
        writes."""
        if self._chain.is_open:
            self._durable_next = self.next_transaction_id
        torn = self.open(ceiling=self._durable_next)
        self.check_healthy()
        self._durable_next = None
        self.check_writable()
        return torn

    def close(self) -> None:
        """Bring the index up to date and close all files. Raises SegmentFailedError."""
        self._chain.close()

    def _open_chain(self, info: PartitionInfo, ceiling: TransactionId | None) -> TornTail | None:
        """Open the segments. What they must hold and do not, with an end that nothing tells, is no
        torn tail: whoever acknowledged it must not vote as if it had not. The partition then
        promises no session, durably, as a blank one does: it is filled up before it counts."""
        number = self.partition_id
        is_proof, trace = self._control_file.is_ours(number), None
        if is_traced := self._control_file.is_traced(number):
            trace = self._control_file.trace(number)
        self.loss = None
        if info.session_id == NO_SESSION and info.low_water_mark != NOTHING:
            self.loss = f"{self._home.directory} has lost its newest records"
        has_promised = info.local_low_water_mark != NOTHING or is_traced
        if has_promised and not holds_segments(self._home):
            info = FRESH.with_access(readable=info.is_readable, writable=info.is_writable)
            info = info.with_flag(ASSIGNED, True)
            self._doubt(info, f"{self._home.directory} has no segments any more")
            is_proof, trace, is_traced = False, None, False
        trust = Trust(
            local_low_water_mark=info.local_low_water_mark,
            index_is_proof=is_proof,
            ceiling=ceiling,
            durable_next=NOTHING if trace is None else trace.durable_next,
            newest=NOTHING if trace is None else trace.newest,
        )
        doubted = replace(info, session_id=NO_SESSION)
        if is_traced and trace is None:
            self._doubt(
                doubted,
                f"{TRACE_FILE_NAME} has no trace of {self._home.directory} that checks out, so that"
                " nobody knows whether its newest records are there",
            )
        lost = f"{self._home.directory} has lost its newest records"
        return self._chain.open(trust, lambda: self._doubt(doubted, lost))

    def _doubt(self, info: PartitionInfo, loss: str) -> None:
        """Raises CorruptionError: that it cannot vouch for its records cannot be made durable."""
        self.loss = loss
        try:
            self._control_file.doubt(self.partition_id, info)
        except SegmentFailedError as error:
            raise CorruptionError(f"{loss}; {error}") from error

    def _make_ours(self) -> None:
        """Raises SegmentFailedError."""
        self._chain.trace()
        self._control_file.make_ours(self.partition_id)

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
        return self._chain.next_transaction_id

    @property
    def segment_count(self) -> int:
        return self._chain.segment_count

    @property
    def damaged_ranges(self) -> Damage:
        """Records that cannot be trusted and await repair, ascending; good ones are served."""
        return self._chain.damage

    @property
    def indexes_healed(self) -> int:
        """Wrong index entries that were put right since the node started."""
        return self._chain.indexes_healed

    @property
    def is_writable(self) -> bool:
        """Whether nothing has failed that only reopening can mend."""
        return self._chain.is_open and self._failure is None

    @property
    def is_closed_for_space(self) -> bool:
        """Whether a full disk has ended the writer, or all service: `reopen` may work again."""
        return is_no_space(self._failure) or is_no_space(self.damage)

    def announce(self, session_id: SessionId) -> None:
        """Let a session that was heard of fence out all lower ones: on receipt of a request, before
        the ones that wait are processed. Called by one thread only, whichever the connection."""
        self._announced_session_id = max(self._announced_session_id, session_id)

    @property
    def highest_session(self) -> SessionId:
        """The highest one heard of or promised, as far as that is known."""
        try:
            return max(self._announced_session_id, self.fence)
        except CorruptionError:
            return self._announced_session_id

    @property
    def fence(self) -> SessionId:
        """The session below which every one is refused for ever. Raises CorruptionError."""
        return self._control_file.fence(self.partition_id)

    def assign(self) -> TornTail | None:
        """Make the partition belong to this node, if it does not already; return what had to be cut
        from files that were left from another time. Raises what `open` remembers."""
        info = self.info
        if info.is_assigned and self.damage is None:
            return None
        torn = self._open_chain(info, None)
        try:
            if not info.is_assigned:
                self._control_file.update(self.partition_id, info.with_flag(ASSIGNED, True))
            self._make_ours()
        except SegmentFailedError as error:
            if self.info.is_assigned:
                self._failure = error
            else:
                self._chain.close_files()
            raise
        self.damage = self._failure = None
        return torn

    def unassign(self, *, delete_files: bool) -> None:
        """Forget all that was promised for the partition but its fence, and stop serving it.

        Raises NotFoundError: it is not assigned, and nothing was touched; SegmentFailedError;
        OSError.
        """
        if not self._is_damaged_in_control_file() and not self.info.is_assigned:
            raise not_assigned(self.partition_id)
        self._write(self._control_file.reset, self.partition_id)
        self._chain.close_files()
        self.damage = self._failure = self.loss = None
        if delete_files:
            self._chain.remove_files()

    def set_available(self, available: bool) -> TornTail | None:
        """As `set_access`, for reads and writes together."""
        return self.set_access(readable=available, writable=available)

    def set_access(self, *, readable: bool, writable: bool) -> TornTail | None:
        """Allow or refuse reads and writes by servers; return what had to be cut, if anything.

        Allowing also reopens a partition whose writer has failed or that was found damaged, and
        only what was known to be durable is kept. Raises SegmentFailedError, CorruptionError.
        """
        self.check_assigned()
        torn = None
        if (writable and not self.is_writable) or (readable and self.damage is not None):
            torn = self.reopen()
        info = self.info
        wanted = info.with_access(readable=readable, writable=writable)
        if wanted != info:
            self._control_file.update(self.partition_id, wanted)
        return torn

    # Requests

    def process(self, requests: Sequence[StorageMessage]) -> list[StorageMessage]:
        """Take `requests` in order and return one answer each.

        Appends that adjoin are written with one write; all of them are synced with one sync, before
        this returns. Never raises for a disk's or a peer's fault.
        """
        return Drain(self, requests).run()

    def admit(self, request: StorageMessage) -> None:
        """Return once `request` may be answered, and its session refuses every lower one durably.

        What a session is told must hold until a later one comes: should the node end right after
        the answer, nobody of an earlier session may change it. An offline request must be of the
        session that began here last, any other of the highest one heard of. Raises NotFoundError,
        UnavailableError, FencedError, StorageError. Source: Waltz Storage, "Sessions"; the order of
        the checks is the original's.
        """
        info, fence = self._control_file.promises(self.partition_id)
        if not info.is_assigned:
            raise not_assigned(self.partition_id)
        offline = is_offline(request)
        check_access(info, request, offline=offline)
        session_id = request.session_id
        expected = info.session_id if offline else max(self._announced_session_id, fence)
        if session_id != expected:
            raise FencedError(
                f"ConcurrentUpdate: session ID of partition {self.partition_id} has changed to"
                f" {expected}, the request's is {session_id}"
            )
        self.check_healthy()
        if not offline and session_id > fence:
            self._write(self._control_file.raise_fence, self.partition_id, session_id)

    def check_assigned(self) -> None:
        """Raises NotFoundError, CorruptionError."""
        if not self.info.is_assigned:
            raise not_assigned(self.partition_id)

    def check_healthy(self) -> None:
        """Raises StorageError: why the partition refuses service."""
        if self.damage is not None:
            raise type(self.damage)(*self.damage.args)

    def check_writable(self) -> None:
        """Raises SegmentFailedError."""
        if self._failure is not None:
            raise SegmentFailedError(f"no writes after a failed one: {self._failure}")

    def check_undamaged(self, session_id: SessionId = NO_SESSION) -> None:
        """Raises CorruptionError: this replica cannot vouch for what it was given to keep, but for
        what session `session_id` has accepted."""
        if left := left_of(self.damaged_ranges, self._accepted_by(session_id)):
            raise CorruptionError(
                f"no vote of partition {self.partition_id}, which has damage that awaits repair:"
                f" {damage_text(left)}"
            )

    def accept_damage(self, session_id: SessionId, damage: Damage) -> None:
        """Let session `session_id` go on with these damaged records, besides those that it has
        accepted before. Kept in memory: the next session, and this node once it is started anew,
        have to be told again.

        Raises CorruptionError: nothing good follows them here, so that nobody knows where the log
        ended; or these are more ranges, with the earlier ones, than a replica names.
        """
        accepted = tuple(dict.fromkeys([*self._accepted_by(session_id), *damage]))
        if len(accepted) > DAMAGED_RANGES_MAX:
            raise CorruptionError(
                f"{len(accepted)} damaged ranges of partition {self.partition_id} cannot be"
                f" accepted; at most {DAMAGED_RANGES_MAX} can"
            )
        for found in damage:
            if found.next_transaction_id >= self.next_transaction_id:
                raise CorruptionError(
                    f"{range_text(found)} of partition {self.partition_id} cannot be accepted as"
                    " damaged: no good record follows here, so that nobody knows where the log"
                    " ended"
                )
        self._accepted = session_id, accepted

    def _accepted_by(self, session_id: SessionId) -> Damage:
        accepted_by, damage = self._accepted
        return damage if session_id == accepted_by else ()

    def check_space(self, size_bytes: int) -> None:
        """Let so many bytes be appended. Raises UnavailableError: the disk is short of room."""
        if self._space is not None:
            self._space.check(size_bytes)

    def settle_space(self) -> None:
        """All appends that `check_space` let through are written, or never will be."""
        if self._space is not None:
            self._space.settle()

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, rolling over where a segment passes its threshold; `sync` makes it
        durable. Raises SegmentFailedError; UnavailableError: no space, and nothing was written."""
        self.check_writable()
        self._write(self._chain.write, batch)

    def sync(self) -> None:
        """Raises SegmentFailedError."""
        self.check_writable()
        self._write(self._chain.sync)

    def truncate(
        self, last_transaction_id: TransactionId, session_id: SessionId = NO_SESSION
    ) -> TransactionId:
        """Remove everything after `last_transaction_id` and return the last ID that is left.

        A replica that was written off is cut to a mark that may be below what a session that never
        opened has set here. The local mark follows, first and durably: what it covers must be here.
        Raises StorageError: there is no such ID, and nothing has changed; CorruptionError: not
        everything before is good, but for what session `session_id` has accepted;
        SegmentFailedError, OSError.
        """
        self.check_writable()
        if last_transaction_id < NOTHING:
            raise StorageError(
                f"no truncation to {last_transaction_id}; expected {NOTHING} or more"
            )
        accepted = self._accepted_by(session_id)
        self._chain.check_cut(last_transaction_id, accepted)
        if last_transaction_id >= self.next_transaction_id - 1:
            return TransactionId(self.next_transaction_id - 1)
        info = self.info
        if last_transaction_id < info.local_low_water_mark:
            lowered = replace(info, local_low_water_mark=last_transaction_id)
            self._write(self._control_file.update, self.partition_id, lowered)
        self._write(self._chain.truncate, last_transaction_id, accepted)
        return last_transaction_id

    def set_low_water_mark(self, session_id: SessionId, low_water_mark: TransactionId) -> None:
        """Start session `session_id` here, durably: the cluster's high-water mark is
        `low_water_mark`, this replica's is what it holds.

        Nothing may be damaged but what the session has accepted. Raises StorageError: the mark is
        below what is here; FencedError.
        """
        self.check_writable()
        self.check_undamaged(session_id)
        info = self.info
        held = TransactionId(self.next_transaction_id - 1)
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
        self._write(self._chain.write_index)
        self._write(self._control_file.update, self.partition_id, started)
        self.loss = None

    def read(
        self, first_transaction_id: TransactionId, *, count_max: int, bytes_max: int
    ) -> RecordBatch:
        """Return records from `first_transaction_id` on, every one checked, across segments: as
        many as are here and fit, one at least, and none from the first damaged one on; empty if the
        first is not here.

        Raises CorruptionError: the first one is damaged; OSError.
        """
        return self._chain.read(first_transaction_id, count_max=count_max, bytes_max=bytes_max)

    def replica_state(self, request: ReplicaStateRequest) -> ReplicaStateResponse:
        """Answer what a recovery wants to know; unlike a vote, damage does not hinder it.

        Raises CorruptionError.
        """
        info = self.info
        return ReplicaStateResponse(
            request.session_id,
            request.sequence_number,
            request.partition_id,
            self.session_info,
            TransactionId(self.next_transaction_id - 1),
            self._control_file.directory_id,
            readable=info.is_readable,
            writable=info.is_writable and self.is_writable,
            damaged=tuple(
                DamagedRange(*found) for found in self.damaged_ranges[:DAMAGED_RANGES_MAX]
            ),
            refusal=self.refusal,
        )

    @property
    def refusal(self) -> str | None:
        """Why an append would be refused now, whatever is in it; None if it would be taken."""
        try:
            self.check_healthy()
            if not self.info.is_writable:
                return "an administrator has closed it to writes"
            self.check_writable()
            self.check_space(0)
        except (StorageError, UnavailableError) as error:
            return str(error)
        return None

    def checksum(self, first: TransactionId, last: TransactionId) -> str:
        """Return the SHA-256, in hexadecimal digits, of the bytes of the records `first` to `last`:
        equal for replicas that hold the same. Raises NotFoundError, CorruptionError, OSError."""
        return self._chain.checksum(first, last)

    def scrub(self, first: TransactionId, bytes_max: int) -> ScrubStep:
        """Read about `bytes_max` bytes of durable records again, from `first` on, and remember what
        is damaged. Raises StorageError: nothing is open; OSError."""
        self.check_healthy()
        if not self._chain.is_open:
            raise not_assigned(self.partition_id)
        return self._chain.scrub(first, bytes_max)

    def repair(self, batch: RecordBatch) -> None:
        """Put `batch` in place of damaged records, from the first one of a range on, durably.

        Raises StorageError: it does not fit there, and nothing was written; SegmentFailedError;
        UnavailableError: no space.
        """
        self.check_writable()
        self._write(self._chain.repair, batch)

    def _write(self, action: Callable[P, None], *arguments: P.args, **more: P.kwargs) -> None:
        try:
            action(*arguments, **more)
        except SegmentFailedError as error:
            self._failure = error
            raise

    def _is_damaged_in_control_file(self) -> bool:
        try:
            return not self.info
        except CorruptionError:
            return True
