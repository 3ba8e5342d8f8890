"""Repair: what replicas have damaged, whom to read it from, and what to put back.

Owns what is known of each replica's damage and the one repair under way on it. Must not know
connections, votes or commits: `repair_scope.py` says which records of which replica are the log's.
Nothing is put back but what another replica holds and what checks out; what nobody can supply stays
as it is and is told.

A replica is asked again and again, and at once when a read failed there. Repair is slow on purpose:
one bounded batch at a time per replica, with pauses, for appends share its disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.limits import (
    REPAIR_BYTES_MAX,
    REPAIR_LOOK_SECONDS,
    REPAIR_LOOK_SECONDS_MIN,
    REPAIR_PAUSE_SECONDS,
)
from waltz.record import RecordBatch
from waltz.store.catch_up import CopySize, checked_copy, choose_source
from waltz.store.requests import (
    AskCondition,
    Condition,
    ReadToRepair,
    RepairRecords,
    ReplicaLink,
    RequestAnswered,
    RequestFailed,
    SendRequest,
)
from waltz.types import ReplicaId, TransactionId
from waltz.wire.storage_protocol import DamagedRange

Damage: TypeAlias = tuple[DamagedRange, ...]


class Scope(NamedTuple):
    """What of a replica is the log's, as far as that is known now."""

    link: ReplicaLink
    supplies_through: TransactionId
    """What can be read there for others; NOTHING: nothing."""
    kept_through: TransactionId
    """What is to be repaired if it is damaged."""
    is_cut: bool
    """Whether what it holds beyond `kept_through` is to be removed, damaged or not."""


@dataclass(frozen=True, slots=True)
class ReplicaDamage:
    """What is known of a replica's damage, told whenever that changes. `unsupplied` is the part of
    `damaged` that no other replica can give now. `repaired_count` records were put back so far."""

    link: ReplicaLink
    damaged: Damage
    unsupplied: Damage
    repaired_count: int


@dataclass(frozen=True, slots=True)
class CutReplica:
    """Remove everything after `through`, for all damage that is left lies there."""

    replica_id: ReplicaId
    through: TransactionId


@dataclass(frozen=True, slots=True)
class ReplicaMended:
    """A replica that abstained has no damage any more."""

    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class GiveUpReplica:
    """A replica that abstained does not say why, or cannot be asked."""

    replica_id: ReplicaId
    reason: str


RepairEffect: TypeAlias = SendRequest | ReplicaDamage | CutReplica | ReplicaMended | GiveUpReplica


@dataclass(slots=True)
class _Patient:
    link: ReplicaLink
    reason: str | None
    """Why it abstains; None: it does not."""
    questions: int = 0
    awaits_answer: bool = False
    is_delayed: bool = False
    """Whether the newest question is only sent later."""
    asked_at: float = 0.0
    condition: Condition | None = None
    damaged: Damage = ()
    """Of the last answer, less what was put back since."""
    must_look: bool = True
    was_damaged: bool = False
    request: ReadToRepair | RepairRecords | CutReplica | None = None
    """What is under way on it, or for it."""
    source: ReplicaId | None = None
    size: CopySize = field(default_factory=lambda: CopySize(REPAIR_BYTES_MAX))
    failures: dict[ReplicaId, int] = field(default_factory=dict)
    failed: set[tuple[TransactionId, ReplicaId]] = field(default_factory=set)
    """Who could not supply which record since the last answer."""
    refused: set[TransactionId] = field(default_factory=set)
    """What the replica did not let be repaired since the last answer."""
    repaired_count: int = 0
    given_up: str | None = None
    """Why nothing more can be learned of it."""
    reported: ReplicaDamage | None = None


