"""The batches of version 5: pinned bytes, and what a hostile peer may send."""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.golden import OWN_FRAMES
from tests.wire.strategies import append_columns, bodies, feed_columns
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import BATCH_APPENDS_MAX, BATCH_LOCKS_MAX, DATA_BYTES_MAX, LOCKS_MAX
from waltz.record import NewRecord, empty_batch, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import (
    BATCH_MESSAGES,
    AppendBatch,
    AppendRejected,
    DataWanted,
    FeedBatch,
    HeaderBlock,
    HeadersRequest,
    Outcome,
    OutcomeRequest,
    OutcomeResponse,
    ReadRequest,
    Reason,
    RecordBlock,
    Rejection,
)
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.columns import AppendColumns, FeedColumns
from waltz.wire.header_columns import HeaderColumns, no_headers
from waltz.wire.message import Message

R = RequestId(ClientId(7), Generation(3), PartitionId(2), 5)
T100 = TransactionId(100)
NONE = TransactionId(-1)
RUNS = np.array([[7, 3, 2, 5, 1], [8, 3, 2, 1, 2]], np.int32)
HEADERS = np.array([0x11223344, 0, -1], np.int32)
APPENDS = AppendColumns(
    np.array([99, 100], np.int64),
    np.array([0x11223344, -1], np.int32),
    np.array([[1, 0, 2], [0, 1, 0]], np.uint16),
    np.array([1, -2, 3, 4], np.int32),
    bodies([b"hello", b""]),
)
RECORDS = pack_records(
    T100,
    [
        NewRecord(request_id_bytes(R), 0x11223344, b"hello", crc32(b"hello")),
        NewRecord(request_id_bytes(R._replace(sequence_number=6)), 0, b"", 0),
    ],
)
EXPECTED: dict[str, Message] = {
    "append batch": AppendBatch(R, APPENDS),
    "append rejected": AppendRejected(
        R,
        (
            Rejection(5, 1, Reason.LOCKED, TransactionId(98), -2),
            Rejection(6, 3, Reason.NOT_COMMITTED, NONE, 0),
        ),
    ),
    "feed batch": FeedBatch(PartitionId(2), T100, FeedColumns(RUNS, HEADERS, None)),
    "feed batch with data": FeedBatch(
        PartitionId(2), T100, FeedColumns(RUNS, HEADERS, bodies([b"hello", b"", b"x"]))
    ),
    "data wanted": DataWanted(R),
    "outcome request": OutcomeRequest(R, TransactionId(99)),
    "outcome response": OutcomeResponse(R, Outcome.COMMITTED, T100),
    "read request": ReadRequest(R, T100, 1000, 65536),
    "record block": RecordBlock(R, TransactionId(101), None, RECORDS),
    "record block, failed": RecordBlock(R, TransactionId(101), "no replica", empty_batch(T100)),
    "headers request": HeadersRequest(R, T100, 1000),
    "header block": HeaderBlock(R, TransactionId(102), None, HeaderColumns(T100, RUNS, HEADERS)),
    "header block, failed": HeaderBlock(R, TransactionId(102), "no replica", no_headers(T100)),
}
FRAMES = {name[3:]: frame for name, frame in OWN_FRAMES if name.startswith("V5 ")}


def decode(body: bytes) -> Message:
    return CLIENT_CODEC.decode(body, 5)


def put(name: str, offset: int, layout: str, *numbers: int) -> bytes:
    """The golden payload with other numbers at an offset after type byte and request ID."""
    body = bytearray(FRAMES[name][7:])
    struct.pack_into(layout, body, 17 + offset, *numbers)
    return bytes(body)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_pinned_bytes_hold_both_ways(name: str) -> None:
    """B-2, B-3, B-6."""
    assert CLIENT_CODEC.encode(EXPECTED[name], 5) == FRAMES[name]
    assert decode(FRAMES[name][7:]) == EXPECTED[name]


def test_every_message_of_the_batch_protocol_has_pinned_bytes() -> None:
    assert {type(each) for each in EXPECTED.values()} == set(BATCH_MESSAGES)
    assert EXPECTED.keys() == FRAMES.keys()
    assert all(64 <= kind.CODE < 96 for kind in BATCH_MESSAGES)


