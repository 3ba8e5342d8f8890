"""The model's replica answers as the storage node does, and loses what a fault takes."""

from __future__ import annotations

from random import Random

import pytest

from proofs.model.replica import (
    CORRECT,
    ModelReplica,
    ReplicaRules,
    backed_up,
    batch_of,
    blanked,
    changes,
    crashed,
    process,
    rolled_back,
    tokens_of,
    torn,
)
from tests.storage.support import ZERO, ask, fresh_disk, make_partition, open_control
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.storage.partition_replica import StoragePartition
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
from waltz.types import NOTHING, SessionId, TransactionId
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordListRequest,
    RecordListResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)


def s(number: int) -> SessionId:
    return SessionId(number)


def t(number: int) -> TransactionId:
    return TransactionId(number)


def append(first: int, *tokens: int) -> AppendToReplica:
    return AppendToReplica(batch_of(t(first), tokens))


def done(replica: ModelReplica, session: int, *requests: ReplicaRequest) -> ModelReplica:
    for request in requests:
        reply = process(replica, s(session), request, CORRECT)
        assert not reply.is_refusal
        replica = reply.replica
    return replica


def refuses(replica: ModelReplica, session: int, request: ReplicaRequest) -> bool:
    return process(replica, s(session), request, CORRECT).is_refusal


# Beside the real one


def on_the_wire(session: int, request: ReplicaRequest) -> StorageMessage:
    head = (s(session), 1, ZERO)
    match request:
        case AskSessionInfo():
            return LastSessionInfoRequest(*head, offline=False)
        case AskMaxTransactionId():
            return MaxTransactionIdRequest(*head, offline=False)
        case TruncateReplica(last):
            return TruncateRequest(*head, last, offline=False)
        case SetLowWaterMark(mark):
            return SetLowWaterMarkRequest(*head, mark, offline=False)
        case AppendToReplica(batch):
            return AppendRecordsRequest(*head, batch, offline=False)
        case ReadFromReplica(first, count_max):
            return RecordListRequest(*head, first, count_max)
        case _:
            raise AssertionError(f"no request to the model's replica: {request}")


def from_the_wire(answer: StorageMessage) -> tuple[bool, ReplicaAnswer]:
    match answer:
        case FailureResponse():
            return True, None
        case SuccessResponse():
            return False, None
        case MaxTransactionIdResponse():
            return False, answer.transaction_id
        case LastSessionInfoResponse():
            return False, answer.session_info
        case RecordListResponse():
            return False, answer.records
        case _:
            raise AssertionError(answer)


def drawn(random: Random, replica: ModelReplica) -> ReplicaRequest:
    mark = t(random.randint(-1, len(replica.log)))
    match random.randrange(7):
        case 0:
            return AskSessionInfo()
        case 1:
            return AskMaxTransactionId()
        case 2:
            return TruncateReplica(mark)
        case 3:
            return SetLowWaterMark(mark)
        case 4:
            return ReadFromReplica(t(random.randint(0, 4)), random.randint(1, 3), None)
        case _:
            first = len(replica.log) + (random.random() < 0.2)
            return append(first, *(random.randint(1, 9) for _ in range(random.randint(1, 2))))


def opened(disk: SimulatedDisk) -> StoragePartition:
    partition = make_partition(disk, open_control(disk))
    partition.open()
    return partition


@pytest.mark.parametrize("seed", range(12))
def test_it_answers_like_the_storage_node_also_after_power_cuts(seed: int) -> None:
    """SD-17 to SD-22, as far as a store session can see."""
    random = Random(seed)
    rules = ReplicaRules(read_records_max=100)
    disk = fresh_disk()
    partition, replica = opened(disk), ModelReplica()
    session = 0
    for _ in range(80):
        if random.random() < 0.05:
            disk = disk.crash_clone(Random(seed))
            partition, replica = opened(disk), crashed(replica, rules)
        session += random.random() < 0.1
        asking = max(0, session - (random.random() < 0.1))
        request = drawn(random, replica)
        real = from_the_wire(ask(partition, on_the_wire(asking, request)))
        replica, *answer = process(replica, s(asking), request, rules)
        assert tuple(answer) == real, request