class Repairer:
    def __init__(self) -> None:
        self._patients: dict[ReplicaId, _Patient] = {}
        self._is_open = False

    @property
    def is_idle(self) -> bool:
        """Whether a step can do nothing: no damage is known, and nobody is to be asked."""
        for patient in self._patients.values():
            if patient.must_look or patient.damaged or not patient.awaits_answer:
                return False
            if patient.reason is not None:
                return False
        return True

    @property
    def is_repairing(self) -> bool:
        """Whether an answer is on its way that may change what a replica holds."""
        return any(
            patient.request is not None or (patient.awaits_answer and not patient.is_delayed)
            for patient in self._patients.values()
        )

    @property
    def known(self) -> tuple[ReplicaDamage, ...]:
        """The damage that is known now, one entry per damaged replica."""
        reports = (patient.reported for patient in self._patients.values())
        return tuple(report for report in reports if report is not None and report.damaged)

    def condition(self, replica_id: ReplicaId) -> Condition | None:
        """What the replica has answered last."""
        patient = self._patients.get(replica_id)
        return None if patient is None else patient.condition

    def check_invariants(self) -> None:
        for patient in self._patients.values():
            assert (patient.source is not None) == isinstance(patient.request, ReadToRepair)
            assert patient.condition is not None or patient.request is None
            assert list(patient.damaged) == sorted(patient.damaged)

    # What the session tells

    def watch(self, link: ReplicaLink) -> None:
        """Ask now and then what a replica that takes part has damaged."""
        self._patients[link.replica_id] = _Patient(link, None, must_look=False)

    def take_in(self, link: ReplicaLink, reason: str) -> None:
        """Ask a replica that does not vote what it has damaged, and repair it."""
        self._patients[link.replica_id] = _Patient(link, reason)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica is lost; or it has joined, or left, those that abstain."""
        self._patients.pop(replica_id, None)
        for patient in self._patients.values():
            if patient.source == replica_id:
                self._fail_read(patient)

    def suspect(self, replica_id: ReplicaId, now: float) -> None:
        """Look at it soon: it could not give what it should hold."""
        patient = self._patients.get(replica_id)
        if patient is not None and now - patient.asked_at >= REPAIR_LOOK_SECONDS_MIN:
            patient.must_look = True

    def take(self, event: RequestAnswered | RequestFailed, now: float) -> SendRequest | None:
        """Take what came of a request of its own; return the repair that it makes possible."""
        link = event.link
        match event:
            case RequestAnswered(_, AskCondition() as request, Condition() as condition):
                self.answered_condition(link, request, condition)
            case RequestAnswered(_, ReadToRepair() as request, RecordBatch() as batch):
                return self.read(request, batch)
            case RequestAnswered(_, RepairRecords() as request):
                self.repaired(link, request)
            case RequestFailed(_, AskCondition() as request, reason):
                self.failed_condition(link, request, reason)
            case RequestFailed(_, ReadToRepair() as request):
                self.failed_read(request)
                self.suspect(link.replica_id, now)
            case RequestFailed(_, RepairRecords() as request):
                self.failed_repair(link, request)
            case _:
                raise AssertionError(f"no answer to a repair: {event}")
        return None

    def answered_condition(
        self, link: ReplicaLink, request: AskCondition, condition: Condition
    ) -> None:
        patient = self._current(link)
        if patient is None or request.number != patient.questions:
            return
        patient.awaits_answer = False
        patient.condition = condition
        patient.damaged = condition.damaged
        patient.was_damaged = patient.was_damaged or bool(condition.damaged)
        patient.failed.clear()
        patient.refused.clear()

    def failed_condition(self, link: ReplicaLink, request: AskCondition, reason: str) -> None:
        patient = self._current(link)
        if patient is None or request.number != patient.questions:
            return
        patient.awaits_answer = False
        if patient.reason is not None:
            patient.given_up = f"{patient.reason}; {reason}"

    def read(self, request: ReadToRepair, batch: RecordBatch) -> SendRequest | None:
        """Return what puts back what was read; None if nobody waits for it or it is no good."""
        patient = self._reader(request)
        if patient is None:
            return None
        try:
            copy = checked_copy(batch, request.first, request.count_max, REPAIR_BYTES_MAX)
        except (CorruptionError, RemoteProtocolError):
            self._fail_read(patient)
            return None
        patient.size.copied(copy)
        patient.source = None
        patient.request = RepairRecords(copy)
        return SendRequest(patient.link, patient.request)

    def failed_read(self, request: ReadToRepair) -> None:
        if patient := self._reader(request):
            self._fail_read(patient)

    def repaired(self, link: ReplicaLink, request: RepairRecords) -> None:
        patient = self._current(link)
        if patient is None or patient.request is not request:
            return
        patient.request = None
        patient.repaired_count += len(request.batch)
        patient.damaged = _without_start(patient.damaged, request.batch)
        if not patient.damaged:
            patient.must_look = True

    def failed_repair(self, link: ReplicaLink, request: RepairRecords) -> None:
        """It may have been done all the same; it is tried again after the next look."""
        patient = self._current(link)
        if patient is None or patient.request is not request:
            return
        patient.request = None
        patient.refused.add(request.batch.first_transaction_id)

    def cut(self, link: ReplicaLink) -> None:
        """The replica was cut."""
        patient = self._current(link)
        if patient is not None and isinstance(patient.request, CutReplica):
            patient.request = None
            patient.must_look = True

    # Decisions

    def step(
        self, scopes: Mapping[ReplicaId, Scope], now: float, *, is_open: bool
    ) -> list[RepairEffect]:
        """Return what to do. `is_open`: what nobody can supply now is worth telling."""
        self._is_open = is_open
        effects: list[RepairEffect] = []
        for replica_id, patient in self._patients.items():
            if replica_id in scopes:
                effects += self._advance(patient, scopes, now)
        return effects

    def _advance(
        self, patient: _Patient, scopes: Mapping[ReplicaId, Scope], now: float
    ) -> list[RepairEffect]:
        if patient.given_up is not None:
            return [GiveUpReplica(patient.link.replica_id, patient.given_up)]
        scope = scopes[patient.link.replica_id]
        effects: list[RepairEffect] = []
        if patient.request is None and patient.condition is not None and not patient.must_look:
            effects += self._treat(patient, scope, scopes)
            if effects and isinstance(effects[-1], ReplicaMended | GiveUpReplica):
                return effects
        if patient.must_look and (patient.is_delayed or not patient.awaits_answer):
            if patient.request is None:
                effects.append(self._look(patient, now, delayed=False))
        elif not patient.awaits_answer and patient.request is None:
            effects.append(self._look(patient, now, delayed=True))
        return effects

    def _treat(
        self, patient: _Patient, scope: Scope, scopes: Mapping[ReplicaId, Scope]
    ) -> list[RepairEffect]:
        replica_id = patient.link.replica_id
        if not patient.damaged and patient.reason is not None and not patient.awaits_answer:
            if patient.was_damaged:
                return [*self._report(patient, ()), ReplicaMended(replica_id)]
            return [GiveUpReplica(replica_id, patient.reason)]
        unsupplied: list[DamagedRange] = []
        for damaged in patient.damaged:
            if damaged.first > scope.kept_through:
                break
            source = self._source(patient, damaged.first, scopes)
            if source is None or damaged.first in patient.refused:
                unsupplied.append(damaged)
                continue
            through = min(
                TransactionId(damaged.next_transaction_id - 1),
                scope.kept_through,
                source.supplies_through,
            )
            return [
                *self._report(patient, unsupplied),
                self._read(patient, source, damaged.first, through),
            ]
        effects = self._report(patient, unsupplied)
        if patient.damaged and not unsupplied and scope.is_cut and patient.reason is not None:
            patient.request = CutReplica(replica_id, scope.kept_through)
            effects.append(patient.request)
        return effects

    def _look(self, patient: _Patient, now: float, *, delayed: bool) -> SendRequest:
        patient.questions += 1
        patient.awaits_answer = True
        patient.is_delayed = delayed
        patient.must_look = False
        patient.asked_at = now
        request = AskCondition(patient.questions)
        return SendRequest(patient.link, request, REPAIR_LOOK_SECONDS if delayed else 0.0)

    def _read(
        self, patient: _Patient, source: Scope, first: TransactionId, through: TransactionId
    ) -> SendRequest:
        count = patient.size.count(first, through)
        patient.source = source.link.replica_id
        patient.request = ReadToRepair(first, count, patient.link)
        delay_seconds = REPAIR_PAUSE_SECONDS if patient.repaired_count else 0.0
        return SendRequest(source.link, patient.request, delay_seconds)

    def _source(
        self, patient: _Patient, first: TransactionId, scopes: Mapping[ReplicaId, Scope]
    ) -> Scope | None:
        holdings = [
            (replica_id, scope.supplies_through)
            for replica_id, scope in scopes.items()
            if replica_id != patient.link.replica_id
            and (first, replica_id) not in patient.failed
            and not self._is_damaged(replica_id, first)
        ]
        chosen = choose_source(first, holdings, patient.failures)
        return None if chosen is None else scopes[chosen]

    def _is_damaged(self, replica_id: ReplicaId, transaction_id: TransactionId) -> bool:
        other = self._patients.get(replica_id)
        return other is not None and any(
            damaged.first <= transaction_id < damaged.next_transaction_id
            for damaged in other.damaged
        )

    def _report(self, patient: _Patient, unsupplied: Iterable[DamagedRange]) -> list[RepairEffect]:
        told = tuple(unsupplied) if self._is_open else ()
        report = ReplicaDamage(patient.link, patient.damaged, told, patient.repaired_count)
        before = patient.reported
        patient.reported = report
        if before is None:
            is_news = bool(report.damaged)
        else:
            is_news = not set(report.unsupplied) <= set(before.unsupplied) or bool(
                report.damaged
            ) != bool(before.damaged)
        return [report] if is_news else []

    # Answers

    def _current(self, link: ReplicaLink) -> _Patient | None:
        patient = self._patients.get(link.replica_id)
        return patient if patient is not None and patient.link == link else None

    def _reader(self, request: ReadToRepair) -> _Patient | None:
        patient = self._current(request.patient)
        return patient if patient is not None and patient.request is request else None

    def _fail_read(self, patient: _Patient) -> None:
        request, source = patient.request, patient.source
        assert isinstance(request, ReadToRepair)
        assert source is not None
        patient.failed.add((request.first, source))
        patient.failures[source] = patient.failures.get(source, 0) + 1
        patient.request = patient.source = None


def damage_text(damage: Damage) -> str:
    """Return the ranges for people, by first and last record; not more than five."""
    more = f" and {len(damage) - 5} more" if len(damage) > 5 else ""
    return ",".join(f"{first}-{following - 1}" for first, following in damage[:5]) + more


def _without_start(damage: Damage, batch: RecordBatch) -> Damage:
    """Return what is left once `batch` was put where one of the ranges begins."""
    left = []
    for damaged in damage:
        if damaged.first == batch.first_transaction_id:
            damaged = damaged._replace(first=batch.next_transaction_id)
        if damaged.first < damaged.next_transaction_id:
            left.append(damaged)
    return tuple(left)
