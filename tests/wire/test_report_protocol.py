"""The messages by which servers tell tools how their partitions are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from waltz.errors import LocalProtocolError
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.frame import FrameDecoder
from waltz.wire.message import Message
from waltz.wire.report_protocol import (
    NEVER,
    REPORT_MESSAGES,
    CoordinatorLocation,
    CoordinatorRequest,
    PartitionReport,
    PartitionReports,
    PartitionReportsRequest,
    ReplicaEntry,
)

REPORTS = PartitionReports(
    5,
    250,
    None,
    (
        PartitionReport(
            PartitionId(3),
            Generation(2),
            SessionId(9),
            TransactionId(4711),
            -1,
            "nobody says",
            (ReplicaEntry(ReplicaId("s1:6000"), 5, -1, NEVER, "is silent"),),
        ),
        PartitionReport(PartitionId(4), Generation(1), SessionId(-1), None, 0, None, ()),
    ),
)


def body_of(frame: bytes) -> bytes:
    decoder = FrameDecoder(ord("L"), 5, 1 << 20)
    decoder.receive(frame)
    body = decoder.next_frame()
    assert body is not None
    return bytes(body)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (CoordinatorRequest(5), "52 00 00 00 00 00 00 00 05"),
        (CoordinatorLocation(5, "c:1"), "53 00 00 00 00 00 00 00 05 00 00 00 03 63 3a 31"),
        (
            PartitionReportsRequest(5, (PartitionId(3),)),
            "50 00 00 00 00 00 00 00 05 00 00 00 01 00 00 00 03",
        ),
    ],
)
def test_the_bytes_are_pinned(message: Message, expected: str) -> None:
    body = body_of(CLIENT_CODEC.encode(message, 5))
    assert body.hex(" ") == expected
    assert CLIENT_CODEC.decode(body, 5) == message


def test_a_report_comes_back_as_it_was() -> None:
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(REPORTS, 5)), 5) == REPORTS


@given(st.sampled_from(REPORT_MESSAGES).flatmap(lambda kind: messages(kind, 5)))
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    assert CLIENT_CODEC.decode(body_of(CLIENT_CODEC.encode(message, 5)), 5) == message


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_originals_versions_know_none_of_them(version: int) -> None:
    for message in (REPORTS, CoordinatorRequest(1)):
        with pytest.raises(LocalProtocolError):
            CLIENT_CODEC.encode(message, version)
