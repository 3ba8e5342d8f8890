"""The recovery procedure: from what each replica holds to one high-water mark they all share.

Owns what each replica reported, the resolved mark, and the partition's metadata while the session
lasts, for replicas that join late recover the same way. Must not know connections or records: it
asks by replica and is told what is where.

What holds always. Only a replica that is as the last session left it votes; one that lost a part of
its log counts as if it were absent, beyond what it has been given back. The mark is resolved once.
A replica is admitted to the session only after the metadata says that it takes part, because the
next recovery believes the metadata: a replica written off there is cut to the mark written with it.
Source: Waltz Server, "Recovery Procedure".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, assert_never

from waltz.cluster.partition_metadata import (
    PartitionMetadata,
    ReplicaState,
    is_set_back,
    last_session,
    may_climb,
)
from waltz.limits import METADATA_RETRY_SECONDS_MAX, METADATA_RETRY_SECONDS_MIN
from waltz.majority import majority
from waltz.store.judgement import RecoveryStanding, has_joined_since, judge, proves_set_back
from waltz.store.quorum import last_opened, resolve_high_water_mark
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    DropReplica,
    MetadataEvent,
    MetadataRead,
    MetadataReadFailed,
    MetadataWriteFailed,
    MetadataWritten,
    ReadFromReplica,
    ReadMetadata,
    ReplicaConnected,
    ReplicaLink,
    ReplicaLost,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    SetLowWaterMark,
    TruncateReplica,
    WriteMetadata,
)
from waltz.types import NO_SESSION, NOTHING, ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo

RecoveryEvent: TypeAlias = (
    ReplicaConnected | ReplicaLost | RequestAnswered | RequestFailed | MetadataEvent
)


@dataclass(frozen=True, slots=True)
class CopyRecords:
    """Read one bounded batch from `source` and append it to the replica, once.

    Recovery is told of the answer to the append, or of the failure of the read.
    """

    replica_id: ReplicaId
    source: ReplicaId
    first: TransactionId
    through: TransactionId


@dataclass(frozen=True, slots=True)
class HighWaterMarkResolved:
    high_water_mark: TransactionId


@dataclass(frozen=True, slots=True)
class AdmitReplicas:
    """The metadata says that these replicas take part: they may be sent appends. The first time
    they are a majority of the assigned replicas, or more: the session is open."""

    replica_ids: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class EndRecovery:
    """Another session has taken over."""

    reason: str


RecoveryEffect: TypeAlias = (
    SendRequest
    | CopyRecords
    | DropReplica
    | HighWaterMarkResolved
    | AdmitReplicas
    | EndRecovery
    | ReadMetadata
    | WriteMetadata
)


def recovered_metadata(
    metadata: PartitionMetadata,
    assigned: Sequence[ReplicaId],
    recovered: Collection[ReplicaId],
    high_water_mark: TransactionId,
    opened: SessionId | None = None,
) -> PartitionMetadata:
    """Return `metadata` with the states that hold once `recovered` take part in its session.

    The others are closed at `high_water_mark`: they must be cut to it before they count again.
    Replicas no longer assigned are dropped. `opened` is the last session by the replicas' own word
    where the states are not to be believed: none but its replicas may keep what they hold.
    Source: Waltz Server, "Recovery Procedure", step 6.
    """
    states: dict[ReplicaId, ReplicaState] = {}
    for replica_id in assigned:
        state = metadata.replica_states.get(replica_id)
        if replica_id in recovered:
            state = ReplicaState(metadata.session_id, None)
        elif opened is not None:
            state = ReplicaState(opened, high_water_mark)
        elif state is None:
            state = ReplicaState(NO_SESSION, high_water_mark)
        elif state.session_id < metadata.session_id and state.closing_high_water_mark is None:
            state = ReplicaState(state.session_id, high_water_mark)
        states[replica_id] = state
    return replace(metadata, replica_states=states)


@dataclass(slots=True)
class _Replica:
    """`holding` None: not known yet, the replica is absent as far as counting goes."""

    replica_id: ReplicaId
    state: ReplicaState | None
    link: ReplicaLink | None = None
    """None: it cannot be asked."""
    standing: RecoveryStanding | None = None
    info: SessionInfo | None = None
    """Its last word."""
    cut_to: TransactionId | None = None
    """The last record that its standing lets it keep."""
    last: TransactionId | None = None
    """The last record it holds, while its standing is not known or it is not to be counted."""
    holding: TransactionId | None = None
    vote: TransactionId | None = None
    busy: bool = False
    low_water_mark_set: bool = False
    recovered: bool = False

    def forget(self) -> None:
        self.link = self.standing = self.holding = self.vote = self.last = self.cut_to = None
        self.busy = self.low_water_mark_set = self.recovered = False

    def ask(
        self, request: AskSessionInfo | AskMaxTransactionId | TruncateReplica | SetLowWaterMark
    ) -> SendRequest:
        assert self.link is not None
        self.busy = True
        return SendRequest(self.link, request)

    def refuse(self, found: str) -> DropReplica:
        """Leave alone what is on the replica, of a partition that the metadata has never seen."""
        assert self.link is not None
        link = self.link
        self.forget()
        return DropReplica(
            link,
            f"it has {found}, but the metadata has never seen this partition: either the"
            " coordinator's data or this node's directory belongs elsewhere",
        )

    @property
    def low_water_mark(self) -> TransactionId:
        return NOTHING if self.info is None else self.info.low_water_mark

    @property
    def session_id(self) -> SessionId:
        """The session that began there last, by its own word."""
        return NO_SESSION if self.info is None else self.info.session_id

    @property
    def may_hold_more(self) -> bool:
        """Whether its word is missing or worthless.

        That of a closed replica counts as well: it holds nothing that the last session wrote, but
        may have made a majority for a mark in a recovery that went no further.
        """
        if self.standing is RecoveryStanding.STALE:
            return False
        return self.holding is None or self.standing is RecoveryStanding.BEHIND


class Recovery:
    """A machine: what replicas report in, what to ask of them out.

    It is told of present links only. A replica that abstains is lost to it when its word is
    refused, and is connected again when it votes.

    metadata  as written to open this session: its session ID, with the states of the last one.
    version   of the metadata node.
    assigned  the replicas of this session, in a fixed order.
    guests    others to recover with (`membership.py`): the metadata will not name them.
    """

    def __init__(
        self,
        metadata: PartitionMetadata,
        version: int,
        assigned: Sequence[ReplicaId],
        guests: Sequence[ReplicaId] = (),
    ) -> None:
        assert assigned
        self.high_water_mark: TransactionId | None = None
        self.closed = False
        self.deadline: float | None = None
        self._first_states = metadata.replica_states
        self.is_set_back = is_set_back(metadata)
        """Whether the replicas' own word counts, and not what the metadata says of them."""
        self.is_disproved = False
        """Whether a replica has proved that the metadata is older than its last session. Recovery
        has ended then; the next session's number has to tell every server."""
        self._opened: SessionId | None = None
        """The last session that was open, by the replicas' word."""
        self._metadata = metadata
        self._version = version
        self._assigned = tuple(assigned)
        self._replicas = {
            replica_id: _Replica(replica_id, metadata.replica_states.get(replica_id))
            for replica_id in (*assigned, *guests)
        }
        self.admitted: tuple[ReplicaId, ...] = ()
        """The replicas that the metadata names as taking part, whether still there or not."""
        self._proposed: tuple[ReplicaId, ...] = ()
        self._proposed_metadata: PartitionMetadata | None = None
        self.awaits_coordinator = False
        """Whether the metadata is being written, or read after a failure."""
        self._metadata_retry_seconds = METADATA_RETRY_SECONDS_MIN
        self._failed_reads: dict[tuple[ReplicaId, ReplicaId], int] = {}
        self._effects: list[RecoveryEffect] = []

    @property
    def awaited_mark(self) -> TransactionId | None:
        """The commit from which on a new session helps a replica that cannot take part in this one.

        A recovery that went no further may have given a replica a low-water mark that is higher
        than what was decided since without it. A storage node never lowers its low-water mark.
        """
        mark = self.high_water_mark
        if mark is None:
            return None
        awaited = [
            replica.low_water_mark
            for replica in self._replicas.values()
            if replica.low_water_mark > mark and replica.holding is not None
        ]
        return min(awaited, default=None)

    def finding(self, replica_id: ReplicaId) -> str:
        """Return a sentence for people about a replica."""
        replica = self._replicas[replica_id]
        if replica.standing is None:
            return "has not said yet what it holds"
        if replica.vote is not None:
            return f"votes, with transactions up to {replica.vote}"
        return f"does not vote ({replica.standing.value})"

    def is_filled(self, replica_id: ReplicaId) -> bool:
        """Whether it holds everything up to this session's mark, and will keep it."""
        return self._replicas[replica_id].recovered

    @property
    def holdings(self) -> Mapping[ReplicaId, TransactionId]:
        """The last record of each replica that has said it, voter or not, up to the mark once that
        is known; `NOTHING` for a replica that lost a part of its log."""
        mark = self.high_water_mark
        return {
            replica.replica_id: NOTHING
            if replica.standing is RecoveryStanding.BEHIND
            else min(replica.holding, replica.holding if mark is None else mark)
            for replica in self._replicas.values()
            if replica.holding is not None
        }

    def step(self, events: Sequence[RecoveryEvent], now: float) -> Sequence[RecoveryEffect]:
        for event in events:
            if not self.closed:
                self._take(event)
        if not self.closed:
            if self.is_set_back:
                self._believe_replicas()
            self._resolve()
            for replica in self._replicas.values():
                self._advance(replica)
            self._propose()
        effects, self._effects = self._effects, []
        return effects

    def check_invariants(self) -> None:
        mark = self.high_water_mark
        for replica in self._replicas.values():
            assert replica.vote is None or replica.standing is RecoveryStanding.CANDIDATE
            assert replica.vote is None or not self._first_states or replica.state is not None
            assert not replica.recovered or replica.holding == mark
            assert not replica.low_water_mark_set or mark is not None
        assert not self.admitted or mark is not None
        assert not self.admitted or len(self.admitted) >= majority(len(self._assigned))

    # Events

    def _take(self, event: RecoveryEvent) -> None:
        match event:
            case ReplicaConnected(link):
                replica = self._replicas[link.replica_id]
                assert not replica.busy
                replica.link = link
                self._effects.append(replica.ask(AskSessionInfo()))
            case RequestAnswered():
                self._take_answer(event)
            case RequestFailed(source, ReadFromReplica(reader=ReplicaLink() as reader)):
                self._replicas[reader.replica_id].busy = False
                key = (reader.replica_id, source.replica_id)
                self._failed_reads[key] = self._failed_reads.get(key, 0) + 1
            case ReplicaLost(link) | RequestFailed(link):
                self._replicas[link.replica_id].forget()
            case MetadataWritten() | MetadataWriteFailed() | MetadataRead() | MetadataReadFailed():
                self._take_metadata(event)
            case _:
                assert_never(event)

    def _take_answer(self, event: RequestAnswered) -> None:
        replica = self._replicas[event.link.replica_id]
        replica.busy = False
        match event.request, event.answer:
            case AskSessionInfo(), SessionInfo() as info:
                replica.info = info
                self._take_info(replica, info)
            case AskMaxTransactionId(), int(last):
                self._take_last(replica, TransactionId(last))
            case TruncateReplica(), int(last):
                replica.holding = TransactionId(last)
            case SetLowWaterMark(), None:
                replica.low_water_mark_set = True
            case AppendToReplica(batch), None:
                replica.holding = batch.last_transaction_id
            case _:
                raise AssertionError(f"no answer to a recovery: {event}")

    def _take_info(self, replica: _Replica, info: SessionInfo) -> None:
        if self.is_set_back:
            self._effects.append(replica.ask(AskMaxTransactionId()))
            return
        states = self._first_states
        replica.standing, replica.cut_to = judge(replica.replica_id, states, info)
        if replica.standing is RecoveryStanding.UNKNOWN:
            self._effects.append(replica.refuse(f"low-water mark {info.low_water_mark}"))
        elif replica.cut_to is None or info.session_id >= last_session(states):
            self._effects.append(replica.ask(AskMaxTransactionId()))
        else:
            self._effects.append(replica.ask(TruncateReplica(replica.cut_to)))

    def _take_last(self, replica: _Replica, last: TransactionId) -> None:
        assert replica.info is not None
        if self.is_set_back:
            replica.last = last
        elif self.high_water_mark is None and _disproves(
            self._metadata, replica.replica_id, replica.info, last
        ):
            self.is_disproved = self.closed = True
            self._effects.append(
                EndRecovery(
                    f"{replica.replica_id} was in session {replica.info.session_id}, which the"
                    " metadata does not know: the coordinator was set back"
                )
            )
        elif has_joined_since(self._first_states, replica.replica_id, replica.info, last):
            replica.standing, replica.cut_to = RecoveryStanding.CANDIDATE, None
            self._take_candidate(replica, last)
        elif replica.cut_to is not None:
            self._effects.append(replica.ask(TruncateReplica(replica.cut_to)))
        else:
            self._take_candidate(replica, last)

    def _take_candidate(self, replica: _Replica, last: TransactionId) -> None:
        if not self._first_states and last > NOTHING:
            replica.standing = RecoveryStanding.UNKNOWN
            self._effects.append(replica.refuse(f"records up to {last}"))
            return
        replica.holding = last
        if last < replica.low_water_mark:
            replica.standing = RecoveryStanding.BEHIND
        else:
            replica.vote = last

    def _take_metadata(self, event: MetadataEvent) -> None:
        match event:
            case MetadataWritten(version):
                assert self._proposed_metadata is not None
                self.awaits_coordinator = False
                self._metadata, self._version = self._proposed_metadata, version
                self._metadata_retry_seconds = METADATA_RETRY_SECONDS_MIN
                self._admit()
            case MetadataWriteFailed() | MetadataReadFailed():
                # What failed may have been done all the same: look before writing again.
                self._effects.append(ReadMetadata(self._metadata_retry_seconds))
                self._metadata_retry_seconds = min(
                    2 * self._metadata_retry_seconds, METADATA_RETRY_SECONDS_MAX
                )
            case MetadataRead(metadata, version):
                self.awaits_coordinator = False
                if metadata.session_id != self._metadata.session_id:
                    self.closed = True
                    self._effects.append(
                        EndRecovery(
                            f"session {self._metadata.session_id} was replaced by session"
                            f" {metadata.session_id} of generation {metadata.generation}"
                        )
                    )
                self._metadata, self._version = metadata, version
            case _:
                assert_never(event)

    # Decisions

    def _believe_replicas(self) -> None:
        """Judge by the sessions that began on the replicas, for the metadata is older.

        Those on which the last session, or a later one that never opened, has begun are as that one
        left them. Any other may hold what nobody else has: it counts for nothing, and is cut to its
        own low-water mark, but not before a majority is sure to keep the log.
        """
        if self._opened is None:
            known = [
                replica.session_id
                for replica_id in self._first_states
                if (replica := self._replicas.get(replica_id)) is not None
                and replica.last is not None
                and replica.session_id != NO_SESSION
            ]
            count = len(self._first_states)
            self._opened = last_opened(known, count - len(known), majority(count))
        if self._opened is None:
            return
        for replica in self._replicas.values():
            if replica.last is None or replica.standing is not None:
                continue
            if replica.session_id == NO_SESSION:
                replica.standing = RecoveryStanding.INCONSISTENT
            elif replica.session_id >= self._opened and replica.state is not None:
                replica.standing = RecoveryStanding.CANDIDATE
                self._take_candidate(replica, replica.last)
            else:
                replica.standing = RecoveryStanding.STALE

    def _resolve(self) -> None:
        if self.high_water_mark is not None:
            return
        if not self._first_states:
            self.high_water_mark = NOTHING
        else:
            last = [
                self._replicas.get(replica_id, _Replica(replica_id, state))
                for replica_id, state in self._first_states.items()
            ]
            present = [replica for replica in last if replica.holding is not None]
            votes = [replica.vote for replica in present if replica.vote is not None]
            # A voter's own low-water mark was the mark of a majority once. One of that majority may
            # have lost its disk since, and the voter never lowers its mark (decision 0032).
            floor = max(
                (replica.low_water_mark for replica in present if replica.vote is not None),
                default=NOTHING,
            )
            self.high_water_mark = resolve_high_water_mark(
                [_held(replica) for replica in present if _is_trusted(replica)],
                sum(replica.may_hold_more for replica in last),
                replica_count=len(last),
                vote_min=max(min(votes), floor) if votes else None,
                doubtful=[_held(replica) for replica in present if _is_doubtful(replica)],
            )
        if self.high_water_mark is not None:
            self._effects.append(HighWaterMarkResolved(self.high_water_mark))

    def _advance(self, replica: _Replica) -> None:
        mark = self.high_water_mark
        if replica.busy or replica.recovered:
            return
        if replica.holding is None:
            if replica.last is not None and replica.standing is not None and self.admitted:
                self._effects.append(replica.ask(TruncateReplica(replica.low_water_mark)))
            return
        if mark is None:
            # One that lost a part of its log is not filled up before the mark is known: should
            # this recovery fail, the next one could no longer tell it from a sound one.
            if replica.standing is not RecoveryStanding.BEHIND:
                self._copy(replica)
        elif replica.holding > mark:
            self._effects.append(replica.ask(TruncateReplica(mark)))
        elif self._may_set_low_water_mark(replica, mark):
            self._effects.append(replica.ask(SetLowWaterMark(mark)))
        elif replica.holding < mark:
            self._copy(replica)
        else:
            replica.recovered = replica.low_water_mark_set

    def _may_set_low_water_mark(self, replica: _Replica, mark: TransactionId) -> bool:
        """Whether `mark` may be made durable there.

        Should this recovery fail, the next one must not settle for less than a mark that is on a
        disk, for a storage node never lowers its own. Voters keep what they hold; the copies that
        others have made are cut again unless their low-water mark says that they count. So those
        go first, and the rest once a majority is sure to keep what is up to the mark.
        """
        if replica.low_water_mark_set or replica.low_water_mark > mark:
            return False
        if self.admitted and replica.standing is RecoveryStanding.NEW:
            return True  # early: should it be lost while it catches up, it keeps what it has
        if replica.holding != mark:
            return False
        if replica.standing in (
            RecoveryStanding.CLOSED,
            RecoveryStanding.INCONSISTENT,
            RecoveryStanding.STALE,
        ):
            return True
        keepers = [
            other
            for other in self._replicas.values()
            if other.state is not None
            and other.holding is not None
            and other.holding >= mark
            and (other.vote is not None or other.low_water_mark_set)
        ]
        is_kept = len(keepers) >= majority(len(self._first_states))
        return is_kept or len(self.admitted) > 0 or not self._first_states

    def _copy(self, replica: _Replica) -> None:
        """Fill `replica` from the nearest above it; once the mark is known, from the fullest."""
        mark = self.high_water_mark
        sources = [
            source
            for source in self._replicas.values()
            if _held(source) > _held(replica)
            and (mark is not None or source.replica_id in self._first_states)
            and source.standing is not RecoveryStanding.BEHIND
        ]
        if not sources:
            return
        source = min(
            sources,
            key=lambda source: (
                self._failed_reads.get((replica.replica_id, source.replica_id), 0),
                _held(source) if mark is None else -_held(source),
            ),
        )
        through = _held(source) if mark is None else min(mark, _held(source))
        replica.busy = True
        self._effects.append(
            CopyRecords(
                replica.replica_id,
                source.replica_id,
                TransactionId(_held(replica) + 1),
                through,
            )
        )

    def _propose(self) -> None:
        recovered = [replica.replica_id for replica in self._replicas.values() if replica.recovered]
        takes_part = tuple(
            replica_id
            for replica_id in self._assigned
            if replica_id in recovered or replica_id in self.admitted
        )
        if self.awaits_coordinator or takes_part == self.admitted:
            return
        if not self.admitted and len(takes_part) < majority(len(self._assigned)):
            return
        assert self.high_water_mark is not None
        metadata = recovered_metadata(
            self._metadata, self._assigned, takes_part, self.high_water_mark, self._opened
        )
        self._proposed, self._proposed_metadata = takes_part, metadata
        if metadata == self._metadata:
            self._admit()
        else:
            self.awaits_coordinator = True
            self._effects.append(WriteMetadata(metadata, self._version))

    def _admit(self) -> None:
        joined = tuple(
            replica_id for replica_id in self._proposed if replica_id not in self.admitted
        )
        if not self.admitted:
            for replica in self._replicas.values():
                if replica.state is not None and replica.replica_id not in self._assigned:
                    replica.forget()  # taken away, and no longer connected
        self.admitted = self._proposed
        self._effects.append(AdmitReplicas(joined))


def _disproves(
    metadata: PartitionMetadata, replica_id: ReplicaId, info: SessionInfo, last: TransactionId
) -> bool:
    """Return whether the session of `metadata` must not open. Once the mark is resolved it may: a
    majority has answered by then, and one of it would have proved the same if anything that was
    written in the unknown session had been acknowledged."""
    return may_climb(SessionId(metadata.session_id + 1)) and proves_set_back(
        metadata, replica_id, info, last
    )


def _held(replica: _Replica) -> TransactionId:
    return NOTHING if replica.holding is None else replica.holding


def _is_doubtful(replica: _Replica) -> bool:
    return (
        replica.standing is RecoveryStanding.INCONSISTENT
        and replica.state is not None
        and replica.state.closing_high_water_mark is None
    )


def _is_trusted(replica: _Replica) -> bool:
    return replica.standing is not RecoveryStanding.BEHIND and not _is_doubtful(replica)
