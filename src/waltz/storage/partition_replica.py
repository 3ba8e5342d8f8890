"""One partition's replica on this node: its session, its permissions, its answers.

Owns fencing, marks, assignment and availability; the segment chain owns the bytes on disk. Runs in
a worker thread, one call at a time; only `announce` may be called during a call. Knows nothing of
connections, nor of the order of requests (`drain.py`).

What holds always: the first failed write or sync ends the partition's writer until it is reopened;
what was durable before is still read.
Source: Waltz Storage, "Messages"; Waltz Internals, "Sessions".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ParamSpec
from uuid import UUID

from waltz.errors import (
    CorruptionError,
    FencedError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.host import Disk
from waltz.limits import DAMAGED_RANGES_MAX, SEGMENTS_OPEN_MAX
from waltz.record import RecordBatch
from waltz.storage.directory.control_file import ControlFile
from waltz.storage.directory.control_struct import ASSIGNED, FRESH, PartitionInfo
from waltz.storage.directory.partition_promises import not_assigned
from waltz.storage.directory.space import SpaceAccount, is_no_space
from waltz.storage.directory.trace_file import TRACE_FILE_NAME
from waltz.storage.journal.partition_journal import PartitionJournal
from waltz.storage.log.checked_records import ScrubStep
from waltz.storage.log.damage import Damage, damage_text, left_of, range_text
from waltz.storage.log.listing import holds_segments
from waltz.storage.log.segment import SegmentHome
from waltz.storage.log.segment_recovery import TornTail, Trust
from waltz.storage.log.segments import SegmentChain
from waltz.storage.permission import check_access, is_offline
from waltz.types import NO_SESSION, NOTHING, PartitionId, SessionId, TransactionId
from waltz.wire.journal_entries import (
    ClientNoted,
    LogCut,
    RecordsRepaired,
    SessionBegan,
    SessionFenced,
)
from waltz.wire.storage_protocol import (
    ClientNote,
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


def _closed(failure: SegmentFailedError) -> SegmentFailedError:
    return SegmentFailedError(f"the partition takes no writes after a failed one: {failure}")


class Writer:
    """Writes to a partition's log, until a write or a sync has failed."""

    def __init__(self, log: SegmentChain, space: SpaceAccount | None) -> None:
        """`space` refuses appends while the disk is short of room; None: appends are never refused
        for that reason."""
        self.failure: SegmentFailedError | None = None
        """The first failure since the partition was opened, which ends all writing."""
        self.space = space
        self._log = log

    @property
    def is_open(self) -> bool:
        """Whether the log is open and no write has failed since."""
        return self._log.is_open and self.failure is None

    def check(self) -> None:
        """Raises SegmentFailedError: a write has failed since the partition was opened."""
        if self.failure is not None:
            raise _closed(self.failure)

    def write(self, batch: RecordBatch) -> None:
        """Write `batch`, rolling over where a segment passes its threshold; `sync` makes it
        durable. Raises SegmentFailedError; UnavailableError: no space, and nothing was written."""
        if self.failure is not None:
            raise _closed(self.failure)
        if self.space is not None:
            self.space.check(len(batch.block))
        try:
            self._log.write(batch)
        except SegmentFailedError as error:
            self.failure = error
            raise

    def sync(self) -> None:
        """Return once all that was written is durable. Raises SegmentFailedError."""
        if self.failure is not None:
            raise _closed(self.failure)
        try:
            self._log.sync()
        except SegmentFailedError as error:
            self.failure = error
            raise

    def repair(self, batch: RecordBatch) -> None:
        """Durably replace damaged records by `batch`, from the first record of a damaged range on.

        Raises StorageError: it does not fit there, and nothing was written; SegmentFailedError;
        UnavailableError: no space.
        """
        self.check()
        self.carry_out(self._log.records.repair, batch)

    def carry_out(self, action: Callable[P, None], *arguments: P.args, **more: P.kwargs) -> None:
        """Call `action`, which ends the writer if it raises SegmentFailedError."""
        try:
            action(*arguments, **more)
        except SegmentFailedError as error:
            self.failure = error
            raise


