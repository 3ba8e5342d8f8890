"""What is asked, read and put back, by value (SD-17)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from zlib import crc32

import pytest

from waltz.limits import DAMAGED_RANGES_MAX
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.store.repairer import (
    REPAIR_BYTES_MAX,
    REPAIR_LOOK_SECONDS,
    REPAIR_PAUSE_SECONDS,
    DamageAccepted,
    RepairEffect,
    Repairer,
    RepairScope,
    ReplicaDamage,
    ReplicaMended,
    damage_text,
)
from waltz.store.requests import (
    AcceptDamage,
    AskCondition,
    Condition,
    DropReplica,
    ReadToRepair,
    RepairerRequest,
    RepairRecords,
    ReplicaAnswer,
    ReplicaLink,
    ReplicaSuspected,
    RequestAnswered,
    RequestFailed,
    SendRequest,
    TruncateReplica,
)
from waltz.types import NOTHING, ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import DamagedRange, SessionInfo

SESSION = SessionId(4)
A, B, C = (ReplicaLink(SESSION, ReplicaId(f"{name}:1"), 1) for name in "abc")
INFO = SessionInfo(SESSION, NOTHING, NOTHING)


def t(number: int) -> TransactionId:
    return TransactionId(number)


def batch(first: int, count: int, size: int = 0) -> RecordBatch:
    data = bytes(size)
    return pack_records(t(first), [NewRecord(b"\0" * 16, 0, data, crc32(data))] * count)


def ranges(*damaged: tuple[int, int]) -> tuple[DamagedRange, ...]:
    return tuple(DamagedRange(t(first), t(following)) for first, following in damaged)


def live(link: ReplicaLink, through: int = 99) -> RepairScope:
    return RepairScope(link, t(through), t(99), is_cut=False)


def abstaining(link: ReplicaLink, kept: int = 50) -> RepairScope:
    return RepairScope(link, NOTHING, t(kept), is_cut=True)


def answer(
    repairer: Repairer,
    link: ReplicaLink,
    request: RepairerRequest | TruncateReplica,
    answer: ReplicaAnswer = None,
) -> SendRequest | None:
    return repairer.take(RequestAnswered(link, request, answer), 0.0)


def fail(
    repairer: Repairer, link: ReplicaLink, request: RepairerRequest, reason: str = "refused"
) -> None:
    assert repairer.take(RequestFailed(link, request, reason), 0.0) is None


def cuts(effects: Sequence[RepairEffect]) -> list[TruncateReplica]:
    return [
        effect.request
        for effect in effects
        if isinstance(effect, SendRequest) and isinstance(effect.request, TruncateReplica)
    ]


class Ward:
    """A repairer and the scopes of three replicas; A is the patient."""

    def __init__(self, patient: RepairScope) -> None:
        self.repairer = Repairer()
        self.scopes = {A.replica_id: patient, B.replica_id: live(B), C.replica_id: live(C)}
        self.now = 0.0
        self.is_open = True
        if patient.is_cut:
            self.repairer.take_in(A, "no vote")
        else:
            self.repairer.watch(A)

    def step(self, scopes: Mapping[ReplicaId, RepairScope] | None = None) -> list[RepairEffect]:
        effects = self.repairer.step(scopes or self.scopes, self.now, is_open=self.is_open)
        self.repairer.check_invariants()
        return effects

    def is_idle(self) -> bool:
        return self.repairer.is_idle

    def asked(self) -> tuple[AskCondition, float]:
        [effect] = self.step()
        assert isinstance(effect, SendRequest)
        assert isinstance(effect.request, AskCondition)
        return effect.request, effect.delay_seconds

    def condition(self, *damaged: tuple[int, int]) -> list[RepairEffect]:
        """Let A answer the question that is asked next."""
        request, _ = self.asked()
        answer(self.repairer, A, request, Condition(INFO, t(99), ranges(*damaged)))
        return self.step()

    def read(self, effect: RepairEffect, count: int | None = None) -> RepairRecords:
        """Let the source answer."""
        assert isinstance(effect, SendRequest)
        assert isinstance(effect.request, ReadToRepair)
        count = effect.request.count_max if count is None else count
        found = batch(effect.request.first, count)
        sent = answer(self.repairer, effect.link, effect.request, found)
        assert sent is not None
        assert sent.link == A
        assert isinstance(sent.request, RepairRecords)
        return sent.request


def report(*damaged: tuple[int, int], left: tuple[tuple[int, int], ...] = ()) -> ReplicaDamage:
    return ReplicaDamage(A, ranges(*damaged), ranges(*left), 0)


def test_a_live_replica_is_asked_now_and_then() -> None:
    ward = Ward(live(A))
    request, delay_seconds = ward.asked()
    assert delay_seconds == REPAIR_LOOK_SECONDS
    assert ward.is_idle()
    assert not ward.repairer.is_repairing
    answer(ward.repairer, A, request, Condition(INFO, t(99), ()))
    assert not ward.is_idle()
    assert ward.asked()[1] == REPAIR_LOOK_SECONDS


def test_it_is_asked_at_once_when_a_read_failed_there_but_not_over_and_over() -> None:
    ward = Ward(live(A))
    late, _ = ward.asked()
    ward.repairer.take(ReplicaSuspected(A), 0.5)
    assert ward.is_idle()
    ward.now = 2.0
    ward.repairer.take(ReplicaSuspected(A), 2.0)
    soon, delay_seconds = ward.asked()
    assert delay_seconds == 0.0
    answer(ward.repairer, A, late, Condition(INFO, t(99), ranges((1, 2))))
    assert ward.step() == []
    answer(ward.repairer, A, soon, Condition(INFO, t(99), ()))
    assert ward.asked()[1] == REPAIR_LOOK_SECONDS


def test_damage_is_read_elsewhere_and_put_back_until_there_is_none() -> None:
    ward = Ward(abstaining(A))
    told, reading = ward.condition((3, 5), (9, 10))
    assert told == report((3, 5), (9, 10))
    assert reading == SendRequest(B, ReadToRepair(t(3), 2, A))
    repair = ward.read(reading, 1)
    assert ward.step() == []
    assert ward.repairer.is_repairing
    answer(ward.repairer, A, repair)
    [reading] = ward.step()
    assert reading == SendRequest(B, ReadToRepair(t(4), 1, A), REPAIR_PAUSE_SECONDS)
    answer(ward.repairer, A, ward.read(reading))
    [reading] = ward.step()
    answer(ward.repairer, A, ward.read(reading))
    told, mended = ward.condition()
    assert told == ReplicaDamage(A, (), (), 3)
    assert mended == ReplicaMended(A)
    assert ward.repairer.finding(A.replica_id) is None


def test_another_one_is_read_when_one_fails_or_answers_nonsense() -> None:
    ward = Ward(live(A))
    _, reading = ward.condition((3, 4))
    assert isinstance(reading, SendRequest)
    assert isinstance(reading.request, ReadToRepair)
    assert answer(ward.repairer, B, reading.request, batch(4, 1)) is None
    [again] = ward.step()
    assert again == SendRequest(C, ReadToRepair(t(3), 1, A))
    ward.repairer.forget(C.replica_id)
    assert not ward.repairer.is_repairing
    assert answer(ward.repairer, B, reading.request, batch(3, 1)) is None


def test_what_nobody_has_stays_and_is_told_once() -> None:
    ward = Ward(abstaining(A, kept=8))
    _, reading = ward.condition((3, 5), (9, 10))
    for _ in range(2):
        assert isinstance(reading, SendRequest)
        assert isinstance(reading.request, ReadToRepair)
        fail(ward.repairer, reading.link, reading.request)
        *_, reading = ward.step()
    assert reading == SendRequest(A, AskCondition(2), REPAIR_LOOK_SECONDS)
    assert ward.repairer.finding(A.replica_id) == (
        "does not vote: records 3-4,9-9 are damaged, and no replica gives 3-4;"
        " its version cannot take part with damage"
    )
    assert ward.step() == []
    answer(ward.repairer, A, AskCondition(2), Condition(INFO, t(99), ranges((3, 5))))
    [reading] = ward.step()[:1]
    assert isinstance(reading, SendRequest), "it is tried again, and not told again"


def test_what_the_other_has_damaged_as_well_is_not_read_there() -> None:
    ward = Ward(live(A))
    ward.repairer.watch(B)
    ward.repairer.watch(C)
    for effect in ward.step():
        assert isinstance(effect, SendRequest)
        assert isinstance(effect.request, AskCondition)
        damaged = ranges((3, 4)) if effect.link in (A, B) else ()
        condition = Condition(INFO, t(99), damaged)
        answer(ward.repairer, effect.link, effect.request, condition)
    sources = [
        effect.link
        for effect in ward.step()
        if isinstance(effect, SendRequest) and isinstance(effect.request, ReadToRepair)
    ]
    assert sources == [C, C]


def test_nothing_is_read_where_it_is_not_held_or_not_the_logs() -> None:
    ward = Ward(live(A))
    ward.scopes = {A.replica_id: live(A), B.replica_id: live(B, 2), C.replica_id: live(C, 3)}
    _, reading = ward.condition((3, 9), (100, 101))
    assert reading == SendRequest(C, ReadToRepair(t(3), 1, A))


def test_damage_beyond_what_is_kept_is_cut_away_once_the_rest_is_good() -> None:
    ward = Ward(abstaining(A, kept=4))
    _, reading = ward.condition((3, 7))
    repair = ward.read(reading)
    assert len(repair.batch) == 2
    answer(ward.repairer, A, repair)
    [cut] = cuts(ward.step())
    assert cut == TruncateReplica(t(4))
    assert cuts(ward.step()) == []
    answer(ward.repairer, A, cut, t(4))
    assert ward.condition()[-1] == ReplicaMended(A)


def test_a_refused_repair_is_tried_again_after_the_next_look() -> None:
    ward = Ward(live(A))
    _, reading = ward.condition((3, 4))
    fail(ward.repairer, A, ward.read(reading))
    told, later = ward.step()
    assert told == report((3, 4), left=((3, 4),))
    assert later == SendRequest(A, AskCondition(2), REPAIR_LOOK_SECONDS)
    answer(ward.repairer, A, AskCondition(2), Condition(INFO, t(99), ranges((3, 4))))
    assert SendRequest(B, ReadToRepair(t(3), 1, A)) in ward.step()


def test_a_replica_without_damage_that_does_not_vote_is_given_up() -> None:
    assert Ward(abstaining(A)).condition() == [DropReplica(A, "no vote")]
    ward = Ward(abstaining(A))
    fail(ward.repairer, A, ward.asked()[0], "unavailable")
    assert ward.step() == [DropReplica(A, "no vote; unavailable")]


def test_a_live_replica_that_does_not_answer_is_asked_again() -> None:
    ward = Ward(live(A))
    fail(ward.repairer, A, ward.asked()[0], "timed out")
    assert ward.asked()[1] == REPAIR_LOOK_SECONDS


def test_what_is_missing_before_the_session_is_open_is_no_news() -> None:
    ward = Ward(abstaining(A))
    ward.is_open = False
    ward.scopes = {A.replica_id: RepairScope(A, NOTHING, t(50), is_cut=False)}
    told, _ = ward.condition((3, 4))
    assert told == report((3, 4))


def test_a_batch_is_bounded() -> None:
    ward = Ward(live(A))
    _, reading = ward.condition((0, 20))
    assert isinstance(reading, SendRequest)
    assert isinstance(reading.request, ReadToRepair)
    sent = answer(ward.repairer, B, reading.request, batch(0, 20, REPAIR_BYTES_MAX // 10))
    assert sent is not None
    assert isinstance(sent.request, RepairRecords)
    assert 0 < len(sent.request.batch.block) <= REPAIR_BYTES_MAX


class Loss:
    """Three replicas that do not vote, with records 0 to `last` each; what each has damaged."""

    def __init__(
        self,
        *damaged: tuple[tuple[int, int], ...],
        last: int = 99,
        tolerant: bool = True,
        is_cut: bool = False,
    ) -> None:
        self.repairer = Repairer()
        kept = t(90) if is_cut else t(last)
        self.scopes = {
            each.replica_id: RepairScope(each, kept, kept, is_cut=is_cut) for each in (A, B, C)
        }
        self.damaged = dict(zip((A, B, C), damaged, strict=True))
        for link in self.damaged:
            self.repairer.take_in(link, "no vote", is_tolerant=tolerant)
        self.step()
        for link, found in self.damaged.items():
            condition = Condition(INFO, t(last), ranges(*found))
            answer(self.repairer, link, AskCondition(1), condition)

    def step(self, *silent: ReplicaId) -> list[RepairEffect]:
        effects = self.repairer.step(self.scopes, 0.0, is_open=False, silent=silent)
        self.repairer.check_invariants()
        return effects

    def accepting(self, *silent: ReplicaId) -> list[tuple[ReplicaLink, AcceptDamage]]:
        return [
            (effect.link, effect.request)
            for effect in self.step(*silent)
            if isinstance(effect, SendRequest) and isinstance(effect.request, AcceptDamage)
        ]


LOST = AcceptDamage(ranges((3, 5), (9, 10)))


def test_damage_that_all_have_is_accepted_on_each_which_then_votes() -> None:
    """F-20."""
    loss = Loss(((3, 5), (9, 10)), ((3, 5), (9, 10)), ((3, 5), (9, 10)))
    requests = loss.accepting()
    assert requests == [(A, LOST), (B, LOST), (C, LOST)]
    assert loss.repairer.is_repairing
    for link, request in requests:
        answer(loss.repairer, link, request)
    accepted = [effect for effect in loss.step() if isinstance(effect, DamageAccepted)]
    assert accepted == [DamageAccepted(each) for each in (A, B, C)]
    assert loss.repairer.finding(A.replica_id) == (
        "records 3-4,9-9 are damaged, and no replica gives 3-4,9-9"
    )
    loss.repairer.watch(A)
    assert loss.accepting() == []


def test_nothing_is_accepted_while_one_may_have_it_that_has_not_said_so() -> None:
    loss = Loss(((3, 5),), ((3, 5),), ((3, 5),))
    silent = ReplicaId("d:1")
    assert loss.accepting(silent) == []
    assert loss.repairer.finding(A.replica_id) == (
        "does not vote: records 3-4 are damaged, and no replica gives 3-4; d:1 may have them, and"
        " has not said so"
    )
    assert len(loss.accepting()) == 3


def test_nothing_is_accepted_that_another_one_holds_although_it_cannot_be_read_there_now() -> None:
    loss = Loss(((3, 5),), ((3, 5),), ())
    for effect in loss.step():
        if isinstance(effect, SendRequest) and isinstance(effect.request, ReadToRepair):
            assert effect.link == C
            fail(loss.repairer, effect.link, effect.request)
    assert loss.accepting() == []
    assert "no replica gives 3-4" in str(loss.repairer.finding(A.replica_id))


def test_nothing_is_accepted_at_the_end_of_a_log() -> None:
    lost = ((3, 5), (99, 100))
    loss = Loss(lost, lost, lost)
    assert loss.accepting() == []
    assert "nobody knows where its log ended" in str(loss.repairer.finding(A.replica_id))


def test_nothing_is_accepted_by_an_older_version() -> None:
    loss = Loss(((3, 5),), ((3, 5),), ((3, 5),), tolerant=False)
    assert loss.accepting() == []
    assert "its version cannot" in str(loss.repairer.finding(A.replica_id))


def test_a_live_replica_whose_damage_nobody_can_mend_costs_nothing_until_somebody_answers() -> None:
    """F-20: it stays so for good; each step of a session that takes appends would look at it."""
    ward = Ward(live(A))
    ward.scopes = {A.replica_id: live(A)}
    told, later = ward.condition((3, 4))
    assert told == report((3, 4), left=((3, 4),))
    assert isinstance(later, SendRequest)
    assert ward.is_idle()
    ward.scopes[B.replica_id] = live(B)
    ward.repairer.watch(B)
    assert not ward.is_idle()
    assert SendRequest(B, ReadToRepair(t(3), 1, A)) in ward.step()


def test_nothing_is_accepted_of_a_list_that_may_go_on() -> None:
    """An answer has room for so many ranges: what follows the last one is not known."""
    lost = tuple((2 * n, 2 * n + 1) for n in range(DAMAGED_RANGES_MAX))
    loss = Loss(lost, lost, lost, last=3 * DAMAGED_RANGES_MAX)
    assert loss.accepting() == []
    loss = Loss(lost[1:], lost[1:], lost[1:], last=3 * DAMAGED_RANGES_MAX)
    assert len(loss.accepting()) == 3


def test_what_is_damaged_beyond_the_mark_is_cut_once_the_rest_is_accepted() -> None:
    lost = ((3, 5), (95, 96))
    loss = Loss(lost, ((3, 5),), ((3, 5),), is_cut=True)
    [(_, request), *_] = loss.accepting()
    assert request == AcceptDamage(ranges((3, 5)))
    answer(loss.repairer, A, request)
    [cut] = cuts(loss.step())
    assert cut == TruncateReplica(t(90))
    answer(loss.repairer, A, cut, t(90))
    loss.step()
    answer(loss.repairer, A, AskCondition(2), Condition(INFO, t(90), ranges((3, 5))))
    assert DamageAccepted(A) in loss.step()


def test_a_replica_that_refuses_is_asked_again_after_the_next_look() -> None:
    loss = Loss(((3, 5),), ((3, 5),), ((3, 5),))
    [(_, request), *_] = loss.accepting()
    fail(loss.repairer, A, request)
    assert loss.accepting() == []
    answer(loss.repairer, A, AskCondition(2), Condition(INFO, t(99), ranges((3, 5))))
    assert [link for link, _ in loss.accepting()] == [A]


def test_one_that_does_not_vote_with_what_it_accepted_is_not_asked_without_end() -> None:
    loss = Loss(((3, 5),), ((3, 5),), ((3, 5),))
    [(_, request), *_] = loss.accepting()
    answer(loss.repairer, A, request)
    assert DamageAccepted(A) in loss.step()
    loss.repairer.take_in(A, "no vote", is_tolerant=True)
    [asked] = [
        effect for effect in loss.step() if isinstance(effect, SendRequest) and effect.link == A
    ]
    assert asked == SendRequest(A, AskCondition(1), REPAIR_LOOK_SECONDS)


@pytest.mark.parametrize(
    ("damaged", "text"),
    [
        (((3, 5),), "3-4"),
        (((3, 5), (7, 8)), "3-4,7-7"),
        (tuple((2 * n, 2 * n + 1) for n in range(7)), "0-0,2-2,4-4,6-6,8-8 and 2 more"),
    ],
)
def test_ranges_are_told_by_first_and_last(damaged: tuple[tuple[int, int], ...], text: str) -> None:
    assert damage_text(ranges(*damaged)) == text
