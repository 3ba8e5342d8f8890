"""The admin protocol against the original's bytes."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.wire.golden import GOLDEN_FRAMES, OWN_FRAMES
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.record import NewRecord, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, SessionId, TransactionId
from waltz.wire.admin_protocol import (
    ADMIN_BLOCKS_SINCE,
    ADMIN_CODEC,
    JOURNAL_ANSWER_BYTES_MAX,
    JOURNALS_SINCE,
    AdminFailureResponse,
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    JournalRequest,
    JournalResponse,
    MetricsRequest,
    MetricsResponse,
    PartitionAccessRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
)
from waltz.wire.message import Message
from waltz.wire.records import SessionInfo, StackFrame

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
P0, P2 = PartitionId(0), PartitionId(2)
T100 = TransactionId(100)
R = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
RECORDS = pack_records(T100, [NewRecord(request_id_bytes(R), 0x11223344, b"hello", 0x3610A686)])
STACK = (StackFrame("a.B", "c", "B.java", 12), StackFrame("a.N", "d", None, -2))
INFO = SessionInfo(SessionId(8), TransactionId(99), TransactionId(98))

EXPECTED: dict[str, Message] = {
    "Open": AdminOpenRequest(-1, KEY, 4),
    "Success open": AdminSuccessResponse(-1),
    "Success": AdminSuccessResponse(0),
    "Failure": AdminFailureResponse(0, "boom", STACK),
    "Avail": PartitionAvailableRequest(0, (P0, P2), True),
    "Assign": PartitionAssignmentRequest(1, (P0, P2), True, False),
    "RecListReq": AdminRecordListRequest(2, P2, T100, 20),
    "RecListResp": AdminRecordListResponse(2, P2, RECORDS),
    "LsiReq": AdminLastSessionInfoRequest(3, P2),
    "LsiResp": AdminLastSessionInfoResponse(3, P2, INFO),
    "MetricsReq": MetricsRequest(4),
    "MetricsResp": MetricsResponse(4, "{}"),
    "StatusReq": AssignedPartitionStatusRequest(5),
    "StatusResp": AssignedPartitionStatusResponse(5, ((P0, True), (P2, False))),
}

ADMIN_FRAMES = [
    pytest.param(name[2:], frame, id=name[2:])
    for name, frame, _ in GOLDEN_FRAMES
    if name.startswith("A ") and frame is not None
]


@pytest.mark.parametrize(("name", "frame"), ADMIN_FRAMES)
def test_every_golden_frame_holds_both_ways(name: str, frame: bytes) -> None:
    """Later versions have the messages of version 0 as they are, but for lists of records."""
    assert ADMIN_CODEC.encode(EXPECTED[name], 0) == frame
    for version in ADMIN_CODEC.versions:
        if version >= ADMIN_BLOCKS_SINCE and isinstance(EXPECTED[name], AdminRecordListResponse):
            continue
        assert ADMIN_CODEC.encode(EXPECTED[name], version)[3:] == frame[3:]
        assert ADMIN_CODEC.decode(frame[7:], version) == EXPECTED[name]


def test_every_golden_name_is_known() -> None:
    assert {parameter.id for parameter in ADMIN_FRAMES} == EXPECTED.keys()


def test_code_5_has_the_worked_bytes_and_is_unused_in_version_0() -> None:
    """CX-07: one message sets both bits apart; the original has no such message."""
    access = PartitionAccessRequest(6, (P0, P2), readable=True, writable=False)
    (frame,) = (frame for name, frame in OWN_FRAMES if name.startswith("A1"))
    assert ADMIN_CODEC.encode(access, 1) == frame
    assert ADMIN_CODEC.decode(frame[7:], 1) == access
    with pytest.raises(LocalProtocolError, match=r"not supported by version 0 .* upgrade"):
        ADMIN_CODEC.encode(access, 0)
    with pytest.raises(RemoteProtocolError, match="unknown message type 5"):
        ADMIN_CODEC.decode(frame[7:], 0)


def test_the_journal_is_asked_for_in_version_3() -> None:
    frames = dict(OWN_FRAMES)
    messages: dict[str, Message] = {
        "A3 journal request": JournalRequest(7, P2, T100, TransactionId(200)),
        "A3 journal response": JournalResponse(7, P2, TransactionId(201), b"\1\2\3\4"),
    }
    for name, sent in messages.items():
        assert ADMIN_CODEC.encode(sent, JOURNALS_SINCE) == frames[name]
        assert ADMIN_CODEC.decode(frames[name][7:], JOURNALS_SINCE) == sent
        with pytest.raises(LocalProtocolError, match=r"not supported by version 2 .* upgrade"):
            ADMIN_CODEC.encode(sent, 2)


def test_records_come_as_the_block_on_disk_in_version_4() -> None:
    """Not one byte of it is made anew, so the checksum of a record is the one on the disk."""
    frame = dict(OWN_FRAMES)["A4 record list"]
    answer = EXPECTED["RecListResp"]
    assert ADMIN_CODEC.encode(answer, ADMIN_BLOCKS_SINCE) == frame
    assert ADMIN_CODEC.decode(frame[7:], ADMIN_BLOCKS_SINCE) == answer
    start = frame.index(RECORDS.block)
    for position in range(start, start + len(RECORDS.block)):
        changed = bytearray(frame)
        changed[position] ^= 0x40
        with pytest.raises(RemoteProtocolError, match="records: "):
            ADMIN_CODEC.decode(bytes(changed[7:]), ADMIN_BLOCKS_SINCE)


def test_data_that_is_not_what_the_client_sent_is_shown_to_tools() -> None:
    records = pack_records(T100, [NewRecord(bytes(16), 7, b"data", 1)])
    answer = AdminRecordListResponse(2, P2, records)
    for version in ADMIN_CODEC.versions:
        frame = ADMIN_CODEC.encode(answer, version)
        assert ADMIN_CODEC.decode(frame[7:], version) == answer


def test_the_entries_of_a_journal_are_bounded() -> None:
    answer = JournalResponse(7, P2, TransactionId(201), bytes(JOURNAL_ANSWER_BYTES_MAX))
    assert ADMIN_CODEC.decode(ADMIN_CODEC.encode(answer, 3)[7:], 3) == answer
    with pytest.raises(LocalProtocolError, match=f"at most {JOURNAL_ANSWER_BYTES_MAX}"):
        ADMIN_CODEC.encode(replace(answer, entries=answer.entries + b"x"), 3)