class AcceptedDamage:
    """The damage with which a session proceeds, for no replica can provide these records.

    Kept in memory: the next session, and this node after a restart, must be told again.
    """

    def __init__(self, log: SegmentChain, partition_id: PartitionId) -> None:
        self._log = log
        self._partition_id = partition_id
        self._session_id = NO_SESSION
        self._damage: Damage = ()

    def by(self, session_id: SessionId) -> Damage:
        return self._damage if session_id == self._session_id else ()

    def add(self, session_id: SessionId, damage: Damage) -> None:
        """Let session `session_id` proceed with these damaged records, in addition to those that it
        accepted before.

        Raises CorruptionError: no good record follows one of the ranges here, so that nobody knows
        where the log ended; or with the earlier ones these are more ranges than a replica names.
        """
        accepted = tuple(dict.fromkeys([*self.by(session_id), *damage]))
        if len(accepted) > DAMAGED_RANGES_MAX:
            raise CorruptionError(
                f"{len(accepted)} damaged ranges of partition {self._partition_id} cannot be"
                f" accepted; at most {DAMAGED_RANGES_MAX} can"
            )
        for found in damage:
            if found.next_transaction_id >= self._log.next_transaction_id:
                raise CorruptionError(
                    f"{range_text(found)} of partition {self._partition_id} cannot be accepted as"
                    " damaged: no good record follows on this replica, so that nobody knows"
                    " where the log ended"
                )
        self._session_id, self._damage = session_id, accepted

    def check_rest(self, session_id: SessionId) -> None:
        """Raises CorruptionError: there is damage besides that which session `session_id` accepted,
        so this replica cannot vouch for its records."""
        if left := left_of(self._log.damage, self.by(session_id)):
            raise CorruptionError(
                f"partition {self._partition_id} does not vote, since it has damage that awaits"
                f" repair: {damage_text(left)}"
            )


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
        self.partition_id = partition_id
        self.counters = ReplicaCounters()
        self.damage: StorageError | None = None
        """Why the partition refuses all service; only unassigning it, reopening it or a restart
        ends that."""
        self.loss: str | None = None
        """The records that were lost; the replica does not vote until a session has filled it up
        and has started here. None: nothing is known to be lost."""
        self.announced_session_id = NO_SESSION
        """The highest session heard of; only `announce` changes it."""
        self.promises = control_file.promises(partition_id)
        self.directory_id = control_file.directory_id
        self._home = SegmentHome(disk, f"{directory}/{partition_id}", cluster_key, partition_id)
        self.log = SegmentChain(
            self._home,
            segment_bytes_threshold=segment_bytes_threshold,
            segments_open_max=segments_open_max,
            wall_milliseconds=wall_milliseconds,
            keep_trace=self.promises.keep_trace,
        )
        self.journal = PartitionJournal(
            self._home,
            control_file.directory_id,
            self.log,
            segment_bytes_threshold=segment_bytes_threshold,
            wall_milliseconds=wall_milliseconds,
        )
        self._wall_milliseconds = wall_milliseconds
        self.writer = Writer(self.log, space)
        self.accepted_damage = AcceptedDamage(self.log, partition_id)
        self._durable_next: TransactionId | None = None
        """After a failed reopening, one past the last record known to be durable before it."""

    # Opening and closing

    def open(self, *, ceiling: TransactionId | None = None) -> TornTail | None:
        """Open the partition if it is assigned, making the files that a fresh one lacks; return
        what recovery had to cut off.

        Damage is remembered, not raised: the partition then refuses service.
        """
        self.log.segments.close()
        self.damage = self.writer.failure = None
        try:
            info = self.promises.info
            if not info.is_assigned:
                return None
            torn = self._open_log(info, ceiling)
        except StorageError as error:
            self.damage = error
        except (OSError, UnavailableError) as error:
            self.damage = StorageError(f"{self._home.directory} cannot be opened: {error}")
            self.damage.__cause__ = error
        else:
            try:
                self._make_ours()
            except SegmentFailedError as error:
                self.writer.failure = error
            return torn
        return None

    def reopen(self) -> TornTail | None:
        """Open the files anew after a failure, keeping only what was known to be durable; return
        what had to be cut off. Raises StorageError: the reason for which the partition still
        refuses service, or writes."""
        if self.log.is_open:
            self._durable_next = self.log.next_transaction_id
        torn = self.open(ceiling=self._durable_next)
        self.check_healthy()
        self._durable_next = None
        self.writer.check()
        return torn

    def close(self) -> None:
        """Bring the index up to date and close all files. Raises SegmentFailedError."""
        self.log.close()

    def _open_log(self, info: PartitionInfo, ceiling: TransactionId | None) -> TornTail | None:
        """Open the segments. If records that they must hold are missing, and nothing tells how
        many, that is not a torn tail: a replica that acknowledged them must not vote as if it had
        not. The partition then durably promises no session, like a blank one, so that it is filled
        up before its vote counts."""
        self.journal.opened()
        is_proof, trace = self.promises.is_ours, None
        if is_traced := self.promises.is_traced:
            trace = self.promises.trace()
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
        return self.log.open(trust, lambda: self._doubt(doubted, lost))

    def _doubt(self, info: PartitionInfo, loss: str) -> None:
        """Note durably that the replica cannot vouch for its records. Raises CorruptionError: the
        note cannot be made durable."""
        self.loss = loss
        try:
            self.promises.doubt(info)
        except SegmentFailedError as error:
            raise CorruptionError(f"{loss}; {error}") from error

    def _make_ours(self) -> None:
        """Note durably that this release wrote the files. Raises SegmentFailedError."""
        self.log.trace()
        self.promises.make_ours()

    # The partition's state, for the node

    @property
    def is_closed_for_space(self) -> bool:
        """Whether a full disk has ended the writer, or all service: `reopen` may succeed later."""
        return is_no_space(self.writer.failure) or is_no_space(self.damage)

    def announce(self, session_id: SessionId) -> None:
        """Let session `session_id` fence out all lower ones: called when a request arrives, before
        the waiting requests are processed, and for all connections by the same thread."""
        self.announced_session_id = max(self.announced_session_id, session_id)

    @property
    def highest_session(self) -> SessionId:
        """The highest session heard of or promised, as far as that is known."""
        try:
            return max(self.announced_session_id, self.promises.fence)
        except CorruptionError:
            return self.announced_session_id

    def assign(self) -> TornTail | None:
        """Assign the partition to this node, if it is not assigned already; return what had to be
        cut off files that were left from an earlier assignment. Raises what `open` remembers."""
        info = self.promises.info
        if info.is_assigned and self.damage is None:
            return None
        torn = self._open_log(info, None)
        try:
            if not info.is_assigned:
                self.promises.update(info.with_flag(ASSIGNED, True))
            self._make_ours()
        except SegmentFailedError as error:
            if self.promises.info.is_assigned:
                self.writer.failure = error
            else:
                self.log.segments.close()
            raise
        self.damage = self.writer.failure = None
        return torn

    def unassign(self, *, delete_files: bool) -> None:
        """Forget all promises of the partition except its fence, and stop serving it.

        Raises NotFoundError: it is not assigned, and nothing was touched; SegmentFailedError;
        OSError.
        """
        with suppress(CorruptionError):
            self.promises.check_assigned()
        self.writer.carry_out(self.promises.reset)
        self.log.segments.close()
        self.journal.opened()
        self.damage = self.writer.failure = self.loss = None
        if delete_files:
            self.log.segments.remove_all()

    def set_access(self, *, readable: bool, writable: bool) -> TornTail | None:
        """Allow or refuse reads and writes by servers; return what had to be cut off, if anything.

        Allowing writes also reopens a partition whose writer has failed, and allowing reads one
        that was found damaged; only what was known to be durable is kept. Raises
        SegmentFailedError, CorruptionError.
        """
        self.promises.check_assigned()
        torn = None
        if (writable and not self.writer.is_open) or (readable and self.damage is not None):
            torn = self.reopen()
        info = self.promises.info
        wanted = info.with_access(readable=readable, writable=writable)
        if wanted != info:
            self.promises.update(wanted)
        return torn

    # Requests

    def admit(self, request: StorageMessage) -> None:
        """Return once `request` may be answered and its session durably fences out all lower ones.

        An answer to a session must hold until a later session comes: even if the node ends right
        after the answer, no earlier session may change it. An offline request must be of the
        session that started here last, any other request of the highest session heard of. Raises
        NotFoundError, UnavailableError, FencedError, StorageError. Source: Waltz Storage,
        "Sessions"; the order of the checks is the original's.
        """
        info, fence = self.promises.info_and_fence()
        offline = is_offline(request)
        if offline or not info.is_serving:
            if not info.is_assigned:
                raise not_assigned(self.partition_id)
            check_access(info, request, offline=offline)
        session_id = request.session_id
        expected = info.session_id if offline else max(self.announced_session_id, fence)
        if session_id != expected:
            raise FencedError(
                f"ConcurrentUpdate: session ID of partition {self.partition_id} has changed to"
                f" {expected}, the request's is {session_id}"
            )
        if self.damage is not None:
            self.check_healthy()
        if not offline and session_id > fence:
            self.writer.carry_out(self.promises.raise_fence, session_id)
            self.journal.note(SessionFenced(session_id, self._wall_milliseconds()))

    def check_healthy(self) -> None:
        """Raises StorageError: the reason for which the partition refuses all service."""
        if self.damage is not None:
            raise type(self.damage)(*self.damage.args)

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
        self.writer.check()
        if last_transaction_id < NOTHING:
            raise StorageError(
                f"partition {self.partition_id} cannot be truncated to {last_transaction_id};"
                f" expected {NOTHING} or more"
            )
        accepted = self.accepted_damage.by(session_id)
        self.log.check_cut(last_transaction_id, accepted)
        if last_transaction_id >= self.log.next_transaction_id - 1:
            return TransactionId(self.log.next_transaction_id - 1)
        info = self.promises.info
        if last_transaction_id < info.local_low_water_mark:
            lowered = replace(info, local_low_water_mark=last_transaction_id)
            self.writer.carry_out(self.promises.update, lowered)
        began = self._wall_milliseconds()
        self.writer.carry_out(self.log.truncate, last_transaction_id, accepted)
        self.journal.note(LogCut(last_transaction_id, began))
        return last_transaction_id

    def set_low_water_mark(self, session_id: SessionId, low_water_mark: TransactionId) -> None:
        """Start session `session_id` here, durably: the cluster's high-water mark is
        `low_water_mark`, this replica's is the last record that it holds.

        There may be no damage besides that which the session accepted. Raises StorageError: the
        replica holds more than the mark, or the mark is below the last session's; CorruptionError;
        FencedError; SegmentFailedError.
        """
        self.writer.check()
        self.accepted_damage.check_rest(session_id)
        info = self.promises.info
        held = TransactionId(self.log.next_transaction_id - 1)
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
        self.writer.carry_out(self.log.write_index)
        self.writer.carry_out(self.promises.update, started)
        self.loss = None
        self.journal.note(SessionBegan(session_id, low_water_mark, self._wall_milliseconds()))

    def repair(self, batch: RecordBatch) -> None:
        """Durably replace damaged records by `batch`. Raises as `Writer.repair`."""
        self.writer.repair(batch)
        if len(batch):
            last = TransactionId(batch.next_transaction_id - 1)
            now = self._wall_milliseconds()
            self.journal.note(RecordsRepaired(batch.first_transaction_id, last, now))

    def note_clients(self, session_id: SessionId, clients: Sequence[ClientNote]) -> None:
        """Note that these clients have mounted the partition, as the server of a session tells."""
        now = self._wall_milliseconds()
        notes = [ClientNoted(client.client_id, now, *client[1:]) for client in clients]
        self.journal.note_clients(session_id, notes, now)

    def scrub(self, first: TransactionId, bytes_max: int) -> ScrubStep:
        """Read about `bytes_max` bytes of durable records again, from `first` on, and remember
        which are damaged. Raises StorageError: the partition is not open; OSError."""
        self.check_healthy()
        if not self.log.is_open:
            raise not_assigned(self.partition_id)
        return self.log.records.scrub(first, bytes_max)
