"""Repair: what replicas have damaged, whom to read it from, and what to put back.

Owns what is known of each replica's damage and the one repair under way on it. Must not know
connections, votes or commits: `repair_scope.py` says which records of which replica are the log's.
Nothing is put back but what another replica holds and what checks out; what nobody can supply stays
as it is and is told. A replica may not vote while it has damage. It is let go on with damage only
once every replica has answered, none of them can give the record, and good ones follow it, so that
it is known to belong to the log (decision 0034).

A replica is asked again and again, and at once when a read failed there. Repair is slow on purpose:
one bounded batch at a time per replica, with pauses, for appends share its disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from waltz.errors import CorruptionError, RemoteProtocolError
from waltz.limits import DAMAGED_RANGES_MAX
from waltz.record import RecordBatch
from waltz.store.catch_up import CopySize, checked_copy, choose_source
from waltz.store.requests import (
    AcceptDamage,
    AskCondition,
    Condition,
    DropReplica,
    ReadToRepair,
    RepairRecords,
    ReplicaLink,
    ReplicaSuspected,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    TruncateReplica,
)
from waltz.types import NOTHING, ReplicaId, TransactionId
from waltz.wire.storage_protocol import DamagedRange

REPAIR_LOOK_SECONDS: Final = 5.0
"""Between two questions to a replica what it has damaged, while a store session is open."""

REPAIR_LOOK_SECONDS_MIN: Final = 1.0
"""The same when reads fail there: they may fail for other reasons, and for good."""

REPAIR_BYTES_MAX: Final = 1024 * 1024
REPAIR_PAUSE_SECONDS: Final = 0.05
"""Put back in one replica at a time, unless a single record is larger, and the pause before the
next: about 20 MiB/s, and an append waits for one such batch at most."""


Damage: TypeAlias = tuple[DamagedRange, ...]


class RepairScope(NamedTuple):
    """The part of a replica that is the log's, as far as that is known now."""

    link: ReplicaLink
    supplies_through: TransactionId
    """The last record that can be read there for others; NOTHING: none."""
    kept_through: TransactionId
    """The last record that is to be repaired if it is damaged."""
    is_cut: bool
    """Whether what it holds beyond `kept_through` is to be removed, damaged or not."""


@dataclass(frozen=True, slots=True)
class ReplicaDamage:
    """The known damage of a replica, told whenever that changes. `unsupplied` is the part of
    `damaged` that no other replica can give now. `repaired_count` records were put back so far."""

    link: ReplicaLink
    damaged: Damage
    unsupplied: Damage
    repaired_count: int


@dataclass(frozen=True, slots=True)
class ReplicaMended:
    """A replica that abstained has no damage any more."""

    link: ReplicaLink


@dataclass(frozen=True, slots=True)
class DamageAccepted:
    """A replica that abstained takes part in this session with the damage that it has."""

    link: ReplicaLink


RepairEvent: TypeAlias = ReplicaSuspected | RequestAnswered | RequestFailed
RepairEffect: TypeAlias = SendRequest | ReplicaDamage | ReplicaMended | DamageAccepted | DropReplica


