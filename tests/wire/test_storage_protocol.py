"""The storage protocol against the original's bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID
from zlib import crc32

import pytest

from tests.wire.golden import GOLDEN_FRAMES, OWN_FRAMES
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import DAMAGED_RANGES_MAX, FRAME_BYTES_MAX, NOTE_TEXT_BYTES_MAX
from waltz.record import NewRecord, Record, RecordBatch, empty_batch, pack_records, request_id_bytes
from waltz.types import (
    NO_SESSION,
    NOTHING,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    SessionId,
    TransactionId,
)
from waltz.wire.header_columns import header_columns, no_headers
from waltz.wire.message import Message
from waltz.wire.records import STACK_FRAMES_MAX, RecordHeader, SessionInfo, StackFrame
from waltz.wire.storage_protocol import (
    BLOCKS_SINCE,
    CLIENT_NOTES_MAX,
    CLIENT_NOTES_SINCE,
    HEADERS_SINCE,
    STORAGE_CODEC,
    AcceptDamageRequest,
    AppendRecordsRequest,
    ClientNote,
    DamagedRange,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    NoteClientsRequest,
    OpenRequest,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordHeaderRequest,
    RecordHeaderResponse,
    RecordListRequest,
    RecordListResponse,
    RecordRequest,
    RecordResponse,
    RepairRequest,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)

S = SessionId(9)
P = PartitionId(2)
NO_PARTITION = PartitionId(-1)
KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
R = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
T99, T100 = TransactionId(99), TransactionId(100)
CHECKSUM = 0x3610A686

RECORDS = pack_records(T100, [NewRecord(request_id_bytes(R), 0x11223344, b"hello", CHECKSUM)])
NONE = empty_batch(TransactionId(0))
STACK = (StackFrame("a.B", "c", "B.java", 12), StackFrame("a.N", "d", None, -2))
OUT_OF_ORDER = "com.wepay.waltz.storage.exception.StorageException: transaction out of order"

EXPECTED: dict[str, Message] = {
    "Open": OpenRequest(NO_SESSION, -1, NO_PARTITION, KEY, 4),
    "LastSessionInfoReq": LastSessionInfoRequest(S, 1, P, False),
    "LastSessionInfoReq offline": LastSessionInfoRequest(S, 1, P, True),
    "LastSessionInfoResp": LastSessionInfoResponse(
        S, 1, P, SessionInfo(SessionId(8), T99, TransactionId(98))
    ),
    "LastSessionInfoResp fresh": LastSessionInfoResponse(
        SessionId(1), 0, P, SessionInfo(NO_SESSION, NOTHING, NOTHING)
    ),
    "SetLWM": SetLowWaterMarkRequest(S, 2, P, T99, False),
    "Truncate": TruncateRequest(S, 3, P, T99, False),
    "Append": AppendRecordsRequest(S, 4, P, RECORDS, False),
    "Append empty": AppendRecordsRequest(S, 4, P, NONE, False),
    "Success open": SuccessResponse(NO_SESSION, -1, NO_PARTITION),
    "Success": SuccessResponse(S, 4, P),
    "Failure": FailureResponse(S, 4, P, "boom", STACK),
    "Failure wrapped": FailureResponse(S, 4, P, OUT_OF_ORDER, ()),
    "RecHdrReq": RecordHeaderRequest(S, 5, P, T100),
    "RecHdrResp": RecordHeaderResponse(S, 5, P, RecordHeader(T100, R, 0x11223344)),
    "RecHdrResp null": RecordHeaderResponse(S, 5, P, None),
    "RecReq": RecordRequest(S, 6, P, T100),
    "RecResp": RecordResponse(S, 6, P, Record(T100, R, 0x11223344, b"hello", CHECKSUM)),
    "RecResp null": RecordResponse(S, 6, P, None),
    "MaxReq": MaxTransactionIdRequest(S, 7, P, False),
    "MaxResp": MaxTransactionIdResponse(S, 7, P, T100),
    "HdrListReq": RecordHeaderListRequest(S, 8, P, T100, 64),
    "HdrListResp": RecordHeaderListResponse(S, 8, P, header_columns(RECORDS)),
    "RecListReq": RecordListRequest(S, 9, P, T100, 20),
    "RecListResp": RecordListResponse(S, 9, P, RECORDS),
    "RecListResp empty": RecordListResponse(S, 9, P, NONE),
}

WITH_RECORDS = (AppendRecordsRequest, RecordListResponse, RepairRequest)

STORAGE_FRAMES = [
    pytest.param(name[2:], frame, id=name[2:])
    for name, frame, _ in GOLDEN_FRAMES
    if name.startswith("S ") and frame is not None
]


@pytest.mark.parametrize(("name", "frame"), STORAGE_FRAMES)
def test_every_golden_frame_holds_both_ways(name: str, frame: bytes) -> None:
    """SN-02: session, sequence number and partition first in each. Version 1 has the messages of
    version 0 as they are, version 2 all those without a list of records, version 3 all those
    without one of headers either."""
    assert STORAGE_CODEC.encode(EXPECTED[name], 0) == frame
    for version in STORAGE_CODEC.versions:
        if version >= BLOCKS_SINCE and isinstance(EXPECTED[name], WITH_RECORDS):
            continue
        if version >= HEADERS_SINCE and isinstance(EXPECTED[name], RecordHeaderListResponse):
            continue
        assert STORAGE_CODEC.encode(EXPECTED[name], version)[3:] == frame[3:]
        assert STORAGE_CODEC.decode(frame[7:], version) == EXPECTED[name]


DAMAGED = (
    DamagedRange(TransactionId(3), TransactionId(5)),
    DamagedRange(TransactionId(50), TransactionId(51)),
)
INFO = SessionInfo(SessionId(8), T99, TransactionId(98))
FRESH = SessionInfo(NO_SESSION, NOTHING, NOTHING)

OWN: dict[str, Message] = {
    "S1 state request": ReplicaStateRequest(S, 10, P),
    "S1 state response": ReplicaStateResponse(S, 10, P, INFO, T100, KEY, True, False, DAMAGED),
    "S1 state response, fresh": ReplicaStateResponse(S, 10, P, FRESH, NOTHING, KEY, True, True, ()),
    "S1 repair": RepairRequest(S, 11, P, RECORDS),
    "S2 append": AppendRecordsRequest(S, 4, P, RECORDS, False),
    "S2 record list": RecordListResponse(S, 9, P, RECORDS),
    "S2 record list, empty": RecordListResponse(S, 9, P, NONE),
    "S2 repair": RepairRequest(S, 11, P, RECORDS),
    "S3 header list": RecordHeaderListResponse(S, 8, P, header_columns(RECORDS)),
    "S6 note clients": NoteClientsRequest(
        S, 13, P, (ClientNote(ClientId(7), "orders", "", "10.0:1", "shop 2"),)
    ),
    "S5 accept damage": AcceptDamageRequest(S, 12, P, DAMAGED),
    "S3 header list, empty": RecordHeaderListResponse(S, 8, P, no_headers(TransactionId(0))),
}


def test_own_messages_have_the_worked_bytes() -> None:
    frames = {name: frame for name, frame in OWN_FRAMES if name.startswith("S")}
    assert frames.keys() == OWN.keys()
    for name, frame in frames.items():
        assert STORAGE_CODEC.encode(OWN[name], int(name[1])) == frame
        assert STORAGE_CODEC.decode(frame[7:], int(name[1])) == OWN[name]


def test_own_messages_have_no_version_0() -> None:
    """The original would close the connection: nothing of the kind is sent to it."""
    for name, frame in OWN_FRAMES:
        if not name.startswith("S1"):
            continue
        with pytest.raises(LocalProtocolError, match=r"not supported by version 0 .* upgrade"):
            STORAGE_CODEC.encode(OWN[name], 0)
        with pytest.raises(RemoteProtocolError, match="unknown message type"):
            STORAGE_CODEC.decode(frame[7:], 0)


def test_damaged_ranges_are_bounded() -> None:
    damaged = DAMAGED[:1] * DAMAGED_RANGES_MAX
    state = ReplicaStateResponse(S, 10, P, INFO, T100, KEY, True, True, damaged)
    assert STORAGE_CODEC.decode(STORAGE_CODEC.encode(state, 1)[7:], 1) == state
    state = ReplicaStateResponse(S, 10, P, INFO, T100, KEY, True, True, (*damaged, DAMAGED[1]))
    with pytest.raises(LocalProtocolError, match=f"damaged: .* at most {DAMAGED_RANGES_MAX}"):
        STORAGE_CODEC.encode(state, 1)


def test_the_texts_and_the_number_of_clients_to_note_are_bounded() -> None:
    note = ClientNote(ClientId(7), "x" * NOTE_TEXT_BYTES_MAX, "", "", "")
    request = NoteClientsRequest(S, 13, P, (note,) * CLIENT_NOTES_MAX)
    frame = STORAGE_CODEC.encode(request, CLIENT_NOTES_SINCE)
    assert STORAGE_CODEC.decode(frame[7:], CLIENT_NOTES_SINCE) == request
    for wrong in ((note,) * (CLIENT_NOTES_MAX + 1), (note._replace(program="ä" * 128),)):
        with pytest.raises(LocalProtocolError, match=r"clients: .* at most"):
            STORAGE_CODEC.encode(NoteClientsRequest(S, 13, P, wrong), CLIENT_NOTES_SINCE)
    longer = frame[7:].replace(b"\0\0\0\xff" + b"x" * 255, b"\0\0\1\0" + b"x" * 256, 1)
    with pytest.raises(RemoteProtocolError, match=r"count 256 .* expected 0 to 255"):
        STORAGE_CODEC.decode(longer, CLIENT_NOTES_SINCE)


def test_a_server_of_before_version_4_is_told_the_state_without_the_refusal() -> None:
    """It asks for the state as others do; the answer must not end the node."""
    state = ReplicaStateResponse(S, 10, P, INFO, T100, KEY, True, False, (), "no space")
    for version in (1, 2, 3):
        frame = STORAGE_CODEC.encode(state, version)
        assert STORAGE_CODEC.decode(frame[7:], version) == replace(state, refusal=None)
    assert STORAGE_CODEC.decode(STORAGE_CODEC.encode(state, 4)[7:], 4) == state


def test_every_golden_name_is_known() -> None:
    assert {parameter.id for parameter in STORAGE_FRAMES} == EXPECTED.keys()


def test_a_failure_without_text_reads_as_empty() -> None:
    """The original sends a null message for an exception that has none."""
    body = STORAGE_CODEC.encode(FailureResponse(S, 4, P, "", ()), 0)[7:]
    null = body[:21] + struct.pack(">i", -1) + body[25:]
    assert STORAGE_CODEC.decode(null, 0) == FailureResponse(S, 4, P, "", ())


def test_a_stack_is_bounded() -> None:
    stack = (StackFrame("", "", None, -1),) * STACK_FRAMES_MAX
    failure = FailureResponse(S, 4, P, "deep", stack)
    assert STORAGE_CODEC.decode(STORAGE_CODEC.encode(failure, 0)[7:], 0) == failure
    with pytest.raises(LocalProtocolError, match=f"stack: .* at most {STACK_FRAMES_MAX}"):
        STORAGE_CODEC.encode(FailureResponse(S, 4, P, "deep", (*stack, stack[0])), 0)


def test_a_batch_that_exceeds_a_frame_is_not_sent() -> None:
    data = bytes(FRAME_BYTES_MAX // 4)
    batch = pack_records(T100, [NewRecord(bytes(16), 0, data, 0)] * 4)
    with pytest.raises(LocalProtocolError, match=f"a frame holds at most {FRAME_BYTES_MAX}"):
        STORAGE_CODEC.encode(AppendRecordsRequest(S, 4, P, batch, False), 0)


def test_records_out_of_order_are_refused() -> None:
    body = STORAGE_CODEC.encode(AppendRecordsRequest(S, 4, P, RECORDS, False), 0)[7:]
    doubled = body[:21] + struct.pack(">i", 2) + body[25:-1] * 2 + body[-1:]
    with pytest.raises(
        RemoteProtocolError, match=r"AppendRecordsRequest: records: transaction ID 100 .* 101"
    ):
        STORAGE_CODEC.decode(doubled, 0)


def blocks(batch: RecordBatch) -> Iterator[Message]:
    """`batch` in each of the messages that carry it as a block."""
    yield AppendRecordsRequest(S, 4, P, batch, False)
    yield RepairRequest(S, 11, P, batch)
    yield RecordListResponse(S, 9, P, batch)


def test_the_block_of_version_2_is_the_one_on_disk() -> None:
    """SN-02: not one byte of it is made anew, neither by the sender nor by the reader."""
    batch = pack_records(T100, [NewRecord(bytes(16), 7, b"x" * n, crc32(b"x" * n)) for n in (3, 0)])
    for message in blocks(batch):
        frame = STORAGE_CODEC.encode(message, BLOCKS_SINCE)
        assert frame.count(batch.block) == 1
        assert STORAGE_CODEC.decode(frame[7:], BLOCKS_SINCE) == message


def test_every_changed_byte_of_a_block_is_refused() -> None:
    batch = pack_records(T100, [NewRecord(bytes(16), 7, b"data", crc32(b"data"))] * 2)
    for message in blocks(batch):
        body = STORAGE_CODEC.encode(message, BLOCKS_SINCE)[7:]
        start = body.index(batch.block)
        for position in range(start, start + len(batch.block)):
            changed = bytearray(body)
            changed[position] ^= 0x40
            with pytest.raises(RemoteProtocolError, match="records: "):
                STORAGE_CODEC.decode(bytes(changed), BLOCKS_SINCE)


def test_data_that_is_not_what_the_client_sent_is_read_but_not_written() -> None:
    """A node gives what it holds, and the last reader refuses it; none takes it to keep."""
    batch = pack_records(T100, [NewRecord(bytes(16), 7, b"data", crc32(b"date"))])
    append, repair, answer = blocks(batch)
    for message in (append, repair):
        body = STORAGE_CODEC.encode(message, BLOCKS_SINCE)[7:]
        with pytest.raises(RemoteProtocolError, match="CRC-32 of the data 100"):
            STORAGE_CODEC.decode(body, BLOCKS_SINCE)
    body = STORAGE_CODEC.encode(answer, BLOCKS_SINCE)[7:]
    assert STORAGE_CODEC.decode(body, BLOCKS_SINCE) == answer
