"""The messages by which a server tells the ends of all its partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from tests.wire.test_report_protocol import body_of
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.history_protocol import MARKS_MESSAGES, MarksAnswer, MarksRequest
from waltz.wire.message import Message

PINNED: list[tuple[Message, str]] = [
    (MarksRequest(5), "64 0000000000000005"),
    (MarksAnswer(5, (), ()), "65 0000000000000005 00000000 00000000"),
    (
        MarksAnswer(5, (3, 8), (9, -1)),
        (
            "65 0000000000000005 00000002 00000003 00000008"
            " 00000002 0000000000000009 ffffffffffffffff"
        ),
    ),
]


@pytest.mark.parametrize(("message", "expected"), PINNED)
def test_the_bytes_are_those_that_were_pinned(message: Message, expected: str) -> None:
    frame = CLIENT_CODEC.encode(message, 5)
    assert body_of(frame) == bytes.fromhex(expected)
    assert CLIENT_CODEC.decode(body_of(frame), 5) == message


@pytest.mark.parametrize("kind", MARKS_MESSAGES)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind, 5))
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("message", [message for message, _ in PINNED])
def test_versions_before_5_do_not_have_them(message: Message) -> None:
    for version in range(5):
        with pytest.raises(LocalProtocolError, match="not supported by version"):
            CLIENT_CODEC.encode(message, version)


@pytest.mark.parametrize("count", ["7fffffff", "00000002", "ffffffff"])
def test_a_count_beyond_what_came_is_refused_before_it_is_allocated(count: str) -> None:
    body = bytes.fromhex(f"65 0000000000000005 {count} 00000003")
    with pytest.raises(RemoteProtocolError):
        CLIENT_CODEC.decode(body, 5)
