"""Questions about outcomes, until the answer is definite."""

from __future__ import annotations

import pytest

from tests.client.partition_world import ME, OTHER, World, only, request, sent, submission
from waltz.client.partitions.client_partition_events import (
    HighWaterMarkLoaded,
    OutcomeWanted,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.outcome_questions import (
    OUTCOME_RETRY_SECONDS,
    OutcomeKnown,
    OutcomeQuestions,
    OutcomeRefused,
)
from waltz.types import TransactionId
from waltz.wire.batch_protocol import AppendBatch, Outcome, OutcomeRequest, OutcomeResponse
from waltz.wire.client_protocol import FlushRequest, MountRequest, MountResponse, MountState

NONE = TransactionId(-1)
R = request(2)


def response(outcome: Outcome, at: int = -1) -> OutcomeResponse:
    return OutcomeResponse(R, outcome, TransactionId(at))


def asked() -> OutcomeQuestions:
    made = OutcomeQuestions()
    made.want(R, NONE)
    made.want(R, TransactionId(5))
    assert made.ask(0.0, knows_batches=True) == [OutcomeRequest(R, NONE)]
    return made


@pytest.mark.parametrize(
    ("outcome", "at", "known"),
    [(Outcome.COMMITTED, 7, TransactionId(7)), (Outcome.NOT_COMMITTED, 9, None)],
)
def test_a_definite_answer_ends_the_question(
    outcome: Outcome, at: int, known: TransactionId | None
) -> None:
    """UA-30."""
    made = asked()
    assert made.receive(response(outcome, at), 0.0) == OutcomeKnown(R, known)
    assert made.receive(response(outcome, at), 0.0) is None
    assert (made.after, made.ask(99.0, knows_batches=True), made.deadline) == ({}, [], None)


@pytest.mark.parametrize("earlier", [Outcome.UNDECIDED, Outcome.NOT_FOUND])
def test_an_answer_that_comes_twice_is_definite_if_the_later_one_is(earlier: Outcome) -> None:
    made = asked()
    assert made.receive(response(earlier, 3), 0.0) is None
    assert made.receive(response(Outcome.COMMITTED, 7), 0.0) == OutcomeKnown(R, TransactionId(7))
    assert (made.after, made.ask(99.0, knows_batches=True), made.deadline) == ({}, [], None)


def test_a_search_goes_on_where_it_ended() -> None:
    made = asked()
    assert made.receive(response(Outcome.NOT_FOUND, 100), 0.0) is None
    assert made.ask(0.0, knows_batches=True) == [OutcomeRequest(R, TransactionId(100))]


def test_what_is_undecided_is_asked_again_after_a_while() -> None:
    made = asked()
    assert made.receive(response(Outcome.UNDECIDED), 1.0) is None
    assert made.deadline == 1.0 + OUTCOME_RETRY_SECONDS
    assert made.ask(1.0, knows_batches=True) == []
    assert made.ask(1.0 + OUTCOME_RETRY_SECONDS, knows_batches=True) == [OutcomeRequest(R, NONE)]
    assert made.deadline is None


def test_a_new_connection_is_asked_everything_anew() -> None:
    made = asked()
    made.receive(response(Outcome.UNDECIDED), 1.0)
    made.reset()
    assert made.ask(1.0, knows_batches=True) == [OutcomeRequest(R, NONE)]
    assert len(made.after) == 1


def test_a_server_without_a_word_for_it_is_not_asked() -> None:
    made = OutcomeQuestions()
    made.want(R, NONE)
    (refused,) = made.ask(0.0, knows_batches=False)
    assert isinstance(refused, OutcomeRefused)
    assert "version 4" in str(refused.error)
    assert not made.after


def mounted(*, knows_batches: bool = True) -> World:
    made = World()
    made.step(StreamOpened(0, knows_batches))
    made.step(HighWaterMarkLoaded(NONE))
    made.hear(MountResponse(request(1), MountState.READY))
    return made


def test_the_question_follows_the_append_on_its_stream_and_is_asked_again_on_the_next() -> None:
    """UA-30: behind the append no answer can be early."""
    made = mounted()
    mine = submission()
    messages = sent(made.step(OutcomeWanted(request(2, client_id=OTHER), NONE), Submitted([mine])))
    assert [type(each) for each in messages] == [AppendBatch, OutcomeRequest]
    assert mine.context.request_id == R
    assert mine.context.executed_at == -1
    assert sent(made.step(OutcomeWanted(R, NONE))) == [OutcomeRequest(R, NONE)]
    assert [type(each) for each in sent(made.step(StreamOpened(1, knows_batches=True)))] == [
        MountRequest
    ]
    again = sent(made.hear(MountResponse(request(3), MountState.READY), stream=1))
    assert [each for each in again if isinstance(each, OutcomeRequest)] == [
        OutcomeRequest(request(2, client_id=OTHER), NONE),
        OutcomeRequest(R, NONE),
    ]
    assert isinstance(again[0], FlushRequest)
    effects = made.hear(response(Outcome.COMMITTED, 3), stream=1)
    assert only(effects, OutcomeKnown) == [OutcomeKnown(R, TransactionId(3))]


def test_what_was_never_sent_and_what_a_server_cannot_say_is_refused() -> None:
    made = mounted()
    (refused,) = made.step(OutcomeWanted(request(99), NONE))
    assert isinstance(refused, OutcomeRefused)
    assert "never sent" in str(refused.error)
    older = mounted(knows_batches=False)
    (refused,) = older.step(OutcomeWanted(request(99, client_id=OTHER), NONE))
    assert isinstance(refused, OutcomeRefused)
    assert "upgrade the servers" in str(refused.error)
    assert request(99).client_id == ME


def test_time_brings_an_undecided_question_back() -> None:
    made = mounted()
    made.step(Submitted([submission()]), OutcomeWanted(R, NONE))
    made.hear(response(Outcome.UNDECIDED))
    assert sent(made.sleep(OUTCOME_RETRY_SECONDS)) == [OutcomeRequest(R, NONE)]
