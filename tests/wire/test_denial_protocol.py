"""The message by which a server tells what its policy denies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from tests.wire.test_report_protocol import body_of
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.types import ClientId, Generation, PartitionId, RequestId
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_protocol import CLIENT_CODEC, MountRequest
from waltz.wire.denial_protocol import (
    DENIED_REASON_BYTES_MAX,
    NO_PARTITION,
    Denied,
    cut_to,
    no_request,
)
from waltz.wire.discovery_protocol import TopologyRequest
from waltz.wire.message import Message

APPENDS = RequestId(ClientId(7), Generation(2), PartitionId(3), 40)
PINNED: list[tuple[Message, str]] = [
    (
        Denied(AppendBatch.CODE, APPENDS, 5, PartitionId(3), "append", "CN=a", "no"),
        (
            "66 40 00000007 00000002 00000003 00000028 00000005 00000003"
            " 00000006 617070656e64 00000004 434e3d61 00000002 6e6f"
        ),
    ),
    (
        Denied(MountRequest.CODE, no_request(PartitionId(4)), 1, PartitionId(4), "read", "", ""),
        (
            "66 00 ffffffff ffffffff 00000004 00000000 00000001 00000004"
            " 00000004 72656164 00000000 00000000"
        ),
    ),
    (
        Denied(TopologyRequest.CODE, no_request(NO_PARTITION), 1, NO_PARTITION, "connect", "", ""),
        (
            f"66 {TopologyRequest.CODE:02x} ffffffff ffffffff ffffffff 00000000 00000001 ffffffff"
            " 00000007 636f6e6e656374 00000000 00000000"
        ),
    ),
]


@pytest.mark.parametrize(("message", "expected"), PINNED)
def test_the_bytes_are_those_that_were_pinned(message: Message, expected: str) -> None:
    frame = CLIENT_CODEC.encode(message, 5)
    assert body_of(frame) == bytes.fromhex(expected)
    assert CLIENT_CODEC.decode(body_of(frame), 5) == message


@given(data=st.data())
def test_every_message_comes_back_as_it_was(data: st.DataObject) -> None:
    message = data.draw(messages(Denied, 5))
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("message", [message for message, _ in PINNED])
def test_versions_before_5_do_not_have_it(message: Message) -> None:
    for version in range(5):
        with pytest.raises(LocalProtocolError, match="not supported by version"):
            CLIENT_CODEC.encode(message, version)


@pytest.mark.parametrize("length", ["7fffffff", "00000401", "ffffffff"])
def test_a_reason_beyond_its_bound_is_refused_before_it_is_allocated(length: str) -> None:
    text, _ = PINNED[0][1].rsplit(" 00000002 ", 1)
    body = bytes.fromhex(f"{text} {length} {'6e' * (DENIED_REASON_BYTES_MAX + 1)}")
    with pytest.raises(RemoteProtocolError):
        CLIENT_CODEC.decode(body, 5)


def test_a_longer_text_is_cut_between_two_characters() -> None:
    assert cut_to("abc", 3) == "abc"
    assert cut_to("abcd", 3) == "abc"
    assert cut_to("aü", 2) == "a"
    assert cut_to("ü" * 600, DENIED_REASON_BYTES_MAX) == "ü" * 512
