from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from waltz.connections.pending_requests import (
    DATA_RETRY_SECONDS_MAX,
    HIGH_WATER_MARK_REQUEST_SECONDS,
    MARKS_QUESTIONS_MAX,
    AheadRefused,
    Answered,
    BodiesWanted,
    BreakConnection,
    DataArrived,
    Effect,
    Event,
    MarkArrived,
    MarksWanted,
    PartitionAttached,
    PartitionDetached,
    PendingRequests,
    SendRequests,
)
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import (
    FeedData,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.history_protocol import MarksAnswer, MarksRequest
from waltz.wire.message import Message

P0 = PartitionId(0)
P1 = PartitionId(1)


class World:
    def __init__(self, in_flight_max: int = 100) -> None:
        self.machine = PendingRequests(ClientId(7), in_flight_max=in_flight_max)
        self.now = 10.0

    def step(self, *events: Event) -> Sequence[Effect]:
        effects = self.machine.step(events, self.now)
        self.machine.check_invariants()
        return effects

    def hear(self, *messages: Message, connection: int = 0) -> Sequence[Effect]:
        return self.step(Answered(connection, messages, 1.0))

    def sleep(self, seconds: float) -> Sequence[Effect]:
        self.now += seconds
        return self.step()


def wanted(*ids: int, partition_id: PartitionId = P0) -> BodiesWanted:
    return BodiesWanted(partition_id, [TransactionId(number) for number in ids])


def ahead(*ids: int) -> BodiesWanted:
    return BodiesWanted(P0, [TransactionId(number) for number in ids], is_ahead=True)


def request_id(partition_id: PartitionId) -> RequestId:
    return RequestId(ClientId(7), Generation(-1), partition_id, 1)


def body(number: int, data: bytes | None, partition_id: PartitionId = P0) -> Message:
    return TransactionDataResponse(
        request_id(partition_id),
        TransactionId(number),
        data,
        0 if data is None else crc32(data),
        "not ready" if data is None else None,
    )


def asked(effects: Sequence[Effect], connection: int = 0) -> list[int]:
    return [
        message.transaction_id
        for effect in effects
        if isinstance(effect, SendRequests) and effect.connection_sequence == connection
        for message in effect.messages
        if isinstance(message, TransactionDataRequest)
    ]


def test_what_is_wanted_before_a_server_is_there_is_asked_for_then() -> None:
    world = World()
    assert world.step(wanted(3, 4)) == []
    assert asked(world.step(PartitionAttached(P0, 0))) == [3, 4]
    effects = world.hear(body(4, b"four"), body(3, b"three"))
    assert effects == [
        DataArrived(P0, TransactionId(4), b"four"),
        DataArrived(P0, TransactionId(3), b"three"),
    ]


def test_many_who_want_the_same_share_one_request() -> None:
    """CI-22."""
    world = World()
    world.step(PartitionAttached(P0, 0))
    effects = world.step(*[wanted(7) for _ in range(100)])
    assert asked(effects) == [7]
    assert asked(world.step(wanted(7))) == []


def test_a_window_bounds_what_is_in_flight_on_a_connection() -> None:
    world = World(in_flight_max=3)
    world.step(PartitionAttached(P0, 0), PartitionAttached(P1, 0))
    assert asked(world.step(wanted(*range(5)))) == [0, 1, 2]
    assert asked(world.step(wanted(50, partition_id=P1))) == []
    assert asked(world.hear(body(0, b""))) == [3]
    assert asked(world.hear(body(1, b""), body(2, b""), body(3, b""))) == [50, 4]


def test_what_was_in_flight_moves_with_the_partition() -> None:
    """CI-04."""
    world = World()
    world.step(PartitionAttached(P0, 0), wanted(1, 2, 3))
    world.hear(body(2, b""))
    assert world.step(PartitionDetached(P0, 0)) == []
    assert asked(world.step(PartitionAttached(P0, 5)), 5) == [1, 3]
    assert world.hear(body(1, b"late"), connection=0) == []


def test_a_failed_fetch_is_repeated_ever_later() -> None:
    """PM-32: first 10 ms, at most 5 s."""
    world = World()
    world.step(PartitionAttached(P0, 0), wanted(1))
    delays = []
    for _ in range(12):
        assert world.hear(body(1, None)) == []
        assert world.machine.deadline is not None
        delays.append(world.machine.deadline - world.now)
        assert asked(world.sleep(delays[-1] + 1e-6)) == [1]
    assert round(delays[0], 6) == 0.01
    assert delays == sorted(delays)
    assert round(delays[-1], 6) == DATA_RETRY_SECONDS_MAX
    assert world.hear(body(1, b"x")) == [DataArrived(P0, TransactionId(1), b"x")]
    assert world.machine.deadline is None


def test_a_failed_fetch_survives_a_move() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0), wanted(1))
    world.hear(body(1, None))
    world.step(PartitionDetached(P0, 0))
    assert world.sleep(1.0) == []
    assert asked(world.step(PartitionAttached(P0, 1)), 1) == [1]


