"""A storage node's partition as a value: what it answers, what is left of it after a fault.

It does what `waltz.storage` does, as far as a server can see; a test compares the two. A record is
a number here, the append that it was written for. `ReplicaRules` has what a node must not get wrong
as switches, so that the check can show that it would notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from waltz.record import NewRecord, RecordBatch, empty_batch, pack_records
from waltz.store.requests import (
    AppendToReplica,
    AskMaxTransactionId,
    AskSessionInfo,
    ReadFromReplica,
    ReplicaAnswer,
    ReplicaRequest,
    SetLowWaterMark,
    TruncateReplica,
)
from waltz.types import NO_SESSION, NOTHING, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo

Token: TypeAlias = int
"""A record: the number of the append that it was written for, from 1."""


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    fences_when_asked: bool = True
    """Answering a session shuts out older ones; else only changing something for it does."""
    fence_survives_crash: bool = True
    """Whether a session that was only heard of is remembered over a crash."""
    syncs_before_answer: bool = True
    truncates_further: int = 0
    """How many records more than asked for a truncation removes."""
    read_records_max: int = 1
    """Records in one answer: copies are interrupted between any two."""


CORRECT: Final = ReplicaRules()


class Backup(NamedTuple):
    log: tuple[Token, ...]
    session_id: SessionId
    low_water_mark: TransactionId
    local_low_water_mark: TransactionId


class ModelReplica(NamedTuple):
    log: tuple[Token, ...] = ()
    synced: int = 0
    """How many of the log's records are synced."""
    session_id: SessionId = NO_SESSION
    low_water_mark: TransactionId = NOTHING
    local_low_water_mark: TransactionId = NOTHING
    fence: SessionId = NO_SESSION
    """The newest session heard of: older ones are refused."""
    answered: SessionId = NO_SESSION
    """The newest session that was ever answered; the node may have forgotten it."""
    lost_committed: bool = False
    """Whether a replaced disk lacks committed records, and no session has recovered it since."""
    backup: Backup | None = None

    @property
    def last(self) -> TransactionId:
        return TransactionId(len(self.log) - 1)


@cache
def batch_of(first: TransactionId, tokens: tuple[Token, ...]) -> RecordBatch:
    """Return real records with `tokens` as their request IDs."""
    if not tokens:
        return empty_batch(TransactionId(0))
    return pack_records(
        first, [NewRecord(token.to_bytes(16, "big"), 0, b"", 0) for token in tokens]
    )


@cache
def tokens_of(batch: RecordBatch) -> tuple[Token, ...]:
    return tuple(int.from_bytes(row.tobytes(), "big") for row in batch.request_ids())


def changes(request: ReplicaRequest) -> bool:
    return isinstance(request, TruncateReplica | SetLowWaterMark | AppendToReplica)


class Reply(NamedTuple):
    replica: ModelReplica
    """After the request."""
    is_refusal: bool
    answer: ReplicaAnswer


def process(
    replica: ModelReplica, session_id: SessionId, request: ReplicaRequest, rules: ReplicaRules
) -> Reply:
    if session_id < replica.fence:
        return Reply(replica, is_refusal=True, answer=None)
    if changes(request) or rules.fences_when_asked:
        answered = max(replica.answered, session_id)
        replica = replica._replace(fence=session_id, answered=answered)
    elif session_id > replica.answered:
        replica = replica._replace(answered=session_id)
    done = _carry_out(replica, session_id, request, rules)
    if done is None:
        return Reply(replica, is_refusal=True, answer=None)
    return Reply(done[0], is_refusal=False, answer=done[1])


def _carry_out(
    replica: ModelReplica, session_id: SessionId, request: ReplicaRequest, rules: ReplicaRules
) -> tuple[ModelReplica, ReplicaAnswer] | None:
    match request:
        case AskSessionInfo():
            return replica, SessionInfo(
                replica.session_id, replica.low_water_mark, replica.local_low_water_mark
            )
        case AskMaxTransactionId():
            return replica, replica.last
        case ReadFromReplica(first, count_max):
            count = min(count_max, rules.read_records_max)
            return replica, batch_of(first, replica.log[first : first + count])
        case TruncateReplica(last):
            if last >= replica.last:
                return replica, replica.last
            log = replica.log[: max(0, last + 1 - rules.truncates_further)]
            kept = TransactionId(len(log) - 1)
            local = min(replica.local_low_water_mark, kept)
            replica = replica._replace(log=log, synced=len(log), local_low_water_mark=local)
            return replica, last
        case SetLowWaterMark(mark):
            if session_id < replica.session_id or mark < replica.low_water_mark:
                return None
            if replica.last > mark:
                return None
            return (
                replica._replace(
                    synced=len(replica.log),
                    session_id=session_id,
                    low_water_mark=mark,
                    local_low_water_mark=replica.last,
                    lost_committed=False,
                ),
                None,
            )
        case AppendToReplica(batch):
            if batch.first_transaction_id != len(replica.log):
                return None
            log = replica.log + tokens_of(batch)
            synced = len(log) if rules.syncs_before_answer else replica.synced
            return replica._replace(log=log, synced=synced), None
    raise AssertionError(request)


def crashed(replica: ModelReplica, rules: ReplicaRules) -> ModelReplica:
    """Return what a crash leaves: not what was not synced, nor what was only in memory."""
    fence = replica.fence if rules.fence_survives_crash else replica.session_id
    log = replica.log[: replica.synced]
    return replica._replace(log=log, synced=len(log), fence=fence)


def torn(replica: ModelReplica, batch: RecordBatch, kept: int) -> ModelReplica:
    """Return what a crash in the middle of an append leaves: its first `kept` records."""
    log = replica.log + tokens_of(batch)[:kept]
    return replica._replace(log=log, synced=len(log))


def blanked(replica: ModelReplica, committed: tuple[Token, ...]) -> ModelReplica:
    """The disk was replaced by an empty one."""
    return ModelReplica(lost_committed=_has_lost(replica, (), committed))


def rolled_back(replica: ModelReplica, committed: tuple[Token, ...]) -> ModelReplica:
    """The disk was replaced by a copy made earlier."""
    assert replica.backup is not None
    log, session_id, low_water_mark, local_low_water_mark = replica.backup
    return ModelReplica(
        log,
        len(log),
        session_id,
        low_water_mark,
        local_low_water_mark,
        fence=session_id,
        lost_committed=_has_lost(replica, log, committed),
    )


def _has_lost(replica: ModelReplica, log: tuple[Token, ...], committed: tuple[Token, ...]) -> bool:
    return replica.lost_committed or _common(log, committed) < _common(replica.log, committed)


def _common(log: tuple[Token, ...], committed: tuple[Token, ...]) -> int:
    """Return how many records from the first on are in both."""
    pairs = enumerate(zip(log, committed, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(log), len(committed)))


def backed_up(replica: ModelReplica) -> ModelReplica:
    return replica._replace(
        backup=Backup(
            replica.log, replica.session_id, replica.low_water_mark, replica.local_low_water_mark
        )
    )
