"""Rules of the protocol, each broken on purpose, as data: what the check must find.

A mutation switches something in the model's replicas or changes one decision of the product, in a
scope in which that does harm. A check that finds nothing wrong with the product is
worth what it finds here. `LIMITS` are faults that the design does not claim to survive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from proofs.model.cases import HARM, KEPT, Case
from proofs.model.replica import ReplicaRules
from proofs.model.scope import LOST_HELPER_INVARIANTS, Scope
from proofs.patches import Patch
from waltz.cluster import partition_metadata
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.store import quorum_appends, recovery, session_keeper
from waltz.store.events import AppendsFailed
from waltz.store.judgement import RecoveryStanding
from waltz.store.recovery import Recovery
from waltz.store.replica_session import ReplicaSession
from waltz.store.requests import MetadataRead
from waltz.store.session_keeper import SessionKeeper
from waltz.types import Generation, SessionId, TransactionId

# What replaces the product's decisions


def _judged(change: Callable[..., Any]) -> tuple[Patch, ...]:
    """`change` gets a standing, the cut, and the replica's state, and returns the first two."""

    def replaced(judge: Callable[..., Any]) -> Callable[..., Any]:
        def judged(replica_id: Any, states: Any, info: Any) -> Any:
            standing, cut_to = judge(replica_id, states, info)
            return change(standing, cut_to, states.get(replica_id))

        return judged

    return (Patch(recovery, "judge", replaced),)


def _voting(voter: RecoveryStanding) -> tuple[Patch, ...]:
    def change(standing: RecoveryStanding, cut_to: Any, _: Any) -> Any:
        return (RecoveryStanding.CANDIDATE, None) if standing is voter else (standing, cut_to)

    return _judged(change)


def _cutting_closed(mark: Callable[[Any], TransactionId]) -> tuple[Patch, ...]:
    def change(standing: RecoveryStanding, cut_to: Any, state: Any) -> Any:
        return standing, mark(state) if standing is RecoveryStanding.CLOSED else cut_to

    return _judged(change)


def _admitting() -> tuple[Patch, ...]:
    """Replicas are admitted while the metadata that name them are being written."""

    def change(propose: Callable[[Any], None]) -> Callable[[Any], None]:
        def proposed(self: Any) -> None:
            was_busy = self.awaits_coordinator
            propose(self)
            if self.awaits_coordinator and not was_busy:
                self._admit()

        return proposed

    return (Patch(Recovery, "_propose", change),)


def _asking_those_assigned(initialize: Callable[..., None]) -> Callable[..., None]:
    def initialized(
        self: Any, metadata: PartitionMetadata, version: int, assigned: Any, guests: Any
    ) -> None:
        initialize(self, metadata, version, assigned, guests)
        self._first_states = {
            replica_id: state
            for replica_id, state in metadata.replica_states.items()
            if replica_id in assigned
        }

    return initialized


def _forgetting_absent(resolve: Callable[..., Any]) -> Callable[..., Any]:
    return lambda holdings, _, **rest: resolve(holdings, 0, **rest)


def _on_any_disk(_: Any) -> Callable[..., bool]:
    def may_set(self: Any, replica: Any, mark: TransactionId) -> bool:
        is_set = replica.low_water_mark_set or replica.low_water_mark > mark
        return not is_set and replica.holding == mark

    return may_set


def _ignoring_strangers(take: Callable[..., None]) -> Callable[..., None]:
    def taken(self: Any, event: Any) -> None:
        if isinstance(event, MetadataRead):
            own = replace(event.metadata, session_id=self._metadata.session_id)
            event = replace(event, metadata=own)
        take(self, event)

    return taken


def _never_excluding(lose: Callable[..., Any]) -> Callable[..., Any]:
    def lost(self: Any, reason: str) -> Any:
        self._changed = False
        self.acknowledged_through = None
        return lose(self, reason)

    return lost


def _failing_at_once(close: Callable[..., None]) -> Callable[..., None]:
    def closed(self: Any, reason: str, now: float, **more: Any) -> None:
        close(self, reason, now, **more)
        count = sum(len(batch) for batch in self._unsettled)
        self._unsettled.clear()
        if count:
            self._effects.append(AppendsFailed(count))

    return closed


def _of_any_generation(_: Any) -> Callable[..., PartitionMetadata]:
    def bumped(
        metadata: PartitionMetadata, generation: Generation, _beyond: SessionId | None = None
    ) -> PartitionMetadata:
        session_id = SessionId(metadata.session_id + 1)
        return replace(metadata, generation=generation, session_id=session_id)

    return bumped


def _without_floor(resolve: Callable[..., Any]) -> Callable[..., Any]:
    """The smallest vote is the only floor."""

    def resolved(self: Any) -> Any:
        replicas = [*self._replicas.values()]
        infos = [replica.info for replica in replicas]
        for replica in replicas:
            replica.info = None
        resolve(self)
        for replica, info in zip(replicas, infos, strict=True):
            replica.info = info

    return resolved


SMALL: Final = Scope(starts_with=3, sessions=2, transaction_ids=2, appends=1, cuts=0)

