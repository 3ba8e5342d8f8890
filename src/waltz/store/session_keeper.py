"""One store session after another: the partition's log as something that goes on.

Owns the appends that wait, those whose fate the last session left open, and when a session ends and
the next one starts. Must not know replicas: that is the session's business.

What was sent to replicas when a session ended is decided by the mark of the next one: recovery has
made everything up to it common to a majority, and cut or written off everything above. What was not
sent waits for the new session. Outcomes come in the order of the appends.

Both hold because no other server had a session in between: a keeper has one generation for life,
and gives up for good once it finds a later one in the metadata. What is undecided then stays so:
others may have written since its locks were checked, and IDs no longer tell whose a record is.

New sessions are rate-limited: the first follows at once, further ones after delays that double.
An open session is ended only when the metadata for the next one have been read: while the
coordinator cannot be reached it goes on.
A replica that was lost leads to a new session once it can be reached again, for it cannot take part
in this one any more; until then those that are left go on. One that never connected leads to none.
A change of the assignment does; `membership.py` says who takes part then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias, assert_never

import numpy as np

from waltz.cluster.partition_metadata import PartitionMetadata, next_session
from waltz.errors import FencedError
from waltz.limits import (
    BATCH_BYTES_MAX,
    CHECKPOINT_TRANSACTIONS,
    METADATA_RETRY_SECONDS_MAX,
    METADATA_RETRY_SECONDS_MIN,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
)
from waltz.majority import majority
from waltz.record import (
    NewRecord,
    NewRecords,
    RecordBatch,
    join_new_records,
    new_records,
    pack_records,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreEvent, StoreOpened
from waltz.store.membership import SessionMembers, choose_members
from waltz.store.requests import (
    MetadataEvent,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
    ReadMetadata,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    ReplicaSuspected,
    RequestAnswered,
    RequestFailed,
    WriteMetadata,
)
from waltz.store.standing import ReplicaWords, StoreReport, store_report
from waltz.store.store_session import SessionEffect, SessionEvent, StoreSession
from waltz.types import NO_SESSION, Generation, ReplicaId, SessionId, TransactionId

BATCH_RECORDS_MAX: Final = 4_000
"""Records of one append to the replicas (storage.maxBatchSize; the original: 100)."""

MEMBER_CHANGE_SECONDS_MAX: Final = 10.0
"""Time for a session with other replicas to open; then the last session's replicas resume."""

MEMBER_CHANGE_PAUSE_SECONDS: Final = 60.0
"""Between a change of replicas that did not succeed and the next attempt."""

MEMBER_FILL_SECONDS_MAX: Final = 2.0
"""New replicas that were filled up in about so short a time have little to copy when they take
over, for appends wait meanwhile; otherwise they are filled up once more."""


@dataclass(slots=True)
class AppendsSubmitted:
    records: Sequence[NewRecord]


@dataclass(frozen=True, slots=True)
class ReplicasAssigned:
    """The replica assignment was read, again or for the first time."""

    assigned: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class CloseRequested: ...


KeeperEvent: TypeAlias = SessionEvent | AppendsSubmitted | ReplicasAssigned | CloseRequested


@dataclass(frozen=True, slots=True)
class LoseOwnership:
    """A later generation owns the partition: no session, no outcome, nothing more but the close."""

    reason: str


KeeperEffect: TypeAlias = SessionEffect | StoreEvent | LoseOwnership


class _Coordination(Enum):
    """The question to the coordinator that is under way; one at a time."""

    NOTHING = "nothing"
    AHEAD = "read, to end the session that runs and open the next one"
    READ = "read, to open a session"
    BUMP = "write, to open a session"
    SESSION = "read or write, for the session that runs, or ran when it was asked"


class ChangeStep(Enum):
    """A change of replicas demands the end of the session; the value is the reason."""

    GIVE_UP = "no session with the new replicas has opened"
    TAKE_OVER = "new replicas hold the log"


