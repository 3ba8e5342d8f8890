"""Which records of which replica count, before and after the mark is known (SD-17)."""

from __future__ import annotations

from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.store.recovery import Recovery
from waltz.store.repair_scope import scope_of_abstaining, scopes, silent
from waltz.store.repairer import Repairer, RepairScope
from waltz.store.replica_session import ReplicaSession
from waltz.store.requests import (
    AskCondition,
    AskMaxTransactionId,
    AskSessionInfo,
    Condition,
    ReplicaAnswer,
    ReplicaConnected,
    ReplicaRequest,
    RequestAnswered,
    TruncateReplica,
)
from waltz.types import NOTHING, Generation, ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import SessionInfo

A, B, C = (ReplicaId(f"{name}:1") for name in "abc")
LAST, NOW = SessionId(3), SessionId(4)
INFO = SessionInfo(LAST, TransactionId(5), TransactionId(5))


def t(number: int) -> TransactionId:
    return TransactionId(number)


class Ward:
    """Three replicas of the last session; C was written off at 7 before it. A abstains."""

    def __init__(self, *, closed: bool = False, info: SessionInfo = INFO, last: int = 9) -> None:
        open_state, closed_state = ReplicaState(LAST, None), ReplicaState(SessionId(2), t(7))
        self.states = {A: closed_state if closed else open_state, B: open_state, C: open_state}
        self.recovery = Recovery(PartitionMetadata(Generation(1), NOW, self.states), 0, (A, B, C))
        self.replicas = {each: ReplicaSession(NOW, each) for each in (A, B, C)}
        self.repairer = Repairer()
        self.abstain(A)
        self.say(A, Condition(info, t(last), ()))

    def connect(self, replica_id: ReplicaId, *, repairable: bool = False) -> None:
        replica = self.replicas[replica_id]
        replica.connected(ReplicaConnected(replica.link, repairable))

    def abstain(self, replica_id: ReplicaId) -> None:
        self.connect(replica_id, repairable=True)
        self.replicas[replica_id].abstain()
        self.repairer.take_in(self.replicas[replica_id].link, "no vote")

    def say(self, replica_id: ReplicaId, condition: Condition) -> None:
        self.repairer.step(self.found(), 0.0, is_open=False)
        link = self.replicas[replica_id].link
        self.repairer.take(RequestAnswered(link, AskCondition(1), condition), 0.0)

    def recover(self, replica_id: ReplicaId) -> None:
        self.connect(replica_id)
        self.recovery.step([ReplicaConnected(self.replicas[replica_id].link)], 0.0)

    def answer(self, replica_id: ReplicaId, request: ReplicaRequest, answer: ReplicaAnswer) -> None:
        link = self.replicas[replica_id].link
        self.recovery.step([RequestAnswered(link, request, answer)], 0.0)

    def vote(self, replica_id: ReplicaId, last: int) -> None:
        self.recover(replica_id)
        self.answer(replica_id, AskSessionInfo(), INFO)
        self.answer(replica_id, AskMaxTransactionId(), t(last))

    def found(self, committed: int | None = None) -> dict[ReplicaId, RepairScope]:
        mark = None if committed is None else t(committed)
        return scopes(self.replicas.values(), self.states, self.recovery, self.repairer, mark)

    def silent(self) -> tuple[ReplicaId, ...]:
        return silent(self.replicas.values(), self.states, self.recovery, self.repairer)

    def scope(self) -> tuple[int, int, bool]:
        return self.found()[A][1:]


def test_what_cannot_be_asked_has_no_scope() -> None:
    assert [*Ward().found()] == [A]


def test_before_the_mark_is_known_the_replicas_of_the_last_session_help_each_other() -> None:
    ward = Ward()
    assert ward.scope() == (9, 9, False)
    ward.vote(B, 8)
    assert ward.found()[B] == RepairScope(ward.replicas[B].link, t(8), NOTHING, is_cut=False)
    assert ward.scope() == (9, 9, False)


def test_once_the_mark_is_known_it_says_what_is_kept() -> None:
    ward = Ward()
    ward.vote(B, 8)
    ward.vote(C, 8)
    assert ward.recovery.high_water_mark == 8
    assert ward.scope() == (8, 8, True)
    assert ward.found()[B].supplies_through == 8


def test_one_that_lost_a_part_of_its_log_gives_nothing_away() -> None:
    assert Ward(last=4).scope() == (NOTHING, 4, False)


def test_one_that_was_written_off_is_cut_to_its_mark_and_gives_what_is_before_it() -> None:
    info = SessionInfo(SessionId(2), t(5), t(5))
    assert Ward(closed=True, info=info).scope() == (7, 7, True)
    assert Ward(closed=True, info=info, last=6).scope() == (6, 7, True)
    assert Ward(closed=True, info=info, last=4).scope() == (NOTHING, 7, True), "a part is lost"


def test_one_that_missed_a_session_is_cut_to_its_own_mark_and_gives_what_is_before_it() -> None:
    assert Ward(info=SessionInfo(SessionId(2), t(5), t(5))).scope() == (5, 5, True)


def test_one_that_does_not_vote_gives_what_it_was_cut_to() -> None:
    """F-20: it may be the only one that has a record intact."""
    ward = Ward()
    ward.recover(B)
    ward.answer(B, AskSessionInfo(), SessionInfo(SessionId(2), t(5), t(5)))
    assert ward.found()[B].supplies_through == NOTHING
    ward.answer(B, TruncateReplica(t(5)), t(5))
    assert ward.found()[B].supplies_through == 5


def test_all_who_may_have_a_record_intact_are_waited_for_until_the_mark_is_known() -> None:
    ward = Ward()
    assert ward.silent() == (B, C)
    ward.vote(B, 8)
    assert ward.silent() == (C,)
    ward.abstain(C)
    assert ward.silent() == (C,), "it has not said what is damaged"
    ward.say(C, Condition(INFO, t(8), ()))
    assert ward.silent() == ()


def test_one_of_the_last_session_that_is_assigned_no_more_is_waited_for() -> None:
    ward = Ward()
    ward.vote(B, 8)
    ward.states[ReplicaId("d:1")] = ReplicaState(LAST, None)
    assert ward.silent() == (C, "d:1")


def test_once_the_mark_is_known_nobody_is_waited_for() -> None:
    ward = Ward()
    ward.vote(B, 8)
    ward.vote(C, 8)
    assert ward.recovery.high_water_mark == 8
    ward.states[ReplicaId("d:1")] = ReplicaState(LAST, None)
    assert ward.silent() == ()


def test_a_live_replica_gives_and_keeps_what_is_committed() -> None:
    ward = Ward()
    ward.connect(B)
    ward.replicas[B].touch()
    ward.replicas[B].admit(t(12))
    assert ward.found(committed=11)[B] == RepairScope(
        ward.replicas[B].link, t(11), t(11), is_cut=False
    )


def test_of_a_partition_that_was_never_seen_nothing_is_kept() -> None:
    link = ReplicaSession(NOW, A).link
    scope = scope_of_abstaining(link, Condition(INFO, t(9), ()), {}, NOTHING)
    assert scope == RepairScope(link, NOTHING, NOTHING, is_cut=False)
