"""What became of an append: who may say so, from when on, and how far is looked."""

from __future__ import annotations

import pytest

from tests.server.builders import (
    PARTITION,
    append,
    batch,
    mount,
    peer,
    received,
    record,
    request_id,
    tid,
    together,
)
from tests.server.partition_bench import Bench, opened
from waltz.record import pack_records
from waltz.server.appends import outcomes
from waltz.server.appends.outcomes import place_of
from waltz.server.clients.client_connection import answer_without_partition
from waltz.server.server_partition_events import (
    ConnectionLost,
    PartitionRevoked,
    RecordsRead,
    StoreReadFailed,
)
from waltz.store.events import AppendsFailed, StoreClosed
from waltz.wire.batch_protocol import FeedBatch, Outcome, OutcomeRequest, OutcomeResponse


def ask(sequence: int = 2, client: int = 7, generation: int = 1, after: int = -1) -> OutcomeRequest:
    return OutcomeRequest(request_id(client, sequence, generation), tid(after))


def answer(request: OutcomeRequest, outcome: Outcome, at: int = -1) -> OutcomeResponse:
    return OutcomeResponse(request.request_id, outcome, tid(at))


def mounted(mark: int = -1, generation: int = 1) -> Bench:
    made = Bench(mark, generation)
    made.say(mount(mark, generation=generation), version=5)
    return made


def hear(made: Bench, *messages: OutcomeRequest) -> list[object]:
    return made.say(*messages, version=5)


def others(heard: dict[int, list[object]]) -> list[object]:
    return [each for each in heard.get(1, []) if not isinstance(each, FeedBatch)]


def test_an_append_that_is_in_the_log_is_found_there() -> None:
    """UA-30."""
    made = mounted()
    made.say(together(append(2), append(3)), version=5)
    made.commit()
    assert hear(made, ask(3)) == [answer(ask(3), Outcome.COMMITTED, 1)]
    assert hear(made, ask(2, after=-5)) == [answer(ask(2), Outcome.COMMITTED, 0)]


def test_no_answer_before_everything_that_came_before_is_decided() -> None:
    """UA-30: the barrier. Not in the log yet does not mean that it never will be."""
    made = mounted()
    made.say(together(append(2, write=[1]), append(3, write=[1])), version=5)
    assert hear(made, ask(2), ask(3)) == []
    heard = others(made.commit(1))
    assert heard[1:] == [
        answer(ask(2), Outcome.COMMITTED, 0),
        answer(ask(3), Outcome.NOT_COMMITTED, 0),
    ], "refused for its lock once the first was decided"


@pytest.mark.parametrize("is_committed", [False, True])
def test_the_answer_comes_with_the_decision(is_committed: bool) -> None:
    made = mounted()
    made.say(together(append(2)), version=5)
    assert hear(made, ask(2)) == []
    if is_committed:
        assert answer(ask(2), Outcome.COMMITTED, 0) in others(made.commit())
    else:
        made.step(StoreClosed("a replica was lost"))
        heard = others(made.step(AppendsFailed(1), opened(-1, session=1)))
        assert heard[-1] == answer(ask(2), Outcome.NOT_COMMITTED)


def test_a_connection_that_does_not_speak_for_its_client_gets_no_final_answer() -> None:
    """An older connection, or an unmounted one: the append may still be on its way on another."""
    made = mounted()
    newer = peer(2, sequence=1, version=5)
    made.step(received(newer, mount(connection_sequence=1)))
    assert hear(made, ask(2)) == [answer(ask(2), Outcome.UNDECIDED)]
    assert made.step(received(newer, ask(2)))[2] == [answer(ask(2), Outcome.NOT_COMMITTED)]
    late = made.say(together(append(2)), version=5)
    assert late, "what an older connection brings now is refused, not appended"
    assert made.stored() == []


def test_of_a_client_that_is_mounted_elsewhere_only_what_is_in_the_log_is_known() -> None:
    made = mounted()
    made.say(mount(client=8), connection=2, client=8, version=5)
    made.say(together(append(2, client=8)), connection=2, client=8, version=5)
    made.commit()
    assert hear(made, ask(2, client=8)) == [answer(ask(2, client=8), Outcome.COMMITTED, 0)]
    assert hear(made, ask(3, client=8)) == [answer(ask(3, client=8), Outcome.UNDECIDED)]
    made.step(ConnectionLost(2))
    assert hear(made, ask(3, client=8)) == [answer(ask(3, client=8), Outcome.NOT_COMMITTED, 0)]


def test_generations_before_are_over_and_those_after_are_not_known_here() -> None:
    """UA-30: the fence. Whoever had the partition before cannot commit any more."""
    made = mounted(generation=2)
    assert hear(made, ask(2, generation=1)) == [answer(ask(2, generation=1), Outcome.NOT_COMMITTED)]
    assert hear(made, ask(2, generation=3)) == [answer(ask(2, generation=3), Outcome.UNDECIDED)]
    assert Bench(None, 2).say(ask(2), version=5) == [answer(ask(2), Outcome.UNDECIDED)]
    assert answer_without_partition(ask(2)) == answer(ask(2), Outcome.UNDECIDED)


def test_old_records_are_read_and_looked_through_in_bounded_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outcomes, "OUTCOME_RECORDS_MAX", 6)
    monkeypatch.setattr(outcomes, "OUTCOME_RECORDS_PER_STEP_MAX", 2)
    made = mounted(9)
    assert hear(made, ask(99)) == []
    (fetch,) = made.reads
    assert (fetch.first_transaction_id, fetch.count_max) == (0, 10)
    assert made.step(RecordsRead(tid(0), batch(0, 10))) == {}
    assert made.step() == {}
    assert made.step() == {1: [answer(ask(99), Outcome.NOT_FOUND, 5)]}
    assert hear(made, ask(99, after=5)) == []
    assert made.step() == {1: [answer(ask(99), Outcome.NOT_COMMITTED, 9)]}
    assert hear(made, ask(7, after=5)) == [answer(ask(7), Outcome.COMMITTED, 7)]


def test_what_cannot_be_read_may_be_asked_again() -> None:
    made = mounted(9)
    hear(made, ask(99))
    assert made.step(StoreReadFailed(tid(0), "no replica")) == {
        1: [answer(ask(99), Outcome.UNDECIDED)]
    }


def test_questions_end_with_their_connection_and_with_the_partition() -> None:
    made = mounted(9)
    made.say(mount(9, client=8), ask(1, client=8), connection=2, client=8, version=5)
    hear(made, ask(99))
    made.step(ConnectionLost(2))
    assert made.step(PartitionRevoked(comes_back=False)) == {
        1: [answer(ask(99), Outcome.UNDECIDED)]
    }
    behind = mounted()
    behind.say(together(append(2)), version=5)
    assert hear(behind, ask(2)) == []
    assert behind.step(PartitionRevoked(comes_back=False)) == {
        1: [answer(ask(2), Outcome.UNDECIDED)]
    }


def test_the_place_of_a_request_is_found_by_all_of_its_numbers() -> None:
    records = pack_records(tid(5), [record(1, 8), record(2), record(1)])
    assert place_of(records, request_id(7, 1)) == 7
    assert place_of(records, request_id(8, 2)) is None
    assert place_of(batch(0, 0), request_id()) is None
    assert request_id().partition_id == PARTITION
