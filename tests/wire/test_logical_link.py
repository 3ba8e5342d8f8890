"""Messages over one connection after the other, whole frames or not."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import RemoteProtocolError
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC, FlushRequest, FlushResponse
from waltz.wire.handshake import Hello, Link
from waltz.wire.lifecycle_protocol import (
    FEATURES,
    Acknowledgement,
    ConnectionEnd,
    ConnectionRestoreRequest,
    Feature,
    Heartbeat,
)
from waltz.wire.logical_link import LogicalLink
from waltz.wire.message import Message
from waltz.wire.retained import ACKNOWLEDGE_BYTES

REQUEST_ID = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
FLUSH = FlushRequest(REQUEST_ID)


def end(version: int = 5, features: frozenset[Feature] = FEATURES) -> LogicalLink:
    link = Link(CLIENT_CODEC, "x", opens=True)
    assert link.greet(Hello((version,), "peer").encode()) == b""
    link.opened()
    return LogicalLink(link, features)


def frame(message: Message, version: int = 5) -> bytes:
    return CLIENT_CODEC.encode(message, version)


def test_a_heartbeat_is_answered_with_what_has_arrived_and_is_no_message() -> None:
    """LC-82."""
    one = end()
    data = frame(FLUSH) + frame(Heartbeat(0, True))
    assert one.receive(data) == [FLUSH]
    assert one.take_replies() == frame(Heartbeat(len(data), False))
    assert one.take_replies() == b""
    assert one.receive(frame(Heartbeat(0, False))) == []
    assert one.take_replies() == b""


def test_acknowledgements_and_heartbeats_let_what_is_kept_go() -> None:
    one = end()
    one.retain(frame(FLUSH))
    assert one.retained.byte_count == len(frame(FLUSH))
    one.receive(frame(Acknowledgement(len(frame(FLUSH)))))
    assert one.retained.byte_count == 0
    one.retain(frame(FLUSH))
    one.receive(frame(Heartbeat(2 * len(frame(FLUSH)), False)))
    assert one.retained.byte_count == 0


def test_much_that_arrives_is_acknowledged_without_being_asked() -> None:
    one = end()
    told = frame(FlushResponse(REQUEST_ID, TransactionId(3)))
    count = ACKNOWLEDGE_BYTES // len(told) + 1
    assert len(one.receive(told * count)) == count
    assert one.take_replies() == frame(Acknowledgement(len(told) * count))


def test_who_acknowledges_what_was_not_sent_is_refused() -> None:
    one = end()
    with pytest.raises(RemoteProtocolError, match="9 bytes acknowledged; 0 were sent"):
        one.receive(frame(Acknowledgement(9)))


def test_a_connection_that_was_given_up_is_not_restorable() -> None:
    one, other = end(), end()
    assert one.is_restorable
    assert other.receive(one.end("the server stops")) == []
    assert other.end_reason == "the server stops"
    assert [link.is_restorable for link in (one, other)] == [False, False]
    assert one.resume(0) is None
    assert frame(ConnectionEnd("x")) == end().end("x")


def test_a_second_handshake_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="after the handshake"):
        end().receive(frame(ConnectionRestoreRequest(b"WLTZ", REQUEST_UUID, 0, 1)))


def test_without_the_feature_nothing_is_kept() -> None:
    """LC-32."""
    one = end(features=frozenset({Feature.HEARTBEAT}))
    assert one.retain(frame(FLUSH)) == frame(FLUSH)
    assert one.retained.byte_count == 0
    assert not one.is_restorable
    one.receive(frame(Heartbeat(9, False)))


@pytest.mark.parametrize("version", [0, 4])
def test_older_versions_have_none_of_this(version: int) -> None:
    """LC-43."""
    one = end(version, frozenset())
    assert one.retain(frame(FLUSH, version)) == frame(FLUSH, version)
    assert one.receive(frame(FLUSH, version)) == [FLUSH]
    assert one.take_replies() == b""
    assert one.end("why") == b""
    assert not one.is_restorable


REQUEST_UUID = UUID(int=9)
ENDS = st.integers(0, 1)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), ENDS, st.integers(1, 5)),
        st.tuples(st.just("arrive"), ENDS, st.integers(0, 200)),
        st.tuples(st.just("beat"), ENDS, st.just(0)),
        st.tuples(st.just("break"), ENDS, st.just(0)),
    ),
    max_size=50,
)


@given(ACTIONS)
def test_messages_survive_any_breaks_in_order_and_once(
    actions: list[tuple[str, int, int]],
) -> None:
    """LC-48, LC-54: also where a frame is cut in two, or an answer to a heartbeat is lost."""
    links = (end(), end())
    way = [b"", b""]
    sent: list[list[Message]] = [[], []]
    got: list[list[Message]] = [[], []]

    def arrive(sender: int, count: int) -> None:
        data, way[sender] = way[sender][:count], way[sender][count:]
        got[1 - sender] += links[1 - sender].receive(data)
        way[1 - sender] += links[1 - sender].take_replies()

    for number, (action, actor, count) in enumerate(actions):
        match action:
            case "send":
                messages = [
                    FlushResponse(REQUEST_ID, TransactionId(1_000 * number + position))
                    for position in range(count)
                ]
                sent[actor] += messages
                way[actor] += links[actor].retain(b"".join(map(frame, messages)))
            case "beat":
                way[actor] += links[actor].heartbeat(wants_answer=True)
            case "arrive":
                arrive(actor, count)
            case _:
                for link in links:
                    link.break_off()
                again = links[0].resume(links[1].received), links[1].resume(links[0].received)
                assert again[0] is not None
                assert again[1] is not None
                way = [again[0], again[1]]
        for receiver in (0, 1):
            links[receiver].check_invariants()
            assert got[receiver] == sent[1 - receiver][: len(got[receiver])]
    while any(way):
        for sender in (0, 1):
            arrive(sender, len(way[sender]))
    assert got == [sent[1], sent[0]]