def test_one_mark_request_serves_all_who_ask() -> None:
    """PM-36."""
    world = World()
    world.step(PartitionAttached(P1, 0))
    (sending,) = world.step(MarksWanted((P1,), 1), MarksWanted((P1,), 2))
    assert isinstance(sending, SendRequests)
    assert [type(message) for message in sending.messages] == [HighWaterMarkRequest]
    answer = HighWaterMarkResponse(request_id(P1), TransactionId(99))
    assert world.hear(answer) == [MarkArrived(P1, TransactionId(99), 2)]
    assert world.hear(answer) == []
    assert world.machine.deadline is None


def test_a_request_that_was_sent_before_is_no_answer_for_who_asks_after_it() -> None:
    """Its answer may be of a time before something was appended that the caller knows of."""
    world = World()
    world.step(PartitionAttached(P1, 0), MarksWanted((P1,), 1))
    (sending,) = world.step(MarksWanted((P1,), 2), MarksWanted((P1,), 3))
    assert isinstance(sending, SendRequests)
    (later,) = sending.messages
    assert isinstance(later, HighWaterMarkRequest)
    before = HighWaterMarkResponse(request_id(P1), TransactionId(99))
    assert world.hear(before) == [MarkArrived(P1, TransactionId(99), 1)]
    after = HighWaterMarkResponse(later.request_id, TransactionId(100))
    assert world.hear(after) == [MarkArrived(P1, TransactionId(100), 3)]
    assert world.machine.deadline is None


def test_an_answer_to_a_request_that_was_repeated_is_no_answer_to_a_later_one() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0), MarksWanted((P0,), 1))
    (sending,) = world.sleep(HIGH_WATER_MARK_REQUEST_SECONDS)
    assert isinstance(sending, SendRequests)
    (again,) = sending.messages
    assert isinstance(again, HighWaterMarkRequest)
    assert world.hear(HighWaterMarkResponse(request_id(P0), TransactionId(5)))
    world.step(MarksWanted((P0,), 2))
    assert world.hear(HighWaterMarkResponse(again.request_id, TransactionId(5))) == []


def test_marks_of_several_partitions_are_asked_for_in_one_write() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0), PartitionAttached(P1, 0))
    (sending,) = world.step(MarksWanted((P0,), 1), MarksWanted((P1,), 2))
    assert isinstance(sending, SendRequests)
    assert [type(message) for message in sending.messages] == 2 * [HighWaterMarkRequest]


def test_a_mark_request_without_an_answer_is_repeated() -> None:
    """Hazard H2."""
    world = World()
    world.step(PartitionAttached(P0, 0), MarksWanted((P0,), 1))
    (sending,) = world.sleep(HIGH_WATER_MARK_REQUEST_SECONDS)
    assert isinstance(sending, SendRequests)
    world.step(PartitionDetached(P0, 0))
    assert world.sleep(HIGH_WATER_MARK_REQUEST_SECONDS) == []
    assert world.machine.deadline is None
    (sending,) = world.step(PartitionAttached(P0, 1))
    assert isinstance(sending, SendRequests)