@dataclass(slots=True)
class _Patient:
    """A replica whose damage is looked at: what it has said, and the one repair under way on it."""

    link: ReplicaLink
    reason: str | None
    """Why it abstains; None: it does not."""
    is_tolerant: bool = False
    questions: int = 0
    awaits_answer: bool = False
    is_delayed: bool = False
    """Whether the newest question is only sent later."""
    asked_at: float = 0.0
    condition: Condition | None = None
    damaged: Damage = ()
    """The damage of the last answer, less what was put back since."""
    unsupplied: Damage = ()
    """The part of `damaged` that no replica can give now."""
    is_stuck: bool = False
    """Whether it votes, and nothing can be done for it before somebody has answered again."""
    must_look: bool = True
    was_damaged: bool = False
    accepted: frozenset[DamagedRange] = frozenset()
    """With what damage it takes part in this session."""
    request: ReadToRepair | RepairRecords | AcceptDamage | TruncateReplica | None = None
    """The request that is under way on it, or for it."""
    source: ReplicaId | None = None
    size: CopySize = field(default_factory=lambda: CopySize(REPAIR_BYTES_MAX))
    failures: dict[ReplicaId, int] = field(default_factory=dict)
    failed: set[tuple[TransactionId, ReplicaId]] = field(default_factory=set)
    """Records and the replicas that could not supply them since the last answer."""
    refused: set[TransactionId] = field(default_factory=set)
    """Records that the replica did not let be repaired since the last answer."""
    repaired_count: int = 0
    given_up: str | None = None
    """Why nothing more can be learned of it."""
    reported: ReplicaDamage | None = None

    @property
    def last(self) -> TransactionId:
        """The last record that it has said it holds."""
        return NOTHING if self.condition is None else self.condition.last

    def finding(self, silent: Sequence[ReplicaId]) -> str | None:
        """As `Repairer.finding`; the replicas that are `silent` may have what nobody gives."""
        if not self.damaged:
            return None
        found = f"records {damage_text(self.damaged)} are damaged"
        if self.unsupplied:
            found += f", and no replica gives {damage_text(self.unsupplied)}"
        if self.reason is None:
            return found
        return f"does not vote: {found}{self._why_not_accepted(silent)}"

    def _why_not_accepted(self, silent: Sequence[ReplicaId]) -> str:
        if not self.unsupplied:
            return ""
        if silent:
            return f"; {', '.join(silent)} may have them, and has not said so"
        if not self.is_tolerant:
            return "; its version cannot take part with damage"
        if self.unsupplied[-1].next_transaction_id > self.last:
            return (
                "; nothing good follows the last of them, so that nobody knows where its log ended"
            )
        return ""

    def suspect(self, now: float) -> None:
        """Look soon: the replica could not give what it should hold."""
        if now - self.asked_at >= REPAIR_LOOK_SECONDS_MIN:
            self.must_look = True

    def look(self, now: float, *, delayed: bool) -> SendRequest:
        self.questions += 1
        self.awaits_answer = True
        self.is_delayed = delayed
        self.must_look = False
        self.asked_at = now
        request = AskCondition(self.questions)
        return SendRequest(self.link, request, REPAIR_LOOK_SECONDS if delayed else 0.0)

    def read(
        self, source: RepairScope, first: TransactionId, through: TransactionId
    ) -> SendRequest:
        count = self.size.count(first, through)
        self.source = source.link.replica_id
        self.request = ReadToRepair(first, count, self.link)
        delay_seconds = REPAIR_PAUSE_SECONDS if self.repaired_count else 0.0
        return SendRequest(source.link, self.request, delay_seconds)

    def report(self, unsupplied: Iterable[DamagedRange], *, is_open: bool) -> list[RepairEffect]:
        self.unsupplied = tuple(unsupplied)
        told = self.unsupplied if is_open else ()
        report = ReplicaDamage(self.link, self.damaged, told, self.repaired_count)
        before = self.reported
        self.reported = report
        if before is None:
            is_news = bool(report.damaged)
        else:
            is_news = not set(report.unsupplied) <= set(before.unsupplied) or bool(
                report.damaged
            ) != bool(before.damaged)
        return [report] if is_news else []

    # Answers

    def take_answer(self, event: RequestAnswered | RequestFailed) -> bool:
        """Take what the replica says to a question about it, or to what was under way on it. Return
        whether it has said what it has damaged."""
        if isinstance(event.request, AskCondition):
            if event.request.number != self.questions:
                return False
            self.awaits_answer = False
        elif self.request is event.request:
            self.request = None
        else:
            return False
        match event:
            case RequestAnswered(_, AskCondition(), Condition() as condition):
                self.condition = condition
                self.damaged = condition.damaged
                self.was_damaged = self.was_damaged or bool(condition.damaged)
                self.failed.clear()
                self.refused.clear()
                return True
            case RequestFailed(_, AskCondition(), reason):
                if self.reason is not None:
                    self.given_up = f"{self.reason}; {reason}"
            case RequestAnswered(_, RepairRecords(batch)):
                self.repaired_count += len(batch)
                self.damaged = _without_start(self.damaged, batch)
                if not self.damaged:
                    self.must_look = True
            case RequestAnswered(_, AcceptDamage(damaged)):
                self.accepted |= frozenset(damaged)
            case RequestAnswered(_, TruncateReplica()):
                self.must_look = True
            # What failed may have been done all the same; it is tried again after the next look.
            case RequestFailed(_, RepairRecords(batch)):
                self.refused.add(batch.first_transaction_id)
            case RequestFailed(_, AcceptDamage(damaged)):
                self.refused.update(each.first for each in damaged)
            case _:
                raise AssertionError(f"no answer to a repair: {event}")
        return False

    def take_read(self, request: ReadToRepair, batch: RecordBatch) -> SendRequest | None:
        """Return what puts back what was read; None if what was read is no good."""
        try:
            copy = checked_copy(batch, request.first, request.count_max, REPAIR_BYTES_MAX)
        except (CorruptionError, RemoteProtocolError):
            self.fail_read()
            return None
        self.size.copied(copy)
        self.source = None
        self.request = RepairRecords(copy)
        return SendRequest(self.link, self.request)

    def fail_read(self) -> None:
        request, source = self.request, self.source
        assert isinstance(request, ReadToRepair)
        assert source is not None
        self.failed.add((request.first, source))
        self.failures[source] = self.failures.get(source, 0) + 1
        self.request = self.source = None


