"""Holds: a partition that is held says what one says that has heard of no further commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.builders import (
    append,
    data_request,
    feed_request,
    flush,
    mark_request,
    mount,
    peer,
    received,
    request_id,
    tid,
)
from tests.server.partition_bench import Bench, feed_of, mounted, opened
from waltz.limits import HOLD_PAUSE_SECONDS, HOLD_SECONDS_MAX
from waltz.record import pack_records
from waltz.server.appends.stage_seconds import StageSeconds
from waltz.server.hold import NO_SUCH_HOLD, TIME_IS_UP
from waltz.server.server_partition_events import (
    ConnectionLost,
    HoldBegun,
    HoldEnded,
    HoldReleased,
    HoldRequested,
    PartitionRevoked,
    ReleaseRequested,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed
from waltz.types import SessionId, TransactionId
from waltz.wire.batch_protocol import (
    AppendRejected,
    DataWanted,
    FeedBatch,
    HeaderBlock,
    HeadersRequest,
    Outcome,
    OutcomeRequest,
    OutcomeResponse,
    ReadRequest,
    RecordBlock,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AddPreferredPartitionResponse,
    CheckStorageConnectivityResponse,
    ClientMessage,
    FeedData,
    FeedSuspended,
    FlushResponse,
    HighWaterMarkResponse,
    LockFailure,
    MountResponse,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthResponse,
    TransactionDataResponse,
)
from waltz.wire.clients_protocol import ClientsResponse
from waltz.wire.cut_protocol import HoldAnswer, HoldReleaseAnswer
from waltz.wire.discovery_protocol import (
    ClientIdResponse,
    GrowthReport,
    PartitionProblems,
    Topology,
)
from waltz.wire.history_protocol import HistoriesAnswer, MarksAnswer
from waltz.wire.lifecycle_protocol import LIFECYCLE_MESSAGES
from waltz.wire.message import Audience, Message
from waltz.wire.report_protocol import (
    CoordinatorLocation,
    DurationsReport,
    HotLocksReport,
    PartitionReports,
    RefusalsReport,
)

TOOL = 50
"""The connection of the tool that holds."""

SECONDS = HOLD_SECONDS_MAX

NO_SECONDS = StageSeconds()


def hold(bench: Bench, hold_id: int = 1, seconds: float = SECONDS) -> HoldBegun:
    bench.others.clear()
    bench.step(HoldRequested(hold_id, TOOL, seconds))
    (answer,) = bench.others
    assert isinstance(answer, HoldBegun)
    return answer


def released(bench: Bench, hold_id: int = 1, connection: int = TOOL) -> str | None:
    bench.others.clear()
    bench.step(HoldReleased(hold_id, connection))
    answers = [each for each in bench.others if isinstance(each, HoldEnded)]
    (answer,) = answers
    return answer.broken_by


# What is held


def test_a_commit_is_announced_when_the_hold_is_released() -> None:
    bench = mounted(4)
    assert hold(bench) == HoldBegun(1, None, SessionId(0), tid(4))
    bench.say(append(5, 4))
    assert bench.commit() == {}
    assert bench.machine.high_water_mark == 4
    bench.others.clear()
    assert bench.step(HoldReleased(1, TOOL)) == {1: feed_of([5], 5)}
    assert HoldEnded(1, None) in bench.others
    assert bench.machine.high_water_mark == 5


def test_a_hold_ends_with_its_time_and_says_so() -> None:
    bench = mounted(4)
    hold(bench)
    bench.say(append(5, 4))
    bench.commit()
    assert bench.machine.deadline == SECONDS
    bench.now = SECONDS
    assert bench.step() == {1: feed_of([5], 5)}
    assert released(bench) == TIME_IS_UP
    assert released(bench) == NO_SUCH_HOLD


def test_an_event_after_its_time_finds_the_hold_ended() -> None:
    """A timer may be late; a commit that comes before it is announced after those kept back."""
    bench = mounted(4)
    hold(bench)
    bench.say(append(5, 4), append(6, 4))
    bench.commit(1)
    bench.now = SECONDS * 2
    assert bench.commit(1) == {1: [*feed_of([5], 5), *feed_of([6], 6)]}
    assert released(bench) is not None


def test_a_change_of_the_store_session_breaks_a_hold() -> None:
    """Low-water marks on disks rise between two sessions, and others may read them."""
    bench = mounted(4)
    hold(bench)
    bench.say(append(5, 4))
    bench.commit()
    assert bench.step(StoreClosed("a replica was lost")) == {1: feed_of([5], 5)}
    assert released(bench) == "the store session has changed"


def test_there_is_no_hold_without_a_store_session() -> None:
    assert hold(Bench(None)).refusal == "it takes no appends: it has had no store session yet"
    bench = mounted(4)
    bench.step(StoreClosed("a replica was lost"))
    assert hold(bench).refusal == "it takes no appends: a replica was lost"
    bench.step(opened(7, 3))
    assert hold(bench) == HoldBegun(1, None, SessionId(3), tid(7))


def test_the_end_of_its_connection_ends_a_hold_and_that_of_another_does_not() -> None:
    bench = mounted(4)
    hold(bench)
    bench.say(append(5, 4))
    bench.commit()
    assert bench.step(ConnectionLost(9)) == {}
    assert bench.step(ConnectionLost(TOOL)) == {1: feed_of([5], 5)}


def test_a_partition_that_moves_breaks_its_hold() -> None:
    bench = mounted(4)
    hold(bench)
    bench.say(append(5, 4))
    bench.commit()
    bench.step(PartitionRevoked(comes_back=False))
    assert bench.machine.closed
    assert bench.machine.high_water_mark == 5


def test_a_server_that_stops_holds_nothing_more() -> None:
    bench = mounted(4)
    bench.say(append(5, 4))
    bench.step(ReleaseRequested())
    assert hold(bench).refusal == "its server stops"


def test_a_hold_of_another_connection_cannot_be_released() -> None:
    bench = mounted(4)
    hold(bench)
    assert released(bench, connection=9) == NO_SUCH_HOLD
    assert released(bench, hold_id=2) == NO_SUCH_HOLD
    assert released(bench) is None


# Bounds


def test_a_second_hold_waits_for_its_time() -> None:
    bench = mounted(4)
    assert hold(bench).refusal is None
    assert hold(bench, 2).refusal == "another hold is in force"
    assert released(bench) is None
    bench.now = HOLD_PAUSE_SECONDS / 2
    refusal = hold(bench, 2).refusal
    assert refusal == "the last hold began less than 1 s ago; the next one may begin in 0.50 s"
    bench.now = HOLD_PAUSE_SECONDS
    assert hold(bench, 3).refusal is None


# Nothing tells of a commit that is kept back

QUESTIONS: dict[type[Message], Callable[[Bench], object]] = {
    FeedData: lambda bench: bench.step(),
    FeedBatch: lambda bench: bench.step(received(peer(3, 9, version=5), DataWanted(request_id(9)))),
    FeedSuspended: lambda bench: bench.say(feed_request(4, sequence=2)),
    MountResponse: lambda bench: bench.say(mount(4, client=8), connection=2, client=8),
    FlushResponse: lambda bench: bench.say(flush(9)),
    LockFailure: lambda bench: bench.say(append(6, 4, write=[1])),
    AppendRejected: lambda bench: bench.say(append(6, 4, write=[1]), version=5),
    HighWaterMarkResponse: lambda bench: bench.say(mark_request()),
    MarksAnswer: lambda bench: bench.machine.high_water_mark,
    TransactionDataResponse: lambda bench: bench.say(data_request(5)),
    OutcomeResponse: lambda bench: bench.say(OutcomeRequest(request_id(7, 5), tid(-1)), version=5),
    RecordBlock: lambda bench: bench.say(ReadRequest(request_id(), tid(5), 9, 9_999), version=5),
    HeaderBlock: lambda bench: bench.say(HeadersRequest(request_id(), tid(5), 9), version=5),
    ClientsResponse: lambda bench: (
        bench.machine.facts(bench.now)[:2],
        bench.machine.lag_of(tid(4), bench.now),
        bench.machine.lag_of(tid(5), bench.now),
    ),
    PartitionReports: lambda bench: bench.machine.state().high_water_mark,
    RefusalsReport: lambda bench: bench.machine.refusals.latest(9),
    HotLocksReport: lambda bench: bench.machine.refusals.by_lock(9),
    DurationsReport: lambda bench: _durations(bench),
}
"""The messages that a server makes of what its partitions know, each with a question for it."""

OF_NO_COMMIT: frozenset[type[Message]] = frozenset(
    {
        # Of the cluster, of connections and of storage nodes
        CheckStorageConnectivityResponse,
        ServerPartitionsAssignmentResponse,
        ServerPartitionsHealthResponse,
        AddPreferredPartitionResponse,
        RemovePreferredPartitionResponse,
        Topology,
        ClientIdResponse,
        GrowthReport,
        PartitionProblems,
        CoordinatorLocation,
        HistoriesAnswer,
        *(kind for kind in LIFECYCLE_MESSAGES),
        # Of holds: the marks that were known when the hold began
        HoldAnswer,
        HoldReleaseAnswer,
    }
)
"""The messages by which a server tells of no commit."""


def test_every_message_of_a_server_is_known_to_be_held_or_to_tell_of_no_commit() -> None:
    said_by_servers = {
        kind
        for kind in CLIENT_CODEC.messages
        if kind.AUDIENCE in (Audience.STREAM, Audience.ASKER, Audience.LINK)
    }
    assert said_by_servers == {*QUESTIONS, *OF_NO_COMMIT}


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_question_during_a_hold_is_answered_as_before_the_commit(kind: type[Message]) -> None:
    """And not so without the hold, for most kinds: the question would see the commit."""
    held, unaware = mounted(4), mounted(4)
    for bench in (held, unaware):
        bench.say(append(5, 4, write=[1]))
        hold(bench)
    held.commit()
    question = QUESTIONS[kind]
    assert question(held) == question(unaware)
    assert [*held.reads] == [*unaware.reads]
    assert held.store == unaware.store[1:]


def test_a_client_that_asks_for_an_outcome_is_told_after_the_hold() -> None:
    bench = mounted(4)
    bench.say(append(5, 4))
    hold(bench)
    bench.commit()
    question = OutcomeRequest(request_id(7, 5), tid(4))
    assert bench.say(question, connection=2, client=9, version=5) == []
    heard = bench.step(HoldReleased(1, TOOL))
    assert heard[2] == [OutcomeResponse(request_id(7, 5), Outcome.COMMITTED, TransactionId(5))]


Action = tuple[str, int]


@settings(max_examples=300)
@given(
    before=st.lists(st.tuples(st.sampled_from(("append", "commit", "ask")), st.integers(0, 40))),
    during=st.lists(
        st.tuples(st.sampled_from(("append", "commit", "fail", "ask")), st.integers(0, 40))
    ),
    in_time=st.booleans(),
)
def test_a_held_partition_says_what_one_says_that_hears_of_no_commit(
    before: list[Action], during: list[Action], in_time: bool
) -> None:
    """Two partitions hear the same from clients. One is held and hears the outcomes of the store,
    the other hears these only when the hold has ended."""
    held, other = Bench(-1), Bench(-1)
    pair = (held, other)
    for bench in pair:
        bench.say(mount(), feed_request())
        bench.say(mount(client=8), feed_request(client=8), connection=2, client=8, version=5)
    sequence = 1
    for action, number in before:
        sequence = _act(pair, action, number, sequence)
        for bench in pair:
            if action == "commit" and bench.store:
                bench.commit(1 + number % len(bench.store))
    for bench in pair:
        assert hold(bench).refusal is None
        released_at_once = bench is other and released(bench)
        assert not released_at_once
    kept_back: list[Committed | AppendsFailed] = []
    for action, number in during:
        sequence = _act(pair, action, number, sequence)
        if action in ("commit", "fail") and held.store:
            count = 1 + number % len(held.store)
            done, held.store = held.store[:count], held.store[count:]
            event: Committed | AppendsFailed = AppendsFailed(count)
            if action == "commit":
                event = Committed(pack_records(tid(held.mark + 1), done))
                held.mark += count
            kept_back.append(event)
            assert held.step(event) == {}
        assert _shown_to_operators(held) == _shown_to_operators(other)
        assert held.worked_off == other.worked_off
        assert held.reads == other.reads
    if not in_time:
        held.now = other.now = SECONDS
    heard = held.step(HoldReleased(1, TOOL)) if in_time else held.step()
    assert heard == other.step(*kept_back)
    assert _shown_to_operators(held) == _shown_to_operators(other)


def _shown_to_operators(bench: Bench) -> tuple[object, ...]:
    state = bench.machine.state()
    return (
        replace(state, append_seconds=NO_SECONDS),
        _durations(bench),
        bench.machine.facts(0.0)[:2],
    )


def _act(pair: tuple[Bench, Bench], action: str, number: int, sequence: int) -> int:
    """Say the same to both; what they answer is the same."""
    connection, client = (1, 7) if number % 2 else (2, 8)
    version = 4 if connection == 1 else 5
    said: ClientMessage
    if action == "append":
        mark = (pair[0].machine.high_water_mark or 0) - number % 3
        said = append(sequence, max(mark, -1), client=client, write=[number % 4])
        sequence += 1
    elif action == "ask":
        asked: tuple[ClientMessage, ...] = (
            mark_request(),
            flush(900 + number),
            data_request(number),
            ReadRequest(request_id(), tid(number), 5, 9_999),
            HeadersRequest(request_id(), tid(number), 5),
            OutcomeRequest(request_id(client, number), tid(-1)),
            mount(-1, client, sequence=900 + number),
            feed_request(-1, client),
        )
        said = asked[number % len(asked)]
        if isinstance(said, ReadRequest | HeadersRequest | OutcomeRequest):
            connection, client, version = 2, 8, 5
    else:
        return sequence
    answers = [
        bench.say(said, connection=connection, client=client, version=version) for bench in pair
    ]
    assert answers[0] == answers[1]
    return sequence


def _durations(bench: Bench) -> list[tuple[int, float]]:
    seconds = bench.machine.append_seconds
    return [(each.count, each.sum_seconds) for each in (seconds.wait, seconds.store, seconds.feed)]