def test_a_mark_from_a_server_that_is_recovering_is_no_answer() -> None:
    """Hazard H8."""
    world = World()
    world.step(PartitionAttached(P0, 0), MarksWanted((P0,), 1))
    assert world.hear(HighWaterMarkResponse(request_id(P0), TransactionId(-(2**63)))) == []
    empty = HighWaterMarkResponse(request_id(P0), TransactionId(-1))
    assert world.hear(empty) == []
    (sending,) = world.sleep(HIGH_WATER_MARK_REQUEST_SECONDS)
    assert isinstance(sending, SendRequests)
    (again,) = sending.messages
    assert isinstance(again, HighWaterMarkRequest)
    empty = HighWaterMarkResponse(again.request_id, TransactionId(-1))
    assert world.hear(empty) == [MarkArrived(P0, TransactionId(-1), 1)]


def test_a_feed_on_this_connection_breaks_it() -> None:
    """CI-05."""
    world = World()
    world.step(PartitionAttached(P0, 0))
    (effect,) = world.hear(FeedData(request_id(P0), TransactionId(0), 0))
    assert isinstance(effect, BreakConnection)
    assert "FeedData" in effect.reason


def test_a_partition_with_much_to_ask_for_does_not_keep_another_waiting() -> None:
    """CI-22: as long as one had anything left, others of its server were never asked for."""
    world = World(in_flight_max=4)
    world.step(PartitionAttached(P0, 0), PartitionAttached(P1, 0))
    world.step(wanted(*range(1_000)))
    assert asked(world.step(wanted(*range(3), partition_id=P1))) == []
    turns: list[PartitionId] = []
    for number in range(6):
        effects = world.hear(body(number, b"x"))
        sent = next(effect for effect in effects if isinstance(effect, SendRequests))
        turns += [
            message.request_id.partition_id
            for message in sent.messages
            if isinstance(message, TransactionDataRequest)
        ]
    assert turns == [P0, P1, P0, P1, P0, P1]


def test_the_room_of_a_connection_is_shared_out() -> None:
    world = World(in_flight_max=10)
    world.step(wanted(*range(100)), wanted(*range(100), partition_id=P1))
    effects = world.step(PartitionAttached(P0, 0), PartitionAttached(P1, 0))
    assert sorted(asked(effects)) == sorted([*range(5), *range(5)])
    assert asked(world.step(PartitionDetached(P1, 0))) == [*range(5, 10)], "what the other had"


def test_a_body_that_no_caller_waits_for_is_not_asked_for_again() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0))
    assert asked(world.step(ahead(3, 4))) == [3, 4]
    effects = world.hear(body(3, None), body(4, b"four"))
    assert effects == [
        AheadRefused(P0, TransactionId(3)),
        DataArrived(P0, TransactionId(4), b"four"),
    ]
    assert world.machine.deadline is None
    assert asked(world.step(wanted(3))) == [3]


def test_a_caller_that_comes_later_has_a_failed_fetch_repeated() -> None:
    """PM-32."""
    world = World()
    world.step(PartitionAttached(P0, 0))
    world.step(ahead(3))
    assert asked(world.step(wanted(3))) == []
    assert world.hear(body(3, None)) == []
    assert asked(world.sleep(DATA_RETRY_SECONDS_MAX)) == [3]


def test_a_body_that_a_caller_waits_for_already_is_repeated_for_the_caller() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0))
    world.step(wanted(3))
    assert asked(world.step(ahead(3))) == []
    assert world.hear(body(3, None)) == []
    assert asked(world.sleep(DATA_RETRY_SECONDS_MAX)) == [3]


def test_bodies_wanted_ahead_move_to_another_connection() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0))
    world.step(ahead(3, 4))
    world.step(PartitionDetached(P0, 0))
    assert asked(world.step(PartitionAttached(P0, 1)), 1) == [3, 4]


def marks_questions(effects: Sequence[Effect], connection: int = 0) -> list[Message]:
    return [
        message
        for effect in effects
        if isinstance(effect, SendRequests) and effect.connection_sequence == connection
        for message in effect.messages
    ]


def test_a_server_that_knows_the_question_is_asked_for_all_marks_at_once() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    (question,) = marks_questions(world.step(MarksWanted((P0, P1), 1)))
    assert question == MarksRequest(1)
    found = world.hear(MarksAnswer(1, (0, 1, 7), (5, -1, 9)))
    assert found == [MarkArrived(P0, TransactionId(5), 1), MarkArrived(P1, TransactionId(-1), 1)]
    assert world.machine.deadline is None
    assert world.hear(MarksAnswer(1, (0, 1), (6, 6))) == []


