"""The messages and the extension by which servers tell of histories."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from tests.wire.test_report_protocol import body_of
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.history_protocol import (
    HISTORY_MESSAGES,
    HistoriesAnswer,
    HistoriesRequest,
    HistoryFirst,
    ToldHistory,
    newest_history,
)
from waltz.wire.message import Message

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")

PINNED: list[tuple[Message, str]] = [
    (HistoriesRequest(5), "62 0000000000000005"),
    (HistoriesAnswer(5, ()), "63 0000000000000005 00000000"),
    (
        HistoriesAnswer(
            5, (ToldHistory(ID, 7, (HistoryFirst(PartitionId(3), TransactionId(9)),)),)
        ),
        (
            "63 0000000000000005 00000001 00112233445566778899aabbccddeeff 0000000000000007"
            " 00000001 00000003 0000000000000009"
        ),
    ),
]


@pytest.mark.parametrize(("message", "expected"), PINNED)
def test_the_bytes_are_those_that_were_pinned(message: Message, expected: str) -> None:
    frame = CLIENT_CODEC.encode(message, 5)
    assert body_of(frame) == bytes.fromhex(expected)
    assert CLIENT_CODEC.decode(body_of(frame), 5) == message


@pytest.mark.parametrize("kind", HISTORY_MESSAGES)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind, 5))
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("message", [message for message, _ in PINNED])
def test_versions_before_5_do_not_have_them(message: Message) -> None:
    for version in range(5):
        with pytest.raises(LocalProtocolError, match="not supported by version"):
            CLIENT_CODEC.encode(message, version)


def test_the_extension_names_the_newest_history() -> None:
    assert newest_history([]) is None
    assert newest_history([("label", b"x")]) is None
    assert newest_history([("history", ID.bytes)]) == ID


@pytest.mark.parametrize("data", [b"", ID.bytes[:-1], ID.bytes + b"x"])
def test_an_extension_of_another_length_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a history in {len(data)} bytes; expected 16"):
        newest_history([("history", data)])
