"""One store session: recover the replicas, then append to a majority of them until it ends.

Owns the session's recovery, its replica sessions and, once it is open, its appends. Must not know
where appends come from or what happens after the session: `session_keeper.py` packs batches, takes
commits, and opens the next session.

A replica that is lost never rejoins a session it took part in. The session goes on while a majority
of the assigned replicas is left, and ends itself when that cannot be any more. Source: Waltz
Internals, "Sessions".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, assert_never

from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.limits import CATCH_UP_RECORDS_MAX
from waltz.majority import majority
from waltz.record import RecordBatch
from waltz.store.catch_up import checked_copy
from waltz.store.events import Committed
from waltz.store.fences import Fences
from waltz.store.quorum_appends import QuorumAppends
from waltz.store.recovery import (
    AdmitReplicas,
    CopyRecords,
    EndRecovery,
    HighWaterMarkResolved,
    Recovery,
    RecoveryEffect,
    RecoveryEvent,
)
from waltz.store.repair_scope import scopes, silent
from waltz.store.repairer import (
    DamageAccepted,
    RepairEffect,
    Repairer,
    ReplicaDamage,
    ReplicaMended,
)
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    ConnectReplica,
    DropReplica,
    MetadataEvent,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
    ReadFromReplica,
    ReadMetadata,
    ReadToRepair,
    RepairerRequest,
    ReplicaConnected,
    ReplicaEvent,
    ReplicaLink,
    ReplicaLost,
    ReplicaSuspected,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    TruncateReplica,
    WriteMetadata,
)
from waltz.types import ReplicaId, SessionId, TransactionId

SessionEvent: TypeAlias = ReplicaEvent | MetadataEvent
SessionEffect: TypeAlias = (
    ConnectReplica
    | DropReplica
    | SendRequest
    | ReadMetadata
    | WriteMetadata
    | HighWaterMarkResolved
    | Committed
    | ReplicaDamage
)


class StoreSession:
    """A machine. Its first step, with no events, connects the replicas.

    metadata, version, assigned, guests: as for `Recovery`.
    """

    def __init__(
        self,
        metadata: PartitionMetadata,
        version: int,
        assigned: Sequence[ReplicaId],
        guests: Sequence[ReplicaId] = (),
    ) -> None:
        self.session_id: SessionId = metadata.session_id
        self.assigned = tuple(assigned)
        self.deadline: float | None = None
        self.appends: QuorumAppends | None = None
        """The appends of the session; None until a majority was admitted."""
        self.ended: str | None = None
        """Why the session cannot go on."""
        self.excluded: tuple[ReplicaId, ...] = ()
        """Replicas that can only come back by a new session."""
        self.returned: tuple[ReplicaId, ...] = ()
        """Those of the excluded that can be reached again."""
        self.outrun: SessionId | None = None
        """The session that replicas have promised; the next session must be above it."""
        self._fences = Fences(self.session_id)
        self._quorum = majority(len(self.assigned))
        self.would_gain_a_replica = False
        """Whether a replica that cannot take part in this session could in the next one."""
        self._is_quiet = False
        """Whether all has been looked at that anything but the answers to appends can change."""
        self._is_advanced = False
        """Whether more may be committed than was."""
        self._recovery = Recovery(metadata, version, assigned, guests)
        self._replicas = {
            replica_id: ReplicaSession(self.session_id, replica_id)
            for replica_id in (*assigned, *guests)
        }
        self._removed = tuple(each for each in guests if each in metadata.replica_states)
        self._last_states = metadata.replica_states
        self._repairer = Repairer()
        self._to_recovery: list[RecoveryEvent] = []
        self._effects: list[SessionEffect] = [each.connect() for each in self._replicas.values()]

    # What the keeper may ask

    @property
    def is_open(self) -> bool:
        """Whether it takes appends: it has recovered, and has not ended."""
        return self.appends is not None and self.ended is None

    @property
    def obstacle(self) -> str:
        """A sentence for people: what the session waits for before it opens, replica by replica."""
        states = [
            f"{replica.replica_id} {replica.absence or finding}"
            for replica, finding in self.replicas
        ]
        mark = self._recovery.high_water_mark
        if self._recovery.awaits_coordinator:
            wanted = "the coordinator to store who takes part"
        elif mark is None:
            wanted = "votes of a majority of the last session's replicas"
        else:
            wanted = f"a majority of {', '.join(self.assigned)} to hold everything up to {mark}"
        return f"session {self.session_id} waits for {wanted}: {'; '.join(states)}"

    @property
    def replicas(self) -> Sequence[tuple[ReplicaSession, str]]:
        """Every replica, with what is known of it for people: by recovery, or of its damage."""
        return [(each, self._finding(each)) for each in self._replicas.values()]

    def _finding(self, replica: ReplicaSession) -> str:
        damage = self._repairer.finding(replica.replica_id)
        if replica.phase is ReplicaPhase.LIVE or (
            damage and replica.phase is ReplicaPhase.ABSTAINING
        ):
            return damage or ""
        return self._recovery.finding(replica.replica_id)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing is under way: only a replica not connected yet could change anything."""
        if self._recovery.awaits_coordinator or self._repairer.is_repairing:
            return False
        return not any(
            replica.is_busy or replica.phase is ReplicaPhase.LIVE
            for replica in self._replicas.values()
        )

    def filled(self, wanted: Sequence[ReplicaId]) -> tuple[tuple[ReplicaId, ...], bool]:
        """Return those of `wanted` that hold the log, or lag a little, and whether another one is
        on its way there."""
        found = []
        is_filling = self._recovery.awaits_coordinator
        for replica_id in wanted:
            replica = self._replicas[replica_id]
            if replica.phase is ReplicaPhase.LIVE:
                assert self.appends is not None
                is_filled = replica.lacks + CATCH_UP_RECORDS_MAX > self.appends.next_transaction_id
            else:
                is_filled = self._recovery.is_filled(replica_id)
            if is_filled:
                found.append(replica_id)
            is_filling |= replica.is_busy and not is_filled
        return tuple(found), is_filling

    def holders(self, first: TransactionId) -> tuple[ReplicaLink, ...]:
        """The live replicas that hold the committed record `first`."""
        return tuple(
            replica.link
            for replica in self._replicas.values()
            if replica.phase is ReplicaPhase.LIVE
            and replica.acknowledged_through is not None
            and replica.acknowledged_through >= first
        )

    def check_invariants(self) -> None:
        self._recovery.check_invariants()
        self._repairer.check_invariants()
        for replica in self._replicas.values():
            replica.check_invariants()
            if replica.acknowledged_through is not None:
                assert replica.replica_id in self._recovery.admitted
        assert not self._is_quiet or self._repairer.is_idle
        assert (self.excluded, self.returned) == self._absent()
        if self.appends is not None:
            self.appends.check_invariants(self._replicas.values())

    # What the keeper may do

    def append(self, batch: RecordBatch) -> Sequence[SessionEffect]:
        """Take `batch` into flight, and send it to every replica that lacks nothing else."""
        assert self.appends is not None
        assert self.ended is None
        return self.appends.append(batch, self._replicas.values())

    def end(self, reason: str) -> list[SessionEffect]:
        """End the session for `reason`, unless it has ended, and let go of its replicas."""
        self.ended = self.ended or reason
        return [
            DropReplica(replica.link, self.ended)
            for replica in self._replicas.values()
            if replica.phase is not ReplicaPhase.RELEASED
        ]

    def step(self, events: Sequence[SessionEvent], now: float) -> Sequence[SessionEffect]:
        for event in events:
            # One at a time: recovery must not answer what a replica said before it was lost.
            self._take(event, now)
            if self._to_recovery:
                self._recover(now)
        appends = self.appends
        if appends is not None and self.ended is None:
            if self._is_advanced and appends.in_flight:
                self._effects += appends.commit(self._replicas.values())
            self._is_advanced = False
            if not appends.is_fed:
                self._effects += appends.feed(self._replicas.values())
        if not self._is_quiet:
            self._look_around(now)
        effects, self._effects = self._effects, []
        return effects

    # Events

    def _take(self, event: SessionEvent, now: float) -> None:
        match event:
            case RequestAnswered(link, AppendToReplica(batch)):
                replica = self._current(link)
                if replica is None:
                    return
                if replica.phase is ReplicaPhase.LIVE:
                    replica.appended(batch)
                    assert self.appends is not None
                    # What the slowest replica answers is committed as a rule.
                    self._is_advanced |= batch.last_transaction_id > self.appends.high_water_mark
                    return
                replica.answered(event.request)
                self._to_recovery.append(event)
            case MetadataRead() | MetadataReadFailed() | MetadataWritten() | MetadataWriteFailed():
                self._to_recovery.append(event)
            case _:
                if replica := self._current(event.link):
                    self._take_of(replica, event, now)
        self._is_quiet, self._is_advanced = False, True

    def _take_of(self, replica: ReplicaSession, event: ReplicaEvent, now: float) -> None:
        """Take what is not the answer to an append."""
        match event:
            case ReplicaConnected():
                replica.connected(event)
                if replica.phase is ReplicaPhase.RECOVERING:
                    self._to_recovery.append(event)
            case ReplicaLost(_, reason):
                self._lose(replica, reason)
            case ReplicaSuspected():
                self._repairer.take(event, now)
            case RequestAnswered() | RequestFailed() if (
                refusal := self._fences.take(event)
            ) is not None:
                is_begun = isinstance(event, RequestAnswered)
                if self.appends is not None and (
                    is_begun or self._fences.is_near(replica.replica_id)
                ):
                    # By a session of this number or a later one, of which the coordinator does not
                    # know: only a session that follows may have it.
                    replica.touch()
                self._lose(replica, refusal)
            case RequestAnswered() | RequestFailed() if isinstance(event.request, RepairerRequest):
                self._take_repair(replica, event, now)
            case RequestAnswered():
                replica.answered(event.request)
                self._take_answer(replica, event, now)
            case RequestFailed():
                self._take_failure(replica, event)
            case _:
                assert_never(event)

    def _current(self, link: ReplicaLink) -> ReplicaSession | None:
        replica = self._replicas.get(link.replica_id)
        if replica is None or replica.link != link or replica.phase is ReplicaPhase.RELEASED:
            return None
        return replica

    def _take_answer(self, replica: ReplicaSession, event: RequestAnswered, now: float) -> None:
        match event:
            case RequestAnswered(_, ReadFromReplica() as request, RecordBatch() as batch):
                self._take_read(replica, request, batch)
            case RequestAnswered(_, TruncateReplica()) if replica.phase is ReplicaPhase.ABSTAINING:
                self._repairer.take(event, now)
            case _:
                self._to_recovery.append(event)

    def _take_read(
        self, source: ReplicaSession, request: ReadFromReplica, batch: RecordBatch
    ) -> None:
        try:
            copy = checked_copy(batch, request.first, request.count_max)
        except (CorruptionError, RemoteProtocolError) as error:
            self._fail_read(source, request, str(error))
            return
        reader = self._reader(source, request)
        if reader is None:
            return
        reader.reads.succeed(copy)
        append = AppendToReplica(copy)
        if reader.phase is ReplicaPhase.LIVE:
            sent = reader.append(append)
            assert sent is not None, "the replica has read what it lacked, and has room"
            self._effects.append(sent)
        else:
            self._send(SendRequest(reader.link, append))

    def _take_failure(self, replica: ReplicaSession, event: RequestFailed) -> None:
        """A failed read says nothing about the replica; what else fails has an unknown outcome."""
        match event.request:
            case ReadFromReplica():
                self._fail_read(replica, event.request, event.reason)
            case AskSessionInfo() | AskMaxTransactionId() if replica.is_repairable:
                self._to_recovery.append(event)
                replica.abstain()
                self._repairer.take_in(replica.link, event.reason, is_tolerant=replica.is_tolerant)
            case request:
                self._lose(replica, f"{type(request).__name__} failed: {event.reason}")

    def _fail_read(self, source: ReplicaSession, request: ReadFromReplica, reason: str) -> None:
        if reader := self._reader(source, request):
            reader.reads.fail()
            if reader.phase is ReplicaPhase.RECOVERING:
                self._to_recovery.append(RequestFailed(source.link, request, reason))

    def _reader(self, source: ReplicaSession, request: ReadFromReplica) -> ReplicaSession | None:
        """Return the replica that waits for the answer; None if it has given the read up."""
        assert request.reader is not None, "a session reads only for its replicas"
        reader = self._current(request.reader)
        if reader is None or not reader.reads.is_under_way(source.replica_id, request):
            return None
        return reader

    def _stop_reading_from(self, source: ReplicaSession, reason: str) -> None:
        for reader in self._replicas.values():
            if reader.reads.source == source.replica_id and reader.reads.request is not None:
                self._fail_read(source, reader.reads.request, reason)

    def _lose(self, replica: ReplicaSession, reason: str) -> None:
        self._repairer.forget(replica.replica_id)
        self._stop_reading_from(replica, reason)
        if replica.phase is ReplicaPhase.RECOVERING or replica.phase is ReplicaPhase.LIVE:
            self._to_recovery.append(ReplicaLost(replica.link, reason))
        self._effects += replica.lose(reason)

    def _send(self, effect: SendRequest) -> None:
        self._replicas[effect.link.replica_id].asked(effect.request)
        self._effects.append(effect)

    # Recovery

    def _recover(self, now: float) -> None:
        while self._to_recovery and self.ended is None:
            events, self._to_recovery = self._to_recovery, []
            for effect in self._recovery.step(events, now):
                self._perform(effect)

    def _perform(self, effect: RecoveryEffect | RepairEffect) -> None:
        """Do what recovery or the repairer has decided."""
        match effect:
            case SendRequest():
                self._send(effect)
            case CopyRecords(replica_id, source_id, first, through):
                replica, source = self._replicas[replica_id], self._replicas[source_id]
                self._effects.append(replica.reads.ask(replica.link, source.link, first, through))
            case AdmitReplicas(replica_ids):
                self._admit(replica_ids)
            case DropReplica(link, reason):
                self._lose(self._replicas[link.replica_id], reason)
            case EndRecovery(reason):
                self.ended = reason
                if self._recovery.is_disproved:
                    self.outrun = SessionId(self.session_id + 1)
            case ReplicaMended(link) | DamageAccepted(link):
                if isinstance(effect, ReplicaMended):
                    self._repairer.forget(link.replica_id)
                self._replicas[link.replica_id].vote_again()
                self._to_recovery.append(ReplicaConnected(link))
            case ReadMetadata() | WriteMetadata() | HighWaterMarkResolved() | ReplicaDamage():
                self._effects.append(effect)
            case _:
                assert_never(effect)

    def _admit(self, replica_ids: Sequence[ReplicaId]) -> None:
        mark = self._recovery.high_water_mark
        assert mark is not None
        for replica_id in replica_ids:
            if self._replicas[replica_id].phase is ReplicaPhase.RECOVERING:
                self._replicas[replica_id].admit(mark)
                if self._replicas[replica_id].is_repairable:
                    self._repairer.watch(self._replicas[replica_id].link)
        if self.appends is None:
            self.appends = QuorumAppends(mark, self._quorum)
            self._release_removed()
        self.appends.is_fed = False

    def _release_removed(self) -> None:
        """The metadata no longer name those that were taken away: nothing depends on them."""
        for replica_id in self._removed:
            replica = self._replicas[replica_id]
            self._repairer.forget(replica_id)
            self._stop_reading_from(replica, "no longer assigned")
            self._effects.append(replica.release("no longer assigned"))

    # Repair

    def _take_repair(
        self, replica: ReplicaSession, event: RequestAnswered | RequestFailed, now: float
    ) -> None:
        has_failed = isinstance(event, RequestFailed) and isinstance(event.request, ReadToRepair)
        if has_failed and replica.is_repairable and replica.phase is ReplicaPhase.RECOVERING:
            self._repairer.watch(replica.link)  # it may have damage that nobody knew of
        if (repair := self._repairer.take(event, now)) is not None:
            if self._recovery.high_water_mark is None:
                # Should what is put back not become the log's, only a new session ends it.
                self._replicas[repair.link.replica_id].touch()
            self._effects.append(repair)

    def _repair(self, now: float) -> None:
        if self.ended is not None:
            return
        known = self._replicas.values(), self._last_states, self._recovery, self._repairer
        mark = None if self.appends is None else self.appends.high_water_mark
        found, unheard = scopes(*known, mark), silent(*known)
        for effect in self._repairer.step(found, now, is_open=self.is_open, silent=unheard):
            self._perform(effect)
        self._recover(now)
        if self.is_open:
            assert self.appends is not None
            self._effects += self.appends.commit(self._replicas.values())
            self._effects += self.appends.feed(self._replicas.values())

    # Who is left

    def _look_around(self, now: float) -> None:
        """See to damage, and to who is left."""
        if not self._repairer.is_idle:
            self._repair(now)
        self.excluded, self.returned = self._absent()
        self._check_majority()
        awaited, appends = self._recovery.awaited_mark, self.appends
        self.would_gain_a_replica = (
            awaited is not None and appends is not None and awaited <= appends.high_water_mark
        )
        self._is_quiet = self._repairer.is_idle and awaited is None

    def _check_majority(self) -> None:
        if self.ended is not None:
            return
        assigned = [self._replicas[replica_id] for replica_id in self.assigned]
        if self.appends is None:
            left = sum(not replica.is_excluded for replica in assigned)
        else:
            left = sum(replica.phase is ReplicaPhase.LIVE for replica in assigned)
        if left < self._quorum:
            self.ended = (
                f"{left} of {len(assigned)} replicas left, {self._quorum} needed; lost: "
                + ", ".join(self.excluded)
            )
        elif self.appends is None:
            self.outrun = self._fences.outrun(self._last_states or self.assigned)
            if self.outrun is not None:
                self.ended = f"most replicas have promised session {self.outrun} or a later one"

    def _absent(self) -> tuple[tuple[ReplicaId, ...], tuple[ReplicaId, ...]]:
        """Return who is excluded, and who of them can be reached again."""
        excluded = [replica for replica in self._replicas.values() if replica.is_excluded]
        returned = [replica for replica in excluded if replica.phase is ReplicaPhase.RETURNED]
        return (
            tuple(replica.replica_id for replica in excluded),
            tuple(replica.replica_id for replica in returned),
        )