def test_who_asks_later_is_not_given_an_answer_to_an_earlier_question() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    assert marks_questions(world.step(MarksWanted((P0, P1), 1))) == [MarksRequest(1)]
    assert marks_questions(world.step(MarksWanted((P0, P1), 2))) == [MarksRequest(2)]
    found = world.hear(MarksAnswer(1, (0, 1), (5, 5)))
    assert found == [MarkArrived(P0, TransactionId(5), 1), MarkArrived(P1, TransactionId(5), 1)]
    found = world.hear(MarksAnswer(2, (0, 1), (6, 6)))
    assert found == [MarkArrived(P0, TransactionId(6), 2), MarkArrived(P1, TransactionId(6), 2)]


def test_a_partition_whose_mark_is_not_known_yet_is_asked_by_itself_and_waits() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    world.step(MarksWanted((P0, P1), 1))
    effects = world.hear(MarksAnswer(1, (0,), (5,)))
    assert MarkArrived(P0, TransactionId(5), 1) in effects
    (alone,) = marks_questions(effects)
    assert isinstance(alone, HighWaterMarkRequest)
    assert alone.request_id.partition_id == P1
    answer = HighWaterMarkResponse(alone.request_id, TransactionId(3))
    assert world.hear(answer) == [MarkArrived(P1, TransactionId(3), 1)]


def test_servers_old_and_new_are_asked_at_once_each_in_its_way() -> None:
    world = World()
    p2, p3 = PartitionId(2), PartitionId(3)
    world.step(*[PartitionAttached(each, 0, True) for each in (P0, P1)])
    world.step(*[PartitionAttached(each, 1) for each in (p2, p3)])
    effects = world.step(MarksWanted((P0, P1, p2, p3), 1))
    assert marks_questions(effects) == [MarksRequest(1)]
    assert [type(each) for each in marks_questions(effects, 1)] == 2 * [HighWaterMarkRequest]


def test_an_answer_counts_only_for_partitions_that_are_still_there() -> None:
    """P1 has moved between question and answer: its mark is asked for at its new server."""
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    world.step(MarksWanted((P0, P1), 1))
    moved = world.step(PartitionDetached(P1, 0), PartitionAttached(P1, 4, True))
    assert [type(each) for each in marks_questions(moved, 4)] == [HighWaterMarkRequest]
    assert world.hear(MarksAnswer(1, (0, 1), (5, 5))) == [MarkArrived(P0, TransactionId(5), 1)]


def test_a_question_ends_with_its_connection_and_is_repeated_without_an_answer() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    world.step(MarksWanted((P0, P1), 1))
    assert marks_questions(world.sleep(HIGH_WATER_MARK_REQUEST_SECONDS)) == [MarksRequest(2)]
    world.step(PartitionDetached(P0, 0), PartitionDetached(P1, 0))
    again = world.step(PartitionAttached(P0, 1, True), PartitionAttached(P1, 1, True))
    assert marks_questions(again, 1) == [MarksRequest(3)]
    assert world.hear(MarksAnswer(2, (0, 1), (5, 5))) == []


def test_questions_under_way_are_bounded_and_the_newest_count() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    count = MARKS_QUESTIONS_MAX + 1
    for number in range(1, count + 1):
        world.step(MarksWanted((P0, P1), number))
    assert world.hear(MarksAnswer(1, (0, 1), (5, 5))) == []
    assert MarkArrived(P0, TransactionId(6), count) in world.hear(
        MarksAnswer(count, (0, 1), (6, 6))
    )


def test_more_partitions_than_marks_break_the_connection() -> None:
    world = World()
    world.step(PartitionAttached(P0, 0, True), PartitionAttached(P1, 0, True))
    world.step(MarksWanted((P0, P1), 1))
    (broken,) = world.hear(MarksAnswer(1, (0, 1), (5,)))
    assert isinstance(broken, BreakConnection)


def test_a_body_is_asked_for_again_however_often_it_was_refused() -> None:
    """PM-32: one that no replica can give, for a day; more attempts than a float has exponents."""
    world = World()
    world.step(PartitionAttached(P0, 0))
    assert asked(world.step(wanted(1))) == [1]
    for _ in range(1100):
        assert world.hear(body(1, None)) == []
        assert asked(world.sleep(DATA_RETRY_SECONDS_MAX)) == [1]
