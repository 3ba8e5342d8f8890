"""The messages by which cuts are taken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from tests.wire.test_report_protocol import body_of
from waltz.errors import LocalProtocolError
from waltz.types import Generation, PartitionId, SessionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.cut_protocol import (
    CUT_MESSAGES,
    HeldPartition,
    HoldAnswer,
    HoldName,
    HoldReleaseAnswer,
    HoldReleaseRequest,
    HoldRequest,
    HoldTrouble,
)
from waltz.wire.message import Message

P3, P4 = PartitionId(3), PartitionId(4)

PINNED: list[tuple[Message, str]] = [
    (HoldRequest(5, 50), "5c 0000000000000005 00000032"),
    (
        HoldAnswer(
            5,
            None,
            (HeldPartition(P3, Generation(2), SessionId(7), TransactionId(9), 11),),
            (HoldTrouble(P4, "no"),),
        ),
        (
            "5d 0000000000000005 ffffffff"
            " 00000001 00000003 00000002 0000000000000007 0000000000000009 000000000000000b"
            " 00000001 00000004 00000002 6e6f"
        ),
    ),
    (
        HoldAnswer(5, "no", (), ()),
        "5d 0000000000000005 00000002 6e6f 00000000 00000000",
    ),
    (
        HoldReleaseRequest(5, (HoldName(P3, 11),)),
        "5e 0000000000000005 00000001 00000003 000000000000000b",
    ),
    (
        HoldReleaseAnswer(5, (HoldName(P3, 11),), (HoldTrouble(P4, "no"),)),
        ("5f 0000000000000005 00000001 00000003 000000000000000b 00000001 00000004 00000002 6e6f"),
    ),
]


@pytest.mark.parametrize(("message", "expected"), PINNED)
def test_the_bytes_are_those_that_were_pinned(message: Message, expected: str) -> None:
    frame = CLIENT_CODEC.encode(message, 5)
    assert body_of(frame) == bytes.fromhex(expected)
    assert CLIENT_CODEC.decode(body_of(frame), 5) == message


@pytest.mark.parametrize("kind", CUT_MESSAGES)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind, 5))
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("message", [message for message, _ in PINNED])
def test_versions_before_5_do_not_have_them(message: Message) -> None:
    for version in range(5):
        with pytest.raises(LocalProtocolError, match="not supported by version"):
            CLIENT_CODEC.encode(message, version)
