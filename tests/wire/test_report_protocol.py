"""The messages by which servers tell tools how their partitions are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from waltz.errors import LocalProtocolError
from waltz.types import (
    ClientId,
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    SessionId,
    TransactionId,
)
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.frame import FrameDecoder
from waltz.wire.message import Message
from waltz.wire.report_protocol import (
    NEVER,
    REPORT_MESSAGES,
    CoordinatorLocation,
    CoordinatorRequest,
    DurationBucket,
    DurationsReport,
    DurationsRequest,
    HotLock,
    HotLocksReport,
    HotLocksRequest,
    PartitionReport,
    PartitionReports,
    PartitionReportsRequest,
    RefusalEntry,
    RefusalsKept,
    RefusalsReport,
    RefusalsRequest,
    ReplicaEntry,
    StageDurations,
)

REQUEST_ID = RequestId(ClientId(7), Generation(1), PartitionId(3), 11)
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
        (
            RefusalsRequest(5, PartitionId(3), 20, TransactionId(9), REQUEST_ID, -1),
            (
                "58 00 00 00 00 00 00 00 05 00 00 00 03 00 00 00 14 01 00 00 00 00 00 00 00 09"
                " 01 00 00 00 07 00 00 00 01 00 00 00 03 00 00 00 0b 01 ff ff ff ff"
            ),
        ),
        (
            RefusalsReport(
                5,
                RefusalsKept(3, 2, 1500),
                (RefusalEntry(REQUEST_ID, 4, TransactionId(9), True, 500),),
            ),
            (
                "59 00 00 00 00 00 00 00 05 01 00 00 00 00 00 00 00 03 00 00 00 02"
                " 00 00 00 00 00 00 05 dc 00 00 00 01"
                " 00 00 00 07 00 00 00 01 00 00 00 03 00 00 00 0b"
                " 00 00 00 04 00 00 00 00 00 00 00 09 01 00 00 00 00 00 00 01 f4"
            ),
        ),
        (
            HotLocksRequest(5, PartitionId(3), 20),
            "5a 00 00 00 00 00 00 00 05 00 00 00 03 00 00 00 14",
        ),
        (
            HotLocksReport(5, None, (HotLock(-1, 2, 1, TransactionId(9), 500),)),
            (
                "5b 00 00 00 00 00 00 00 05 00 00 00 00 01 ff ff ff ff 00 00 00 02 00 00 00 01"
                " 00 00 00 00 00 00 00 09 00 00 00 00 00 00 01 f4"
            ),
        ),
        (
            DurationsRequest(5, PartitionId(3)),
            "60 00 00 00 00 00 00 00 05 00 00 00 03",
        ),
        (
            DurationsReport(
                5, (StageDurations("store", 700, (DurationBucket(100, 2), DurationBucket(-1, 0))),)
            ),
            (
                "61 00 00 00 00 00 00 00 05 00 00 00 01 00 00 00 05 73 74 6f 72 65"
                " 00 00 00 00 00 00 02 bc 00 00 00 02"
                " 00 00 00 00 00 00 00 64 00 00 00 00 00 00 00 02"
                " ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 00"
            ),
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