# What a fault leaves


def test_a_newer_session_shuts_out_the_older_also_over_a_crash() -> None:
    """I9."""
    replica = done(ModelReplica(), 2, AskSessionInfo())
    assert refuses(replica, 1, append(0, 1))
    assert refuses(crashed(replica, CORRECT), 1, append(0, 1))
    forgetful = ReplicaRules(fence_survives_crash=False)
    assert not refuses(crashed(replica, forgetful), 1, append(0, 1))
    assert crashed(replica, forgetful).answered == 2


def test_a_switch_lets_questions_pass_without_a_fence() -> None:
    rules = ReplicaRules(fences_when_asked=False)
    replica = process(ModelReplica(), s(2), AskSessionInfo(), rules).replica
    assert not refuses(replica, 1, append(0, 1))
    assert replica.answered == 2


def test_a_switch_answers_before_it_syncs() -> None:
    rules = ReplicaRules(syncs_before_answer=False)
    replica = process(ModelReplica(), s(0), append(0, 1), rules).replica
    assert (replica.log, crashed(replica, rules).log) == ((1,), ())
    kept = done(ModelReplica(), 0, append(0, 1))
    assert crashed(kept, CORRECT).log == (1,)


def test_a_switch_truncates_further_than_it_says() -> None:
    replica = done(ModelReplica(), 0, append(0, 1, 2, 3))
    rules = ReplicaRules(truncates_further=1)
    reply = process(replica, s(0), TruncateReplica(t(1)), rules)
    assert (reply.replica.log, reply.answer) == ((1,), 1)
    assert done(replica, 0, TruncateReplica(t(1))).log == (1, 2)
    assert done(replica, 0, TruncateReplica(t(5))) == replica


def test_an_append_that_a_crash_interrupts_leaves_its_first_records() -> None:
    replica = torn(done(ModelReplica(), 0, append(0, 1)), batch_of(t(1), (2, 3)), 1)
    assert replica.log == (1, 2)
    assert crashed(replica, CORRECT).log == (1, 2)


def test_a_replaced_disk_is_empty_and_remembers_nothing() -> None:
    """I11."""
    replica = done(ModelReplica(), 1, append(0, 1), SetLowWaterMark(t(0)), append(1, 2))
    assert blanked(replica, committed=(1,)) == ModelReplica(lost_committed=True)
    assert blanked(replica, committed=()) == ModelReplica()
    recovered = done(blanked(replica, (1,)), 2, append(0, 1), SetLowWaterMark(t(0)))
    assert not recovered.lost_committed


def test_a_disk_goes_back_to_its_copy() -> None:
    """I11."""
    early = backed_up(done(ModelReplica(), 1, append(0, 1)))
    late = done(early, 2, append(1, 2), SetLowWaterMark(t(1)))
    back = rolled_back(late, committed=(1, 2))
    assert (back.log, back.session_id, back.low_water_mark) == ((1,), -1, NOTHING)
    assert back.lost_committed
    assert not rolled_back(late, committed=(1,)).lost_committed
    assert not rolled_back(late, committed=(3,)).lost_committed


def test_records_are_real_and_keep_their_tokens() -> None:
    batch = batch_of(t(4), (7, 300))
    assert (batch.first_transaction_id, len(batch), tokens_of(batch)) == (4, 2, (7, 300))
    assert len(batch_of(t(4), ())) == 0


def test_what_changes_a_replica() -> None:
    assert [changes(each) for each in (AskSessionInfo(), AskMaxTransactionId())] == [False, False]
    assert changes(append(0, 1))
    assert changes(TruncateReplica(t(0)))
    assert changes(SetLowWaterMark(t(0)))
    assert not changes(ReadFromReplica(t(0), 1, None))
