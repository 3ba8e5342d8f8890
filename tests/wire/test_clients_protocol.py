"""The messages about the clients of a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from tests.wire.test_report_protocol import body_of
from waltz.errors import LocalProtocolError
from waltz.types import ClientId, Generation, PartitionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.clients_protocol import (
    CLIENTS_MESSAGES,
    UNKNOWN_TIME,
    AppliedMark,
    AppliedMarks,
    ClientEntry,
    ClientsRequest,
    ClientsResponse,
    MarkLag,
    MountEntry,
    PartitionMark,
)
from waltz.wire.message import Message

RESPONSE = ClientsResponse(
    5,
    250,
    (PartitionMark(PartitionId(3), Generation(2), TransactionId(9)),),
    (
        ClientEntry(
            7,
            ClientId(4),
            "a",
            "b",
            "",
            "1",
            True,
            "",
            "h:1",
            5,
            True,
            False,
            1_000,
            20,
            (MountEntry(PartitionId(3), TransactionId(8), 15, None, 30, UNKNOWN_TIME, False),),
            0,
        ),
    ),
    False,
    (MarkLag(PartitionId(3), TransactionId(8), 30, UNKNOWN_TIME),),
)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            AppliedMarks((AppliedMark(PartitionId(3), TransactionId(8)),)),
            "54 00000001 00000003 0000000000000008",
        ),
        (
            ClientsRequest(5, 7, (AppliedMark(PartitionId(3), TransactionId(8)),)),
            "55 0000000000000005 0000000000000007 00000001 00000003 0000000000000008",
        ),
        (
            RESPONSE,
            (
                "56 0000000000000005 00000000000000fa"
                " 00000001 00000003 00000002 01 0000000000000009"
                " 00000001 0000000000000007 00000004"
                " 00000001 61 00000001 62 00000000 00000001 31 01"
                " 00000000 00000003 683a31 00000005 01 00 00000000000003e8 0000000000000014"
                " 00000001 00000003 01 0000000000000008 000000000000000f 00 000000000000001e"
                " ffffffffffffffff 00"
                " 00000000 00"
                " 00000001 00000003 0000000000000008 000000000000001e ffffffffffffffff"
            ),
        ),
    ],
)
def test_the_bytes_are_those_that_were_pinned(message: Message, expected: str) -> None:
    frame = CLIENT_CODEC.encode(message, 5)
    assert body_of(frame) == bytes.fromhex(expected)
    assert CLIENT_CODEC.decode(body_of(frame), 5) == message


@pytest.mark.parametrize("kind", CLIENTS_MESSAGES)
@given(data=st.data())
def test_every_message_comes_back_as_it_was(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(messages(kind, 5))
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("message", [AppliedMarks(()), ClientsRequest(5, 0, ()), RESPONSE])
def test_versions_before_5_do_not_have_them(message: Message) -> None:
    for version in range(5):
        with pytest.raises(LocalProtocolError, match="not supported by version"):
            CLIENT_CODEC.encode(message, version)
