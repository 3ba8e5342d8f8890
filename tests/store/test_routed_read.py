"""One read: who is asked, and when another one as well. Rows ST-01, ST-16; hazards R6, R7, R9."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from waltz.limits import READ_SECONDS_MAX
from waltz.record import NewRecord, RecordBatch, empty_batch, pack_records
from waltz.store.read_router import ReadRouter
from waltz.store.requests import ReplicaLink
from waltz.store.routed_read import (
    READ_LOOK_SECONDS,
    HolderFailed,
    HoldersSeen,
    ReadEvent,
    RecordsArrived,
    RoutedRead,
)
from waltz.types import ReplicaId, SessionId, TransactionId

A, B, C = (ReplicaLink(SessionId(3), ReplicaId(f"{name}:1"), 1) for name in "abc")
FIRST = TransactionId(5)


def records(first: int = FIRST) -> RecordBatch:
    return pack_records(TransactionId(first), [NewRecord(bytes(16), 0, b"", 0)] * 2)


class Reading:
    def __init__(self, *holders: ReplicaLink, router: ReadRouter | None = None) -> None:
        self.holders = holders
        self.now = 100.0
        self.router = router or ReadRouter()
        self.read = RoutedRead(self.router, FIRST, self.now)
        self.asked = self.step()

    def step(self, *events: ReadEvent, seconds: float = 0.0) -> list[ReplicaLink]:
        self.now += seconds
        effects = self.read.step([HoldersSeen(self.holders), *events], self.now)
        self.read.check_invariants()
        if (deadline := self.read.deadline) is not None:
            assert deadline > self.now, "it would spin"
        return [effect.link for effect in effects]

    def at_deadline(self) -> list[ReplicaLink]:
        assert self.read.deadline is not None
        self.now = self.read.deadline
        return self.step()


def test_the_first_good_answer_wins_and_the_late_one_is_dropped() -> None:
    reading = Reading(A, B, C)
    assert reading.asked == [A]
    assert reading.at_deadline() == [B]
    assert reading.step(RecordsArrived(B, records()), RecordsArrived(A, records())) == []
    assert reading.read.batch == records()
    assert reading.read.deadline is None


def test_one_that_answers_in_its_usual_time_is_the_only_one_asked() -> None:
    reading = Reading(A, B, C)
    assert reading.step(RecordsArrived(A, records()), seconds=0.005) == []
    assert reading.read.batch == records()


def test_the_late_one_of_two_may_still_win() -> None:
    reading = Reading(A, B)
    assert reading.at_deadline() == [B]
    assert reading.step(HolderFailed(B, "damaged", True)) == []
    reading.step(RecordsArrived(A, records()), seconds=3.0)
    assert reading.read.batch == records()


def test_a_hung_replica_costs_a_moment_once_and_less_later() -> None:
    """R6: it is charged for the wait, and asked ever less."""
    router = ReadRouter()
    asked = []
    for _ in range(60):
        reading = Reading(A, B, C, router=router)
        asked += reading.asked
        while reading.asked == [A]:
            reading.asked = reading.at_deadline()
        reading.step(RecordsArrived(reading.asked[0], records()), seconds=0.002)
        assert reading.read.batch is not None
        assert reading.now - 100.0 < 2.0
    assert asked.count(A) <= 6


@pytest.mark.parametrize(
    "answer",
    [
        HolderFailed(A, "transaction 5 is damaged", True),
        HolderFailed(A, "no answer in 10 s", False),
        RecordsArrived(A, empty_batch(FIRST)),
        RecordsArrived(A, records(FIRST + 1)),
    ],
)
def test_another_one_is_asked_at_once_after_a_failure(answer: ReadEvent) -> None:
    reading = Reading(A, B)
    assert reading.step(answer) == [B]
    reading.step(RecordsArrived(B, records()))
    assert reading.read.batch == records()
    assert Reading(A, B, router=reading.router).asked == [B]


def test_a_refusal_of_a_session_that_is_over_says_nothing_about_the_replica() -> None:
    reading = Reading(A)
    reading.holders = later = tuple(link._replace(session_id=SessionId(4)) for link in (A,))
    assert reading.step(HolderFailed(A, "session id has changed", True)) == [*later]
    reading.step(RecordsArrived(later[0], records()))
    assert reading.read.batch == records()


def test_when_all_who_hold_it_cannot_read_it_there_is_an_error_at_once_and_none_later() -> None:
    """R9: the next read, a while later, finds what was repaired meanwhile."""
    reading = Reading(A, B)
    assert reading.step(HolderFailed(A, "damaged", True)) == [B]
    assert reading.step(HolderFailed(B, "missing", True)) == []
    failure = reading.read.failure
    assert failure is not None
    assert "a:1: damaged" in failure
    assert "b:1: missing" in failure
    assert reading.read.is_unreadable
    again = Reading(A, B, router=reading.router)
    assert again.asked == []
    while not again.asked:
        again.asked = again.at_deadline()
    again.step(RecordsArrived(again.asked[0], records()))
    assert again.read.batch == records()
    assert again.now - 100.0 < READ_SECONDS_MAX


def test_while_nobody_can_be_asked_it_looks_now_and_then_and_gives_up_in_time() -> None:
    """R7: no spinning; and the one that catches up is found."""
    reading = Reading()
    steps = 0
    while reading.read.failure is None:
        assert reading.at_deadline() == []
        steps += 1
    assert steps <= READ_SECONDS_MAX / READ_LOOK_SECONDS + 2
    assert "nobody to ask" in reading.read.failure
    waiting = Reading()
    waiting.holders = (C,)
    assert waiting.at_deadline() == [C]


def test_nobody_is_asked_twice_at_a_time_and_all_who_hang_are_named() -> None:
    """R6: all replicas hang."""
    reading = Reading(A, B)
    asked: Sequence[ReplicaLink] = reading.asked
    while reading.read.failure is None:
        asked = [*asked, *reading.at_deadline()]
    assert asked == [A, B]
    assert reading.now == 100.0 + READ_SECONDS_MAX
    assert "a:1 has not answered; b:1 has not answered" in reading.read.failure
    assert not reading.read.is_unreadable
