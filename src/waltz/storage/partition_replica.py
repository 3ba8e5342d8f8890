"""One partition's replica on this node: its session, its permissions, its answers.

Owns fencing, marks, assignment and availability; the segment chain owns the bytes on disk. Runs in
a worker thread, one call at a time; only `announce` may be called during a call. Knows nothing of
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
class ReplicaCounters:
    """Counts since the node started."""

    requests: int = 0
    refusals: int = 0
    records_appended: int = 0
    bytes_appended: int = 0
    drains_synced: int = 0


def not_assigned(partition_id: PartitionId) -> NotFoundError:
    return NotFoundError(f"Partition:{partition_id} is not assigned.")


def _closed(failure: SegmentFailedError) -> SegmentFailedError:
    return SegmentFailedError(f"the partition takes no writes after a failed one: {failure}")


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
        """`space` refuses appends while the disk is short of room; None: appends are never refused
        for that reason."""
        self.partition_id = partition_id
        self.counters = ReplicaCounters()
        self.damage: StorageError | None = None
        """Why the partition refuses all service; only unassigning it, reopening it or a restart
        ends that."""
        self.loss: str | None = None
        """The records that were lost; the replica does not vote until a session has filled it up
        and has started here. None: nothing is known to be lost."""
        self._home = SegmentHome(disk, f"{directory}/{partition_id}", cluster_key, partition_id)
        self._chain = SegmentChain(
            self._home,
            segment_bytes_threshold=segment_bytes_threshold,
            segments_open_max=segments_open_max,
            wall_milliseconds=wall_milliseconds,
            keep_trace=lambda trace: control_file.keep_trace(partition_id, trace),
        )
        self._control_file = control_file
        self.announced_session_id = NO_SESSION
        """The highest session heard of; only `announce` changes it."""
        self._failure: SegmentFailedError | None = None
        self._space = space
        self._durable_next: TransactionId | None = None
        """After a failed reopening, one past the last record known to be durable before it."""
        self._accepted: tuple[SessionId, Damage] = (NO_SESSION, ())
        """A session and the damage that it accepts, for no replica can provide these records."""

    # Opening and closing

    def open(self, *, ceiling: TransactionId | None = None) -> TornTail | None:
        """Open the partition if it is assigned, making the files that a fresh one lacks; return
        what recovery had to cut off.

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
        what had to be cut off. Raises StorageError: the reason for which the partition still
        refuses service, or writes."""
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
        """Open the segments. If records that they must hold are missing, and nothing tells how
        many, that is not a torn tail: a replica that acknowledged them must not vote as if it had
        not. The partition then durably promises no session, like a blank one, so that it is filled
        up before its vote counts."""
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
                f"{TRACE_FILE_NAME} has no trace of {self._home.directory} that checks out, so it"
                " is unknown whether its newest records are there",
            )
        lost = f"{self._home.directory} has lost its newest records"
        return self._chain.open(trust, lambda: self._doubt(doubted, lost))

    def _doubt(self, info: PartitionInfo, loss: str) -> None:
        """Note durably that the replica cannot vouch for its records. Raises CorruptionError: the
        note cannot be made durable."""
        self.loss = loss
        try:
            self._control_file.doubt(self.partition_id, info)
        except SegmentFailedError as error:
            raise CorruptionError(f"{loss}; {error}") from error

    def _make_ours(self) -> None:
        """Note durably that this release wrote the files. Raises SegmentFailedError."""
        self._chain.trace()
        self._control_file.make_ours(self.partition_id)

    # The partition's state, for the node

    @property
    def info(self) -> PartitionInfo:
        """The partition's durable promises. Raises CorruptionError."""
        return self._control_file.info(self.partition_id)

    @property
    def session_info(self) -> SessionInfo:
        """The session that started here last, and its marks. Raises CorruptionError."""
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
        """Ranges of records that cannot be trusted and await repair, ascending; all other records
        are served."""
        return self._chain.damage

    @property
    def indexes_healed(self) -> int:
        """Wrong index entries that were put right since the node started."""
        return self._chain.indexes_healed

    @property
    def is_writable(self) -> bool:
        """Whether the partition is open and no write has failed since."""
        return self._chain.is_open and self._failure is None

    @property
    def is_closed_for_space(self) -> bool:
        """Whether a full disk has ended the writer, or all service: `reopen` may succeed later."""
        return is_no_space(self._failure) or is_no_space(self.damage)

    def announce(self, session_id: SessionId) -> None:
        """Let session `session_id` fence out all lower ones: called when a request arrives, before
        the waiting requests are processed, and for all connections by the same thread."""
        self.announced_session_id = max(self.announced_session_id, session_id)

    @property
    def highest_session(self) -> SessionId:
        """The highest session heard of or promised, as far as that is known."""
        try:
            return max(self.announced_session_id, self.fence)
        except CorruptionError:
            return self.announced_session_id

    @property
    def fence(self) -> SessionId:
        """The session below which every session is refused for ever. Raises CorruptionError."""
        return self._control_file.fence(self.partition_id)

    def assign(self) -> TornTail | None:
        """Assign the partition to this node, if it is not assigned already; return what had to be
        cut off files that were left from an earlier assignment. Raises what `open` remembers."""
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
        """Forget all promises of the partition except its fence, and stop serving it.

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
        """Allow or refuse reads and writes together, as `set_access`."""
        return self.set_access(readable=available, writable=available)

    def set_access(self, *, readable: bool, writable: bool) -> TornTail | None:
        """Allow or refuse reads and writes by servers; return what had to be cut off, if anything.

        Allowing writes also reopens a partition whose writer has failed, and allowing reads one
        that was found damaged; only what was known to be durable is kept. Raises
        SegmentFailedError, CorruptionError.
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

        Appends that adjoin share one write, and all share one sync, which ends before this returns.
        Never raises for a disk's or a peer's fault.
        """
        return Drain(self, requests).run()

    def admit(self, request: StorageMessage) -> None:
        """Return once `request` may be answered and its session durably fences out all lower ones.

        An answer to a session must hold until a later session comes: even if the node ends right
        after the answer, no earlier session may change it. An offline request must be of the
        session that started here last, any other request of the highest session heard of. Raises
        NotFoundError, UnavailableError, FencedError, StorageError. Source: Waltz Storage,
        "Sessions"; the order of the checks is the original's.
        """
        info, fence = self._control_file.promises(self.partition_id)
        if not info.is_assigned:
            raise not_assigned(self.partition_id)
        offline = is_offline(request)
        check_access(info, request, offline=offline)
        session_id = request.session_id
        expected = info.session_id if offline else max(self.announced_session_id, fence)
        if session_id != expected:
            raise FencedError(
                f"ConcurrentUpdate: session ID of partition {self.partition_id} has changed to"
                f" {expected}, the request's is {session_id}"
            )
        self.check_healthy()
        if not offline and session_id > fence:
            self._write(self._control_file.raise_fence, self.partition_id, session_id)

    def check_assigned(self) -> None:
        """Raises NotFoundError: it is not assigned; CorruptionError."""
        if not self.info.is_assigned:
            raise not_assigned(self.partition_id)

    def check_healthy(self) -> None:
        """Raises StorageError: the reason for which the partition refuses all service."""
        if self.damage is not None:
            raise type(self.damage)(*self.damage.args)

    def check_writable(self) -> None:
        """Raises SegmentFailedError: a write has failed since the partition was opened."""
        if self._failure is not None:
            raise _closed(self._failure)

    def check_undamaged(self, session_id: SessionId = NO_SESSION) -> None:
        """Raises CorruptionError: there is damage besides that which session `session_id` accepted,
        so this replica cannot vouch for its records."""
        if left := left_of(self.damaged_ranges, self._accepted_by(session_id)):
            raise CorruptionError(
                f"partition {self.partition_id} does not vote, since it has damage that awaits"
                f" repair: {damage_text(left)}"
            )

    def accept_damage(self, session_id: SessionId, damage: Damage) -> None:
        """Let session `session_id` proceed with these damaged records, in addition to those that it
        accepted before. Kept in memory: the next session, and this node after a restart, must be
        told again.

        Raises CorruptionError: no good record follows one of the ranges here, so that nobody knows
        where the log ended; or with the earlier ones these are more ranges than a replica names.
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
                    " damaged: no good record follows on this replica, so that nobody knows"
                    " where the log ended"
                )
        self._accepted = session_id, accepted

    def _accepted_by(self, session_id: SessionId) -> Damage:
        accepted_by, damage = self._accepted
        return damage if session_id == accepted_by else ()

    def settle_space(self) -> None:
        """Note that all appends that found space are written, or never will be."""
        if self._space is not None:
            self._space.settle()

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, rolling over where a segment passes its threshold; `sync` makes it
        durable. Raises SegmentFailedError; UnavailableError: no space, and nothing was written."""
        if self._failure is not None:
            raise _closed(self._failure)
        if self._space is not None:
            self._space.check(len(batch.block))
        self._write(self._chain.write, batch)

    def sync(self) -> None:
        """Return once all that was written is durable. Raises SegmentFailedError."""
        if self._failure is not None:
            raise _closed(self._failure)
        self._write(self._chain.sync)

    def truncate(
        self, last_transaction_id: TransactionId, session_id: SessionId = NO_SESSION
    ) -> TransactionId:
        """Remove everything after `last_transaction_id` and return the last ID that is left.

        A replica that was written off is cut to a mark that may be below the one that a session,
        which never opened, has set here. The local mark is lowered first, durably, for the records
        that it covers must be here. Raises StorageError: there is no such ID, and nothing has
        changed; CorruptionError: an earlier record is damaged and session `session_id` has not
        accepted that; SegmentFailedError, OSError.
        """
        self.check_writable()
        if last_transaction_id < NOTHING:
            raise StorageError(
                f"partition {self.partition_id} cannot be truncated to {last_transaction_id};"
                f" expected {NOTHING} or more"
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
        `low_water_mark`, this replica's is the last record that it holds.

        There may be no damage besides that which the session accepted. Raises StorageError: the
        replica holds more than the mark, or the mark is below the last session's; CorruptionError;
        FencedError; SegmentFailedError.
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
        """Return records from `first_transaction_id` on, across segments, each one checked: at
        least one, at most `count_max`, and no more than `bytes_max` bytes unless the first is
        larger. The batch ends before the first damaged record; it is empty if the first record is
        not here.

        Raises CorruptionError: the first record is damaged; OSError.
        """
        return self._chain.read(first_transaction_id, count_max=count_max, bytes_max=bytes_max)

    def replica_state(self, request: ReplicaStateRequest) -> ReplicaStateResponse:
        """Answer the questions of a recovery; unlike a vote, damage does not prevent the answer.

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
        """The reason for which any append would be refused now; None: appends are taken."""
        try:
            self.check_healthy()
            if not self.info.is_writable:
                return "an administrator has closed it to writes"
            self.check_writable()
            if self._space is not None:
                self._space.check(0)
        except (StorageError, UnavailableError) as error:
            return str(error)
        return None

    def checksum(self, first: TransactionId, last: TransactionId) -> str:
        """Return the SHA-256, in hexadecimal digits, of the bytes of the records `first` to `last`:
        equal on replicas that hold the same records. Raises NotFoundError, CorruptionError,
        OSError."""
        return self._chain.checksum(first, last)

    def scrub(self, first: TransactionId, bytes_max: int) -> ScrubStep:
        """Read about `bytes_max` bytes of durable records again, from `first` on, and remember
        which are damaged. Raises StorageError: the partition is not open; OSError."""
        self.check_healthy()
        if not self._chain.is_open:
            raise not_assigned(self.partition_id)
        return self._chain.scrub(first, bytes_max)

    def repair(self, batch: RecordBatch) -> None:
        """Durably replace damaged records by `batch`, from the first record of a damaged range on.

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