@pytest.mark.parametrize("kind", BATCH_MESSAGES)
def test_older_versions_do_not_know_batches(kind: type[Message]) -> None:
    """CS-14: a Java peer never sees one."""
    message = next(each for each in EXPECTED.values() if type(each) is kind)
    for version in (0, 1, 2, 3, 4):
        with pytest.raises(LocalProtocolError, match="upgrade servers"):
            CLIENT_CODEC.encode(message, version)
        with pytest.raises(RemoteProtocolError, match=f"unknown message type {kind.CODE} "):
            CLIENT_CODEC.decode(bytes([kind.CODE]) + bytes(60), version)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_prefix_and_every_longer_message_is_refused(name: str) -> None:
    body = FRAMES[name][7:]
    for end in range(len(body)):
        with pytest.raises(RemoteProtocolError):
            decode(body[:end])
    with pytest.raises(RemoteProtocolError):
        decode(body + b"\0")


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (put("append batch", 0, "<I", 0), "0 appends; expected 1"),
        (put("append batch", 0, "<I", BATCH_APPENDS_MAX), "columns of"),
        (put("append batch", 0, "<I", BATCH_APPENDS_MAX + 1), "expected 1 to"),
        (put("append batch", 0, "<I", 2**32 - 1), "expected 1 to"),
        (put("append batch", 28, "<i", -1), "data lengths -1 to 0"),
        (put("append batch", 28, "<i", 6), "data of 6 bytes at byte [0-9]+; 5 remain"),
        (put("append batch", 28, "<i", 2**31 - 1), f"expected 0 to {DATA_BYTES_MAX}"),
        (put("append batch", 28, "<ii", 6, -1), "data lengths -1 to 6"),
        (put("append batch", 28, "<ii", 4, 1), "CRC-32 of the 4 bytes of data 0"),
        (put("append batch", 36, "<I", 1), "CRC-32 of the 5 bytes of data 0"),
        (put("append batch", 40, "<I", 1), "CRC-32 of the 0 bytes of data 1"),
        (put("append batch", 44, "<H", 2), "data of 5 bytes at byte [0-9]+; 1 remain"),
        (put("append batch", 44, "<H", LOCKS_MAX), "a column of"),
        (put("append batch", 44, "<H", LOCKS_MAX + 1), f"expected at most {LOCKS_MAX}"),
        (put("append rejected", 12, ">i", 6), "Reason 6"),
        (put("append rejected", 0, ">i", -1), "count -1"),
        (put("feed batch", -4, "<II", 0, 2), "0 transactions in 2 runs"),
        (put("feed batch", -4, "<II", 3, 0), "3 transactions in 0 runs"),
        (put("feed batch", -4, "<II", 3, 4), "3 transactions in 4 runs"),
        (put("feed batch", -4, "<II", 2**32 - 1, 2), "expected 1 to"),
        (put("feed batch", 4, "<B", 2), "data 2; expected"),
        (put("feed batch", 4, "<B", 1), "a column of"),
        (put("feed batch", 21, "<i", 0), r"runs of \[0, 2\]"),
        (put("feed batch", 21, "<i", 2), r"runs of \[2, 2\]"),
        (put("feed batch", 37, "<i", 2**31 - 1), "beyond the last sequence number"),
        (put("feed batch with data", 69, "<I", 0), "CRC-32 of the 5 bytes of data 0"),
        (put("outcome response", 0, ">i", 4), "Outcome 4"),
        (put("record block", 12, "<q", 101), "not dense from 101 on"),
        (put("record block", 12, "<q", -1), "expected a transaction ID"),
        (put("record block", 12, "<q", 2**63 - 1), "expected a transaction ID"),
        (put("record block", 20, "<I", 2**32 - 1), "records; expected"),
        (put("record block", 24, "<I", 2**32 - 1), "bytes expected at byte"),
        (put("record block", 28, "<II", 1, 45), "records start at"),
        (put("record block", 28, "<II", 45, 0), "records start at"),
        (put("record block", 28, "<II", 0, 0), "records start at"),
        (put("record block", 28, "<II", 0, 46), "records start at"),
        (put("record block", 28, "<II", 0, 44), "not dense from 100 on"),
        (put("record block", 28, "<II", 0, 2**32 - 1), "records start at"),
        (put("record block", 36 + 28, ">i", 4), "data lengths do not fit"),
        (put("record block", 36 + 36, ">B", 0), "CRC-32 of the record 100"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_allocated(body: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        decode(body)


def test_too_many_locks_in_all_are_refused() -> None:
    """A lock takes a hundred bytes while it is checked, four on the wire."""
    count = BATCH_LOCKS_MAX // LOCKS_MAX + 1
    columns = AppendColumns(
        np.zeros(count, np.int64),
        np.zeros(count, np.int32),
        np.tile(np.array([LOCKS_MAX, 0, 0], np.uint16), (count, 1)),
        np.zeros(LOCKS_MAX * count, np.int32),
        bodies([b""] * count),
    )
    with pytest.raises(LocalProtocolError, match=f"at most {BATCH_LOCKS_MAX}"):
        CLIENT_CODEC.encode(AppendBatch(R, columns), 5)
    start = bytes([AppendBatch.CODE]) + request_id_bytes(R) + struct.pack("<I", count)
    counts = struct.pack("<HHH", LOCKS_MAX, 0, 0) * count
    with pytest.raises(RemoteProtocolError, match=f"expected at most {LOCKS_MAX} and"):
        decode(start + bytes(20 * count) + counts + bytes(4 * LOCKS_MAX * count))


def test_the_data_of_a_record_has_to_fit_its_own_checksum_too() -> None:
    """What is wrong when it is packed is wrong for whoever reads it."""
    wrong = pack_records(T100, [NewRecord(request_id_bytes(R), 0, b"hello", 1)])
    frame = CLIENT_CODEC.encode(RecordBlock(R, T100, None, wrong), 5)
    with pytest.raises(RemoteProtocolError, match="CRC-32 of the data 100 is 3610a686"):
        decode(frame[7:])


def is_found(frame: str, byte_count: int, bit: int) -> bool:
    """Whether a frame is refused of whose last bytes a bit is flipped."""
    body = bytearray(FRAMES[frame][7:])
    body[len(body) - byte_count + bit // 8] ^= 1 << bit % 8
    try:
        decode(bytes(body))
    except RemoteProtocolError:
        return True
    return False


def test_every_flipped_bit_of_headers_is_found() -> None:
    assert [bit for bit in range(8 * 72) if not is_found("header block", 72, bit)] == []


def test_every_flipped_bit_of_a_record_is_found() -> None:
    """CS-26."""
    assert [bit for bit in range(8 * 85) if not is_found("record block", 85, bit)] == []


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            AppendColumns(
                np.zeros(0, np.int64),
                np.zeros(0, np.int32),
                np.zeros((0, 3), np.uint16),
                np.zeros(0, np.int32),
                bodies([]),
            ),
            "no appends",
        ),
        (
            AppendColumns(
                APPENDS.client_high_water_marks[:1],
                APPENDS.headers,
                APPENDS.lock_counts,
                APPENDS.lock_hashes,
                APPENDS.bodies,
            ),
            "1 client high-water marks; expected 2",
        ),
        (
            AppendColumns(
                APPENDS.client_high_water_marks,
                np.array([2**31, 0]),
                APPENDS.lock_counts,
                APPENDS.lock_hashes,
                APPENDS.bodies,
            ),
            "headers: 0 to 2147483648 do not fit",
        ),
        (
            AppendColumns(
                APPENDS.client_high_water_marks,
                APPENDS.headers,
                APPENDS.lock_counts,
                APPENDS.lock_hashes[1:],
                APPENDS.bodies,
            ),
            "3 lock hashes; expected 4",
        ),
    ],
)
def test_what_is_wrong_is_not_sent(columns: AppendColumns, text: str) -> None:
    with pytest.raises(LocalProtocolError, match=text):
        CLIENT_CODEC.encode(AppendBatch(R, columns), 5)