class MemberChange:
    """The replicas of the session that runs, and how far a change of replicas has come.

    New ones are filled next to those that serve until a round took little time, then take over.
    The first round waits for all that can be reached, the others a moment for the slow ones.
    When that does not succeed soon, those of before go on: they lack nothing.
    """

    def __init__(self) -> None:
        self.members = SessionMembers((), (), (), is_change=False)
        self.filled: tuple[ReplicaId, ...] | None = None
        """The new replicas that hold the log, for the choice of the next session's members."""
        self.wake_at: float | None = None
        """The time at which the change may go on."""
        self._not_before = 0.0

    @property
    def is_taking_over(self) -> bool:
        """Whether the change is done once this session is open."""
        return self.members.is_change and self.members.is_complete

    def consider(self, session: StoreSession, started_at: float, now: float) -> ChangeStep | None:
        """Go on with the change, or give it up for a while. The session has started at
        `started_at`."""
        self.wake_at = None
        if self.is_taking_over:
            if session.is_open:
                self.filled = None
                self.members = self.members.settled()
            elif now >= started_at + MEMBER_CHANGE_SECONDS_MAX:
                return ChangeStep.GIVE_UP
            return None
        if not session.is_open:
            return None
        assigned = self.members.assigned
        filled, is_filling = session.filled(assigned)
        if len(filled) < majority(len(assigned)):
            return None
        wait_until = self._not_before
        if is_filling:
            if self.filled is None:
                return None
            wait_until = max(wait_until, started_at + MEMBER_FILL_SECONDS_MAX)
        if now < wait_until:
            self.wake_at = wait_until
            return None
        self._not_before = 0.0
        is_short = now <= started_at + 2 * MEMBER_FILL_SECONDS_MAX
        self.filled = filled if is_short else ()
        return ChangeStep.TAKE_OVER

    def session_ended(
        self, wanted: tuple[ReplicaId, ...] | None, now: float, *, was_open: bool
    ) -> None:
        """Note the end of a session: should it have changed the replicas and did not, those of
        before go on, unless others are wanted by now."""
        if wanted is not None and wanted != self.members.assigned:
            self.filled, self._not_before = None, 0.0
        elif self.is_taking_over and not was_open:
            self.filled, self._not_before = (), now + MEMBER_CHANGE_PAUSE_SECONDS
        self.wake_at = None


