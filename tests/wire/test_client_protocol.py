"""The client protocol against the original's bytes, and its fast paths against its declarations."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.golden import GOLDEN_FRAMES, REFUSED
from tests.wire.strategies import messages
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import DATA_BYTES_MAX, LOCKS_MAX
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    AppendRequest,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.message import Message


def request_id(generation: int, partition_id: int, sequence_number: int) -> RequestId:
    return RequestId(
        ClientId(7), Generation(generation), PartitionId(partition_id), sequence_number
    )


R = request_id(3, 2, 5)
QUERY = request_id(0, 0, 0)
PREFERRED = request_id(0, 1, 0)
HELLO_CHECKSUM = 0x3610A686
T100 = TransactionId(100)


def partitions(*numbers: int) -> tuple[PartitionId, ...]:
    return tuple(map(PartitionId, numbers))


def append(
    write: tuple[int, ...] = (), read: tuple[int, ...] = (), append: tuple[int, ...] = ()
) -> AppendRequest:
    return AppendRequest(
        R, TransactionId(99), write, read, append, 0x11223344, b"hello", HELLO_CHECKSUM
    )


EXPECTED: dict[str, Message] = {
    "MountRequest hwm=-1 seq=0": MountRequest(R, TransactionId(-1), 0),
    "MountRequest hwm=99 seq=1": MountRequest(R, TransactionId(99), 1),
    "MountResponse state=0": MountResponse(R, MountState.READY),
    "MountResponse state=1": MountResponse(R, MountState.NOT_READY),
    "MountResponse state=2": MountResponse(R, MountState.CLIENT_AHEAD),
    "Append nolocks": append(),
    "Append w[1,-2]": append((1, -2)),
    "Append w[1] r[2]": append((1,), (2,)),
    "Append w[1] r[2] a[3]": append((1,), (2,), (3,)),
    "FeedRequest": FeedRequest(R, TransactionId(99)),
    "FeedData": FeedData(R, T100, 0x11223344),
    "FeedSuspended": FeedSuspended(R),
    "TxDataRequest": TransactionDataRequest(R, T100),
    "TxDataResponse ok": TransactionDataResponse(R, T100, b"hello", HELLO_CHECKSUM, None),
    "TxDataResponse fail": TransactionDataResponse(R, T100, None, 0, "partition not ready"),
    "TxDataResponse failnull": TransactionDataResponse(R, T100, None, 0, None),
    "FlushRequest": FlushRequest(R),
    "FlushResponse": FlushResponse(R, T100),
    "LockFailure": LockFailure(R, T100),
    "HwmRequest": HighWaterMarkRequest(R),
    "HwmResponse": HighWaterMarkResponse(R, T100),
    "CheckStorageReq": CheckStorageConnectivityRequest(QUERY),
    "CheckStorageResp": CheckStorageConnectivityResponse(
        QUERY, (("h1:6000", True), ("h2:6000", False))
    ),
    "AssignReq": ServerPartitionsAssignmentRequest(QUERY),
    "AssignResp": ServerPartitionsAssignmentResponse(QUERY, partitions(0, 2)),
    "AddPrefReq": AddPreferredPartitionRequest(PREFERRED, partitions(1, 3)),
    "AddPrefResp": AddPreferredPartitionResponse(QUERY, True),
    "RemPrefReq": RemovePreferredPartitionRequest(PREFERRED, partitions(1, 3)),
    "RemPrefResp": RemovePreferredPartitionResponse(QUERY, False),
    "HealthReq": ServerPartitionsHealthRequest(QUERY),
    "HealthResp": ServerPartitionsHealthResponse(
        QUERY, ((PartitionId(0), True), (PartitionId(2), False))
    ),
}

CLIENT_FRAMES = [
    pytest.param(name[3:], int(name[1]), frame, id=name)
    for name, frame, _ in GOLDEN_FRAMES
    if name.startswith("V") and frame is not None
]

FAST_KINDS = [AppendRequest, FeedData, TransactionDataRequest, TransactionDataResponse]


def outcome(decode: Any, body: bytes, version: int) -> Message | str:
    try:
        found: Message = decode(body, version)
    except RemoteProtocolError as error:
        return str(error)
    return found


@pytest.mark.parametrize(("name", "version", "frame"), CLIENT_FRAMES)
def test_every_golden_frame_holds_both_ways(name: str, version: int, frame: bytes) -> None:
    """CS-09 to CS-22, CS-25."""
    expected = EXPECTED[name]
    assert CLIENT_CODEC.encode(expected, version) == frame
    if name == "MountResponse state=2" and version < 3:
        expected = EXPECTED["MountResponse state=1"]
    assert CLIENT_CODEC.decode(frame[7:], version) == expected


@pytest.mark.parametrize("golden", REFUSED, ids=lambda golden: golden.name)
def test_what_the_original_refuses_to_encode_we_refuse(golden: Any) -> None:
    """CS-14."""
    message, version = EXPECTED[golden.name[3:]], int(golden.name[1])
    with pytest.raises(LocalProtocolError, match="upgrade servers"):
        CLIENT_CODEC.encode(message, version)
    if "not supported" in golden.refusal:
        assert isinstance(message, AppendRequest)
        lacking = "read_locks" if "read locks" in golden.refusal else "append_locks"
        with pytest.raises(LocalProtocolError, match=lacking):
            CLIENT_CODEC.encode(message, version)
    else:
        with pytest.raises(RemoteProtocolError, match=f"unknown message type {message.CODE} "):
            CLIENT_CODEC.decode(bytes([message.CODE]) + bytes(24), version)


def test_every_golden_name_is_known() -> None:
    assert len(CLIENT_FRAMES) + len(REFUSED) == 5 * len(EXPECTED)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_versions_cannot_tell_a_client_ahead_from_not_ready(version: int) -> None:
    """CS-10."""
    frame = CLIENT_CODEC.encode(MountResponse(R, MountState.CLIENT_AHEAD), version)
    assert CLIENT_CODEC.decode(frame[7:], version) == MountResponse(R, MountState.NOT_READY)


@pytest.mark.parametrize("version", [3, 4])
def test_an_unknown_mount_state_is_refused(version: int) -> None:
    frame = CLIENT_CODEC.encode(MountResponse(R, MountState.READY), version)
    with pytest.raises(RemoteProtocolError, match="state: MountState 3 at byte 17"):
        CLIENT_CODEC.decode(frame[7:-4] + struct.pack(">i", 3), version)


@pytest.mark.parametrize("message", [append(), append((1,), (), ()), EXPECTED["TxDataResponse ok"]])
@pytest.mark.parametrize("version", [0, 2, 4])
def test_every_flipped_bit_of_data_or_checksum_is_found(message: Message, version: int) -> None:
    """CS-26."""
    body = CLIENT_CODEC.encode(message, version)[7:]
    data_start = body.index(b"hello")
    for bit in range(8 * (len(body) - data_start)):
        broken = bytearray(body)
        broken[data_start + bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError, match="checksum: CRC-32 of the 5 bytes of data"):
            CLIENT_CODEC.decode(bytes(broken), version)


def test_a_wrong_checksum_is_sent_as_it_came() -> None:
    """Recomputing it would hide what happened to the data on the way."""
    wrong = TransactionDataResponse(R, T100, b"hello", 1, None)
    assert CLIENT_CODEC.encode(wrong, 4).endswith(b"hello\x00\x00\x00\x01")
    assert CLIENT_CODEC.encode(wrong, 4) == CLIENT_CODEC.encode_declared(wrong, 4)


@pytest.mark.parametrize("flag", [0, 2, 0x80, 0xFF])
def test_only_1_says_that_data_follows(flag: int) -> None:
    body = bytearray(CLIENT_CODEC.encode(EXPECTED["TxDataResponse ok"], 4)[7:])
    assert body[25] == 1
    body[25] = flag
    for decode in (CLIENT_CODEC.decode, CLIENT_CODEC.decode_declared):
        with pytest.raises(RemoteProtocolError, match="4 bytes left over"):
            decode(bytes(body), 4)


@pytest.mark.parametrize("field", ["write_locks", "read_locks", "append_locks"])
def test_too_many_locks_are_not_sent_and_not_taken(field: str) -> None:
    position = ["write_locks", "read_locks", "append_locks"].index(field)
    locks: list[tuple[int, ...]] = [(), (), ()]
    locks[position] = (1,) * (LOCKS_MAX + 1)
    with pytest.raises(
        LocalProtocolError, match=f"{field}: {LOCKS_MAX + 1} .* at most {LOCKS_MAX}"
    ):
        CLIENT_CODEC.encode(append(*locks), 4)
    locks[position] = (1,) * LOCKS_MAX
    frame = CLIENT_CODEC.encode(append(*locks), 4)
    assert CLIENT_CODEC.decode(frame[7:], 4) == append(*locks)
    count_at = 7 + 25 + 4 * position
    longer = frame[7:count_at] + struct.pack(">ii", LOCKS_MAX + 1, 1) + frame[count_at + 4 :]
    with pytest.raises(RemoteProtocolError, match=f"{field}: count {LOCKS_MAX + 1}"):
        CLIENT_CODEC.decode(longer, 4)


def test_too_much_data_is_not_sent_and_not_taken() -> None:
    data = bytes(DATA_BYTES_MAX + 1)
    request = AppendRequest(R, T100, (), (), (), 0, data, crc32(data))
    response = TransactionDataResponse(R, T100, data, crc32(data), None)
    for message in (request, response):
        with pytest.raises(LocalProtocolError, match=f"data: .* at most {DATA_BYTES_MAX}"):
            CLIENT_CODEC.encode(message, 4)
    body = CLIENT_CODEC.encode(append(), 4)[7:48] + struct.pack(">i", len(data)) + data + bytes(4)
    with pytest.raises(RemoteProtocolError, match=f"data: count {len(data)}"):
        CLIENT_CODEC.decode(body, 4)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (AppendRequest(R, T100, (2**31,), (), (), 0, b"", 0), "write_locks"),
        (AppendRequest(R, T100, (), (), (), 2**31, b"", 0), "header"),
        (AppendRequest(R, T100, (), (), (), 0, b"", -1), "checksum"),
        (FeedData(R, TransactionId(2**63), 0), "transaction_id"),
        (TransactionDataRequest(request_id(2**31, 0, 0), T100), "request_id"),
        (TransactionDataResponse(R, T100, b"", 2**32, None), "checksum"),
        (TransactionDataResponse(R, T100, b"", 0, "both"), "error is given, but data is too"),
        (TransactionDataResponse(R, T100, None, 1, None), "checksum is given, but data is not"),
    ],
)
def test_what_does_not_fit_is_named(message: Message, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"{type(message).__name__}.{text}"):
        CLIENT_CODEC.encode(message, 4)


@pytest.mark.parametrize("kind", FAST_KINDS)
@settings(max_examples=150)
@given(data=st.data())
def test_damaged_messages_have_one_outcome_on_the_fast_and_the_declared_path(
    kind: type[Message], data: st.DataObject
) -> None:
    version = data.draw(st.sampled_from(CLIENT_CODEC.versions))
    body = bytearray(CLIENT_CODEC.encode(data.draw(messages(kind, version)), version)[7:])
    match data.draw(st.sampled_from(["byte", "int", "cut", "longer"])):
        case "byte":
            place = data.draw(st.integers(1, len(body) - 1))
            body[place] = data.draw(st.integers(0, 255))
        case "int":
            place = data.draw(st.integers(1, len(body) - 4))
            hostile = data.draw(st.sampled_from([-1, 0, 1, 5, 2**30, 2**31 - 1, -(2**31)]))
            body[place : place + 4] = struct.pack(">i", hostile)
        case "cut":
            del body[data.draw(st.integers(1, len(body) - 1)) :]
        case _:
            body += data.draw(st.binary(min_size=1, max_size=8))
    assert outcome(CLIENT_CODEC.decode, bytes(body), version) == outcome(
        CLIENT_CODEC.decode_declared, bytes(body), version
    )