MUTATIONS: Final = (
    Case(
        "being asked for session and last ID does not fence",
        SMALL,
        ReplicaRules(fences_when_asked=False),
        invariants=HARM,
    ),
    Case(
        "a disk replaced by an empty one votes",
        replace(SMALL, servers=1, blanks=1),
        patches=_voting(RecoveryStanding.INCONSISTENT),
        invariants=HARM,
    ),
    Case(
        "a truncation removes one record more",
        replace(SMALL, appends=2),
        ReplicaRules(truncates_further=1),
        invariants=HARM,
    ),
    Case(
        "a session takes appends before its metadata are written",
        replace(SMALL, starts_with=0),
        patches=_admitting(),
        invariants=HARM,
    ),
    Case(
        "a majority of the assigned replicas decides, not of the last session's",
        replace(SMALL, servers=1, spares=1, replacements=1),
        patches=(Patch(Recovery, "__init__", _asking_those_assigned),),
        invariants=HARM,
    ),
    Case(
        "one replica of three is enough to commit",
        SMALL,
        patches=(Patch(quorum_appends, "commit_mark", lambda _: lambda marks, _: max(marks)),),
        invariants=HARM,
    ),
    Case(
        "an append is answered before it is synced",
        replace(SMALL, servers=1, crashes=1),
        ReplicaRules(syncs_before_answer=False),
        invariants=HARM,
    ),
    Case(
        "replicas that do not answer are taken for empty",
        SMALL,
        patches=(Patch(recovery, "resolve_high_water_mark", _forgetting_absent),),
        invariants=HARM,
    ),
    Case(
        "replicas that lost their disk are taken for empty",
        replace(SMALL, servers=1, blanks=1),
        patches=(Patch(recovery, "_is_doubtful", lambda _: lambda _: False),),
        invariants=HARM,
    ),
    Case(
        "a closed replica votes",
        replace(SMALL, starts_with=2, servers=1, sessions=3, cuts=2),
        patches=_voting(RecoveryStanding.CLOSED),
        invariants=HARM,
    ),
    Case(
        "a closed replica is not cut",
        replace(SMALL, starts_with=2, servers=1, sessions=3, cuts=2),
        patches=_cutting_closed(lambda _: TransactionId(2**62)),
        invariants=HARM,
    ),
    Case(
        "a closed replica is cut below a mark that is on its disk",
        replace(SMALL, starts_with=2, sessions=3, cuts=1),
        patches=_cutting_closed(lambda state: state.closing_high_water_mark),
    ),
    Case(
        "the mark is put on a voter's disk before a majority is sure to keep it",
        replace(SMALL, starts_with=2, sessions=3, cuts=1),
        patches=(Patch(Recovery, "_may_set_low_water_mark", _on_any_disk),),
    ),
    Case(
        "a new replica votes",
        replace(SMALL, servers=1, spares=1, replacements=1),
        patches=_voting(RecoveryStanding.NEW),
        invariants=HARM,
    ),
    Case(
        "a lost replica comes back into the same session",
        replace(SMALL, cuts=1, appends=2, transaction_ids=3),
        patches=(Patch(ReplicaSession, "lose", _never_excluding),),
        invariants=HARM,
    ),
    Case(
        "undecided appends are told to have failed when their session ends",
        replace(SMALL, servers=1, cuts=2),
        patches=(Patch(SessionKeeper, "_close_session", _failing_at_once),),
        invariants=HARM,
    ),
    Case(
        "a server opens sessions after a later owner has",
        replace(SMALL, starts_with=2, sessions=3, transaction_ids=1, appends=2),
        patches=tuple(
            Patch(owner, "next_session", _of_any_generation)
            for owner in (partition_metadata, session_keeper)
        ),
        invariants=HARM,
    ),
    Case(
        "a session goes on when the metadata name a later one",
        replace(SMALL, starts_with=2),
        patches=(Patch(Recovery, "_take_metadata", _ignoring_strangers),),
    ),
    Case(
        "a crash makes a replica forget which session it has answered",
        replace(SMALL, starts_with=2, sessions=3, cuts=1, crashes=1),
        ReplicaRules(fence_survives_crash=False),
    ),
    Case(
        "a replica that has joined since the metadata were copied is cut",
        Scope(starts_with=2, sessions=5, transaction_ids=2, appends=1, cuts=0, set_backs=1),
        patches=(Patch(recovery, "has_joined_since", lambda _: lambda *_: False),),
        invariants=HARM,
    ),
    Case(
        "a session that the metadata does not know proves nothing",
        Scope(starts_with=2, sessions=3, transaction_ids=1, appends=1, cuts=1, set_backs=1),
        patches=(Patch(recovery, "proves_set_back", lambda _: lambda *_: False),),
        invariants=KEPT,
    ),
    Case(
        "recovery settles for less than a voter's own mark",
        replace(SMALL, starts_with=2, servers=1, sessions=3, transaction_ids=1, cuts=2, blanks=1),
        patches=(Patch(Recovery, "_resolve", _without_floor),),
        invariants=LOST_HELPER_INVARIANTS,
    ),
)

LIMITS: Final = (
    Case(
        "a disk goes back to a copy made in the same session, another replica is away",
        replace(SMALL, servers=1, rollbacks=1, rolls_back_within_session=True),
        invariants=HARM,
    ),
    Case(
        "the metadata goes back into the opening of a session in which nothing was written",
        Scope(starts_with=2, sessions=3, transaction_ids=1, appends=1, cuts=1, set_backs=1),
        invariants=("I5",),
    ),
)