class SessionPace:
    """The pauses between sessions, and between attempts to read or write the metadata."""

    def __init__(self) -> None:
        self.started_at = 0.0
        self.next_start_at = 0.0
        self._lost_at: float | None = None
        """The time at which the session that runs came to lack a replica."""
        self._delay_seconds = 0.0
        self._metadata_retry_seconds = METADATA_RETRY_SECONDS_MIN

    def lost(self, now: float) -> None:
        """Note that the session lacks a replica, if it did not before."""
        if self._lost_at is None:
            self._lost_at = now

    def longer_delay(self, now: float) -> float:
        """Return the least time from this session's start to the next one's, if it fails now."""
        if now - self.started_at >= RETRY_SECONDS_MAX:
            return RETRY_SECONDS_MIN
        return min(max(2 * self._delay_seconds, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)

    def session_ended(self, now: float, *, is_planned: bool) -> None:
        lost_at, self._lost_at = self._lost_at, None
        if is_planned:
            self.next_start_at = now
        else:
            # A session that was short of a replica has not lasted, however late it is replaced.
            self._delay_seconds = self.longer_delay(now if lost_at is None else lost_at)
            self.next_start_at = self.started_at + self._delay_seconds

    def metadata_read(self) -> None:
        self._metadata_retry_seconds = METADATA_RETRY_SECONDS_MIN

    def next_metadata_delay(self) -> float:
        delay = self._metadata_retry_seconds
        self._metadata_retry_seconds = min(2 * delay, METADATA_RETRY_SECONDS_MAX)
        return delay


class SessionKeeper:
    """A machine. Its first step, with no events, starts the first session."""

    def __init__(
        self, generation: Generation, *, checkpoint_transactions: int = CHECKPOINT_TRANSACTIONS
    ) -> None:
        self.closed = False
        self._checkpoint_transactions = checkpoint_transactions
        self._generation = generation
        self._session: StoreSession | None = None
        self._announced = False
        self.assigned: tuple[ReplicaId, ...] | None = None
        """The replicas that the coordinator has assigned; None: not read yet."""
        self._queue: deque[NewRecords] = deque()
        self._unsettled: deque[RecordBatch] = deque()
        self._coordination = _Coordination.NOTHING
        self._proposed: tuple[PartitionMetadata, SessionMembers] | None = None
        self._change = MemberChange()
        self._fenced = False
        self._outrun: SessionId | None = None
        """The session that replicas have promised, and the coordinator may not know."""
        self._renewal: str | None = None
        self._renew_at = 0.0
        self._is_urgent = False
        self._ahead: MetadataRead | None = None
        """Metadata for the next session; while there is any, this session takes no more appends."""
        self._held: ReadMetadata | WriteMetadata | None = None
        self._pace = SessionPace()
        self._inbox: list[SessionEvent] = []
        self._effects: list[KeeperEffect] = []

    @property
    def deadline(self) -> float | None:
        session = self._session
        if session is None or (self._renewal is None and not self._change.members.is_change):
            return None
        if self._ahead is not None:
            return None
        deadlines = []
        if self._renewal is not None:
            may_ask = session.is_open and self._coordination is _Coordination.NOTHING
            if may_ask or session.is_waiting:
                deadlines.append(self._renew_at)
        if self._change.wake_at is not None:
            deadlines.append(self._change.wake_at)
        if self._change.is_taking_over and not session.is_open:
            deadlines.append(self._pace.started_at + MEMBER_CHANGE_SECONDS_MAX)
        return min(deadlines, default=None)

    @property
    def obstacle(self) -> str | None:
        """Why no appends are taken, for people; None while they are, or never will be again."""
        if self.closed or self._fenced or self._announced:
            return None
        if self._session is None:
            return "a new session waits for the coordinator, or for a replica to be assigned"
        return self._session.obstacle

    def report(
        self, words: ReplicaWords, now: float, *, not_before: float, opened_at: float
    ) -> StoreReport:
        """Return what is known of the store; `words` older than `not_before` are not believed."""
        session = self._session
        may_open = not (self.closed or self._fenced)
        return store_report(
            () if session is None else session.replicas,
            words,
            session_id=NO_SESSION if session is None else session.session_id,
            mark=self.high_water_mark,
            obstacle=self.obstacle if may_open else "the partition is another server's, or closed",
            members=() if session is None else session.assigned,
            now=now,
            not_before=not_before,
            opened_at=opened_at,
        )

    @property
    def high_water_mark(self) -> TransactionId | None:
        """The last commit; None while no session is open to appends."""
        appends = None if self._session is None else self._session.appends
        return None if appends is None else appends.high_water_mark

    def holders(self, first: TransactionId) -> tuple[ReplicaLink, ...]:
        """The replicas that can be asked for the committed record `first`."""
        return () if self._session is None else self._session.holders(first)

    def check_invariants(self) -> None:
        if self._session is not None:
            self._session.check_invariants()
            assert self._session.ended is None
            appends = self._session.appends
            assert not (appends is not None and appends.in_flight and self._unsettled)
        assert self._held is None or self._coordination is _Coordination.AHEAD
        assert self._announced == (self._session is not None and self._session.is_open)
        if self._fenced:
            assert self._session is None
            assert self._coordination is _Coordination.NOTHING
            assert not self._queue
            assert not self._unsettled

    def step(self, events: Sequence[KeeperEvent], now: float) -> Sequence[KeeperEffect]:
        for event in events:
            if self.closed:
                break
            match event:
                case (
                    RequestAnswered()
                    | RequestFailed()
                    | ReplicaConnected()
                    | ReplicaLost()
                    | ReplicaSuspected()
                ):
                    self._inbox.append(event)
                case AppendsSubmitted(records):
                    if not self._fenced and records:
                        self._queue.append(new_records(records))
                case (
                    MetadataRead()
                    | MetadataReadFailed()
                    | MetadataWritten()
                    | MetadataWriteFailed()
                ):
                    self._take_metadata(event, now)
                case ReplicasAssigned(assigned):
                    self.assigned = assigned
                    self._check_assignment(now)
                case CloseRequested():
                    self._run_session(now)
                    self._close_session("the partition was closed", now)
                    self.closed = True
                case _:
                    assert_never(event)
        if not self.closed:
            self._run_session(now)
            self._consider_change(now)
            if self._renewal is not None:
                self._consider_renewal(self._renewal, now)
            if self._session is None:
                self._start_if_idle(now)
        effects, self._effects = self._effects, []
        return effects

    # Events

    def _check_assignment(self, now: float, *, at_once: bool = True) -> None:
        is_other = self._session is not None and self.assigned != self._change.members.assigned
        if self.assigned is not None and is_other:
            self._renew("the replica assignment changed", now, at_once=at_once)

    def _take_metadata(self, event: MetadataEvent, now: float) -> None:
        asked, self._coordination = self._coordination, _Coordination.NOTHING
        if asked is _Coordination.SESSION:
            self._inbox.append(event)
            return
        if asked is _Coordination.AHEAD:
            # Begin to end the session, unless it has ended or wants to write the metadata first.
            if self._held is not None:
                self._effects.append(self._held)
                self._held, self._coordination = None, _Coordination.SESSION
            elif isinstance(event, MetadataRead):
                self._pace.metadata_read()
                self._ahead = event
            else:
                self._renew_at = now + self._pace.next_metadata_delay()
            return
        match event:
            case MetadataRead(metadata, version, assigned):
                assert asked is _Coordination.READ
                self._pace.metadata_read()
                self._open_session(metadata, version, assigned)
            case MetadataWritten(version):
                assert asked is _Coordination.BUMP
                assert self._proposed is not None
                (metadata, members), self._proposed = self._proposed, None
                self._pace.started_at = now
                self._outrun = None
                self._change.members = members
                self._session = StoreSession(metadata, version, members.members, members.guests)
                # The assignment may have changed since it was read for this session; or what was
                # seen of it is the older one, and will be followed by the newer.
                self._check_assignment(now, at_once=False)
            case MetadataReadFailed() | MetadataWriteFailed():
                self._read_metadata(self._pace.next_metadata_delay())
            case _:
                assert_never(event)

    # Opening

    def _start_if_idle(self, now: float) -> None:
        if self._fenced or self._coordination is not _Coordination.NOTHING:
            return
        ahead, self._ahead = self._ahead, None
        if ahead is not None and now >= self._pace.next_start_at:
            self._open_session(ahead.metadata, ahead.version, ahead.assigned)
        else:
            self._read_metadata(max(0.0, self._pace.next_start_at - now))

    def _read_metadata(self, delay_seconds: float) -> None:
        self._coordination = _Coordination.READ
        self._effects.append(ReadMetadata(delay_seconds))

    def _open_session(
        self, metadata: PartitionMetadata, version: int, assigned: tuple[ReplicaId, ...]
    ) -> None:
        if not assigned:
            self._read_metadata(METADATA_RETRY_SECONDS_MAX)
            return
        try:
            bumped = next_session(metadata, self._generation, self._outrun)
        except FencedError as error:
            self._fenced = True
            self._queue.clear()
            self._unsettled.clear()
            self._effects.append(LoseOwnership(str(error)))
            return
        members = choose_members(metadata.replica_states, assigned, self._change.filled)
        self._proposed = (bumped, members)
        self._coordination = _Coordination.BUMP
        self._effects.append(WriteMetadata(bumped, version))

    # Running

    def _run_session(self, now: float) -> None:
        """Step the session with what has come for it, and again for what was packed then."""
        events, self._inbox = self._inbox, []
        session = self._session
        if session is None:
            return
        for effect in session.step(events, now):
            match effect:
                case ReadMetadata() | WriteMetadata():
                    self._coordinate(effect)
                case _:
                    self._effects.append(effect)
        appends = session.appends
        if appends is not None and session.ended is None:
            if not self._announced:
                self._settle(session.session_id, appends.low_water_mark)
            if self._ahead is None:
                # All that waits is one batch, as far as there is room.
                while self._queue and appends.has_room:
                    batch = pack_records(appends.next_transaction_id, next_batch(self._queue))
                    self._effects += session.append(batch)
        if session.ended is not None:
            self._close_session(session.ended, now)
            return
        if session.excluded:
            self._pace.lost(now)
        if session.returned:
            self._renew(f"{', '.join(session.returned)} can be reached again", now, at_once=False)
        elif appends is not None and (
            appends.next_transaction_id - 1 - appends.low_water_mark
            >= self._checkpoint_transactions
        ):
            self._renew("checkpoint interval", now)
        elif session.would_gain_a_replica:
            self._renew("a replica can take part again", now, at_once=False)

    def _coordinate(self, effect: ReadMetadata | WriteMetadata) -> None:
        """Ask the coordinator for the session, unless it was asked something else just now."""
        self._ahead = None
        if self._coordination is _Coordination.AHEAD:
            assert self._held is None
            self._held = effect
            return
        assert self._coordination is _Coordination.NOTHING
        self._coordination = _Coordination.SESSION
        self._effects.append(effect)

    def _consider_change(self, now: float) -> None:
        if self._session is None or not self._change.members.is_change:
            return
        match self._change.consider(self._session, self._pace.started_at, now):
            case ChangeStep.GIVE_UP as step:
                self._close_session(step.value, now)
            case ChangeStep.TAKE_OVER as step:
                self._renew(step.value, now)

    # What the last session left open

    def _settle(self, session_id: SessionId, mark: TransactionId) -> None:
        """Decide what was left open by the mark that the session starts from, then announce it."""
        while self._unsettled:
            batch = self._unsettled.popleft()
            written = batch.slice(batch.first_transaction_id, mark - batch.first_transaction_id + 1)
            if len(written):
                self._effects.append(Committed(written))
            if len(written) < len(batch):
                self._effects.append(AppendsFailed(len(batch) - len(written)))
        self._announced = True
        self._effects.append(StoreOpened(session_id, mark))

    # Ending

    def _renew(self, reason: str, now: float, *, at_once: bool = True) -> None:
        """Plan to end the session, at once or when the rate of sessions allows it."""
        if self._session is None or self._is_urgent:
            return
        if at_once:
            self._renewal, self._renew_at, self._is_urgent = reason, now, True
        elif self._renewal is None:
            self._renewal = reason
            self._pace.lost(now)
            self._renew_at = max(now, self._pace.started_at + self._pace.longer_delay(now))

    def _consider_renewal(self, reason: str, now: float) -> None:
        """End the session if that is due. An open one, once the metadata is read, takes no more
        appends, and ends when none is in flight; one that is opening is given up if that is
        urgent, or when only the missing replica could help it."""
        session = self._session
        if session is None:
            return
        if now < self._renew_at and self._ahead is None:
            return
        if session.is_open and self._ahead is None:
            if self._coordination is _Coordination.NOTHING:
                self._coordination = _Coordination.AHEAD
                self._effects.append(ReadMetadata(0.0))
            return
        appends = session.appends
        is_over = session.is_waiting if appends is None else not appends.in_flight
        if is_over or (self._is_urgent and appends is None):
            is_planned = self._is_urgent and not session.excluded
            self._close_session(reason, now, is_planned=is_planned)

    def _close_session(self, reason: str, now: float, *, is_planned: bool = False) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        self._effects += session.end(reason)
        self._outrun = session.outrun
        self._change.session_ended(self.assigned, now, was_open=self._announced)
        if session.appends is not None:
            assert not (session.appends.in_flight and self._unsettled)
            self._unsettled.extend(session.appends.in_flight)
        self._renewal = self._held = None
        self._is_urgent = False
        self._pace.session_ended(now, is_planned=is_planned)
        if self._announced:
            self._announced = False
            self._effects.append(StoreClosed(reason))


def next_batch(queue: deque[NewRecords]) -> NewRecords:
    """Take the next records out of the queue: at most what a batch holds, at least one."""
    parts: list[NewRecords] = []
    count = size = 0
    while queue and count < BATCH_RECORDS_MAX:
        part = queue[0]
        part_count, part_size = len(part.data), part.byte_count
        if count + part_count <= BATCH_RECORDS_MAX and size + part_size <= BATCH_BYTES_MAX:
            parts.append(queue.popleft())
            count += part_count
            size += part_size
            continue
        part = part[: BATCH_RECORDS_MAX - count]
        ends = np.cumsum(part.sizes())
        fits = int(np.searchsorted(ends, BATCH_BYTES_MAX - size, side="right"))
        if not fits and count:
            break
        fits = max(fits, 1)
        if fits == len(queue[0]):
            queue.popleft()
        else:
            queue[0] = queue[0][fits:]
        parts.append(part[:fits])
        count += fits
        size += int(ends[fits - 1])
        if fits < len(part):
            break
    return join_new_records(parts)
