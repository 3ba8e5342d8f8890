"""A replica as a plain object: records, marks, a session and damage, without a disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from waltz.record import RecordBatch, empty_batch, join_batches
from waltz.store.requests import (
    AcceptDamage,
    AppendToReplica,
    AskCondition,
    AskMaxTransactionId,
    AskSessionInfo,
    Condition,
    ReadFromReplica,
    ReadToRepair,
    RepairRecords,
    ReplicaAnswer,
    ReplicaRequest,
    SetLowWaterMark,
    TruncateReplica,
)
from waltz.types import NO_SESSION, NOTHING, ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import DamagedRange, SessionInfo


class RefusedError(Exception):
    """A storage node answers with a failure."""


@dataclass
class FakeReplica:
    """A storage node's partition: one list of records, some of them not synced yet."""

    replica_id: ReplicaId
    log: list[RecordBatch] = field(default_factory=list)
    """One record each."""
    synced: int = 0
    session_id: SessionId = NO_SESSION
    low_water_mark: TransactionId = NOTHING
    local_low_water_mark: TransactionId = NOTHING
    current: SessionId = NO_SESSION
    is_up: bool = True
    reads_fail: bool = False
    is_repairable: bool = False
    """Whether it speaks storage protocol 1."""
    is_tolerant: bool = False
    """Whether it speaks storage protocol 5."""
    accepted: tuple[SessionId, frozenset[int]] = (NO_SESSION, frozenset())
    """The damaged records with which a session goes on."""
    damaged: set[int] = field(default_factory=set)
    """Records that it holds and cannot read any more."""
    unnoticed: set[int] = field(default_factory=set)
    """Those of them that nobody has read since."""

    @property
    def last(self) -> TransactionId:
        return TransactionId(len(self.log) - 1)

    def announce(self, session_id: SessionId) -> None:
        self.current = max(self.current, session_id)

    def process(self, session_id: SessionId, request: ReplicaRequest) -> ReplicaAnswer:
        """Do what a storage node does. Raises RefusedError."""
        if session_id != self.current:
            raise RefusedError(f"session id has changed to {self.current}, not {session_id}")
        match request:
            case AskSessionInfo():
                self.check_undamaged(session_id)
                return SessionInfo(self.session_id, self.low_water_mark, self.local_low_water_mark)
            case AskMaxTransactionId():
                self.check_undamaged(session_id)
                return self.last
            case TruncateReplica(transaction_id):
                self.truncate(session_id, transaction_id)
                return self.last
            case SetLowWaterMark(mark):
                self.check_undamaged(session_id)
                if self.last > mark or mark < self.low_water_mark:
                    raise RefusedError(f"mark {mark}, last {self.last}, {self.low_water_mark}")
                if self.last < self.local_low_water_mark or self.session_id > session_id:
                    raise RefusedError("local low-water mark")
                self.sync()
                self.session_id, self.low_water_mark = session_id, mark
                self.local_low_water_mark = self.last
                return None
            case AppendToReplica(batch):
                if batch.first_transaction_id != len(self.log):
                    raise RefusedError(f"out of order: {batch.first_transaction_id} {self.last}")
                first = batch.first_transaction_id
                self.log += [batch.slice(TransactionId(first + i), 1) for i in range(len(batch))]
                return None
            case ReadFromReplica(first, count_max) | ReadToRepair(first, count_max):
                return self.read(first, count_max)
            case AskCondition():
                assert self.is_repairable
                info = SessionInfo(self.session_id, self.low_water_mark, self.local_low_water_mark)
                return Condition(info, self.last, self.damaged_ranges())
            case RepairRecords(batch):
                assert self.is_repairable
                self.repair(batch)
                return None
            case AcceptDamage(damaged):
                self.accept(session_id, damaged)
                return None

    def truncate(self, session_id: SessionId, last: TransactionId) -> None:
        if any(each <= last for each in self.unaccepted(session_id)):
            raise RefusedError("damage before the cut")
        if last in self.damaged:
            raise RefusedError("damage at the cut")
        self.damaged -= {*range(last + 1, len(self.log))}
        del self.log[last + 1 :]
        self.synced = min(self.synced, len(self.log))

    def accept(self, session_id: SessionId, damaged: Sequence[DamagedRange]) -> None:
        assert self.is_tolerant
        assert damaged[-1].next_transaction_id <= self.last, "the end of a log is unknown"
        by, before = self.accepted
        records = {each for first, end in damaged for each in range(first, end)}
        self.accepted = session_id, frozenset(records | (before if by == session_id else set()))

    def read(self, first: TransactionId, count_max: int) -> RecordBatch:
        if self.reads_fail or first in self.damaged:
            self.unnoticed.discard(first)
            raise RefusedError("unreadable")
        following = min((each for each in self.damaged if each > first), default=len(self.log))
        found = self.log[first : min(first + count_max, following)]
        return join_batches(found) if found else empty_batch(TransactionId(0))

    def unaccepted(self, session_id: SessionId) -> set[int]:
        accepted_by, accepted = self.accepted
        known = self.damaged - self.unnoticed
        return known - (accepted if accepted_by == session_id else set())

    def check_undamaged(self, session_id: SessionId) -> None:
        if self.unaccepted(session_id):
            raise RefusedError("no vote")

    def damaged_ranges(self) -> tuple[DamagedRange, ...]:
        known = self.damaged - self.unnoticed
        firsts = [each for each in sorted(known) if each - 1 not in known]
        ends = [each + 1 for each in sorted(known) if each + 1 not in known]
        return tuple(
            DamagedRange(TransactionId(first), TransactionId(end))
            for first, end in zip(firsts, ends, strict=True)
        )

    def repair(self, batch: RecordBatch) -> None:
        """Records can be put back only where a range begins, and only what was there."""
        places = range(batch.first_transaction_id, batch.next_transaction_id)
        for index, place in enumerate(places):
            if place >= len(self.log):
                raise RefusedError("there was nothing")
            good = self.log[place] == batch.slice(TransactionId(place), 1)
            if place not in self.damaged and not good:
                raise RefusedError("not damaged, and another one")
            assert good, f"{self.replica_id}: record {place} is replaced by another one"
            if place in self.damaged and index == 0:
                assert place - 1 not in self.damaged, "only from where a range begins"
        self.damaged.difference_update(places)

    def sync(self) -> None:
        self.synced = len(self.log)

    def crash(self, kept: int) -> None:
        """Lose all but `kept` of the unsynced records, and what was only in memory."""
        del self.log[self.synced + kept :]
        self.damaged &= {*range(len(self.log))}
        self.synced = len(self.log)
        self.current = self.session_id
        self.accepted = (NO_SESSION, frozenset())
        self.is_up = False

    def blank(self) -> None:
        """Replace the disk by an empty one."""
        self.log.clear()
        self.damaged.clear()
        self.synced = 0
        self.session_id = self.current = SessionId(-1)
        self.low_water_mark = self.local_low_water_mark = NOTHING