class Repairer:
    def __init__(self) -> None:
        self._patients: dict[ReplicaId, _Patient] = {}
        self._is_open = False
        self._silent: Sequence[ReplicaId] = ()

    @property
    def is_idle(self) -> bool:
        """Whether a step can do nothing: no damage is known, and nobody is to be asked."""
        for patient in self._patients.values():
            if patient.must_look or not patient.awaits_answer:
                return False
            if patient.damaged and not patient.is_stuck:
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

    def condition(self, replica_id: ReplicaId) -> Condition | None:
        """Return the last answer of the replica."""
        patient = self._patients.get(replica_id)
        return None if patient is None else patient.condition

    def has_answered(self, replica_id: ReplicaId) -> bool:
        """Whether what the replica has answered last is not about to be replaced."""
        patient = self._patients.get(replica_id)
        return patient is not None and patient.condition is not None and not patient.must_look

    def finding(self, replica_id: ReplicaId) -> str | None:
        """Return a sentence for people about a replica's damage; None: it has no known damage, or
        it has not been asked."""
        patient = self._patients.get(replica_id)
        return None if patient is None else patient.finding(self._silent)

    def check_invariants(self) -> None:
        for patient in self._patients.values():
            assert (patient.source is not None) == isinstance(patient.request, ReadToRepair)
            assert patient.condition is not None or patient.request is None
            assert list(patient.damaged) == sorted(patient.damaged)

    # What the session tells

    def watch(self, link: ReplicaLink) -> None:
        """Ask now and then what a replica that takes part has damaged."""
        patient = self._current(link)
        if patient is None or patient.reason is not None:
            self._patients[link.replica_id] = _Patient(link, None, must_look=False)
            self._unstick()

    def take_in(self, link: ReplicaLink, reason: str, *, is_tolerant: bool = False) -> None:
        """Ask a replica that does not vote what it has damaged, and repair it.

        One that does not vote with the damage either that was accepted is not asked at once, or
        this would go on without end.
        """
        before = self._current(link)
        must_look = before is None or not before.accepted
        self._patients[link.replica_id] = _Patient(link, reason, is_tolerant, must_look=must_look)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica is lost; or it has joined, or left, those that abstain."""
        self._patients.pop(replica_id, None)
        self._unstick()
        for patient in self._patients.values():
            if patient.source == replica_id:
                patient.fail_read()

    def take(self, event: RepairEvent, now: float) -> SendRequest | None:
        """Take what came of a request of the repairer's; return the repair it makes possible."""
        match event:
            case ReplicaSuspected():
                if replica := self._patients.get(event.link.replica_id):
                    replica.suspect(now)
            case RequestAnswered(_, ReadToRepair() as read, RecordBatch() as batch):
                if patient := self._reader(read):
                    return patient.take_read(read, batch)
            case RequestFailed(_, ReadToRepair() as read):
                if patient := self._reader(read):
                    patient.fail_read()
                if replica := self._patients.get(event.link.replica_id):
                    replica.suspect(now)
            case RequestAnswered() | RequestFailed() if patient := self._current(event.link):
                if patient.take_answer(event):
                    self._unstick()
        return None

    def _unstick(self) -> None:
        for patient in self._patients.values():
            patient.is_stuck = False

    # Decisions

    def step(
        self,
        scopes: Mapping[ReplicaId, RepairScope],
        now: float,
        *,
        is_open: bool,
        silent: Sequence[ReplicaId] = (),
    ) -> list[RepairEffect]:
        """Return what to do. `is_open`: what nobody can supply now is worth telling. While some are
        `silent` that may have intact what others have damaged, no damage is accepted."""
        self._is_open, self._silent = is_open, silent
        effects: list[RepairEffect] = []
        for replica_id, patient in self._patients.items():
            if replica_id in scopes:
                effects += self._advance(patient, scopes, now)
        return effects

    def _advance(
        self, patient: _Patient, scopes: Mapping[ReplicaId, RepairScope], now: float
    ) -> list[RepairEffect]:
        if patient.given_up is not None:
            return [DropReplica(patient.link, patient.given_up)]
        scope = scopes[patient.link.replica_id]
        effects: list[RepairEffect] = []
        is_known = patient.condition is not None and not patient.must_look
        if patient.request is None and is_known and not patient.is_stuck:
            effects += self._treat(patient, scope, scopes)
            if effects and isinstance(effects[-1], ReplicaMended | DamageAccepted | DropReplica):
                return effects
        if patient.must_look and (patient.is_delayed or not patient.awaits_answer):
            if patient.request is None:
                effects.append(patient.look(now, delayed=False))
        elif not patient.awaits_answer and patient.request is None:
            effects.append(patient.look(now, delayed=True))
        return effects

    def _treat(
        self, patient: _Patient, scope: RepairScope, scopes: Mapping[ReplicaId, RepairScope]
    ) -> list[RepairEffect]:
        if not patient.damaged and patient.reason is not None and not patient.awaits_answer:
            if patient.was_damaged:
                return [*patient.report((), is_open=self._is_open), ReplicaMended(patient.link)]
            return [DropReplica(patient.link, patient.reason)]
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
                *patient.report(unsupplied, is_open=self._is_open),
                patient.read(source, damaged.first, through),
            ]
        effects = patient.report(unsupplied, is_open=self._is_open)
        if not patient.damaged or patient.reason is None:
            patient.is_stuck = bool(patient.damaged)
            return effects
        if not patient.accepted.issuperset(unsupplied):
            if all(self._may_accept(patient, damaged, scope, scopes) for damaged in unsupplied):
                patient.request = AcceptDamage(tuple(unsupplied))
                effects.append(SendRequest(patient.link, patient.request))
        elif len(unsupplied) == len(patient.damaged):
            patient.reason = None
            effects.append(DamageAccepted(patient.link))
        elif scope.is_cut:
            patient.request = TruncateReplica(scope.kept_through)
            effects.append(SendRequest(patient.link, patient.request))
        return effects

    def _may_accept(
        self,
        patient: _Patient,
        damaged: DamagedRange,
        scope: RepairScope,
        scopes: Mapping[ReplicaId, RepairScope],
    ) -> bool:
        """Whether the replica may take part although it cannot give these records.

        It vouches for having had them, so a good record must follow: at the end of a log nobody
        knows which records there were. And none may be left that has the first of them intact, or
        may have it: while one is absent, it may be the last that has it, and is to be waited for.
        A list of damage that is as long as it may be is no whole list.
        """
        is_held = any(
            other.supplies_through >= damaged.first and not self._is_damaged(each, damaged.first)
            for each, other in scopes.items()
            if each != patient.link.replica_id
        )
        return (
            patient.is_tolerant
            and not self._silent
            and not is_held
            and damaged.first not in patient.refused
            and damaged.next_transaction_id <= min(scope.kept_through, patient.last)
            and len(patient.damaged) < DAMAGED_RANGES_MAX
        )

    def _source(
        self, patient: _Patient, first: TransactionId, scopes: Mapping[ReplicaId, RepairScope]
    ) -> RepairScope | None:
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
        if other is None:
            return False
        place = bisect_right(other.damaged, transaction_id, key=_first) - 1
        return place >= 0 and transaction_id < other.damaged[place].next_transaction_id

    # Answers

    def _current(self, link: ReplicaLink) -> _Patient | None:
        patient = self._patients.get(link.replica_id)
        return patient if patient is not None and patient.link == link else None

    def _reader(self, request: ReadToRepair) -> _Patient | None:
        patient = self._current(request.patient)
        return patient if patient is not None and patient.request is request else None


def damage_text(damage: Damage) -> str:
    """Return the ranges for people, by first and last record; not more than five."""
    more = f" and {len(damage) - 5} more" if len(damage) > 5 else ""
    return ",".join(f"{first}-{following - 1}" for first, following in damage[:5]) + more


def _first(damaged: DamagedRange) -> TransactionId:
    return damaged.first


def _without_start(damage: Damage, batch: RecordBatch) -> Damage:
    """Return what is left once `batch` was put where one of the ranges begins."""
    left = []
    for damaged in damage:
        if damaged.first == batch.first_transaction_id:
            damaged = damaged._replace(first=batch.next_transaction_id)
        if damaged.first < damaged.next_transaction_id:
            left.append(damaged)
    return tuple(left)