@given(columns=append_columns(), sequence_number=st.integers(-(2**31), 2**31 - 1))
def test_an_append_batch_comes_back_as_it_was(columns: AppendColumns, sequence_number: int) -> None:
    message = AppendBatch(R._replace(sequence_number=sequence_number), columns)
    assert decode(CLIENT_CODEC.encode(message, 5)[7:]) == message


@given(columns=feed_columns())
def test_a_feed_batch_comes_back_with_one_request_id_per_transaction(columns: FeedColumns) -> None:
    message = FeedBatch(PartitionId(2), T100, columns)
    found = decode(CLIENT_CODEC.encode(message, 5)[7:])
    assert found == message
    assert isinstance(found, FeedBatch)
    plainly = [
        RequestId(ClientId(run[0]), Generation(run[1]), PartitionId(run[2]), run[3] + index)
        for run in columns.runs.tolist()
        for index in range(run[4])
    ]
    assert list(found.feed.request_ids()) == plainly


@given(st.data())
def test_no_damage_of_a_batch_is_anything_but_another_message_or_a_refusal(
    data: st.DataObject,
) -> None:
    body = bytearray(FRAMES[data.draw(st.sampled_from(sorted(FRAMES)))][7:])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(1, len(body) - 4))
        hostile = data.draw(st.sampled_from([0, 1, 5, 2**16, 2**31 - 1, 2**31, 2**32 - 1]))
        struct.pack_into(data.draw(st.sampled_from(["<I", ">I"])), body, place, hostile)
    try:
        found = decode(bytes(body))
    except RemoteProtocolError:
        return
    assert decode(CLIENT_CODEC.encode(found, 5)[7:]) == found
