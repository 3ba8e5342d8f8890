"""The record layout and the batch; SD-11."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import CorruptionError
from waltz.record import (
    NewRecord,
    RecordBatch,
    batch_from_block,
    empty_batch,
    join_batches,
    pack_records,
    request_id_bytes,
    request_id_from,
    scan_records,
)
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

GOLDEN = Path(__file__).parent / "golden"
INT = st.integers(-(2**31), 2**31 - 1)
REQUEST_IDS = st.builds(
    RequestId, INT.map(ClientId), INT.map(Generation), INT.map(PartitionId), INT
)
NEW_RECORDS = st.lists(
    st.builds(
        lambda request_id, header, data: NewRecord(
            request_id_bytes(request_id), header, data, crc32(data)
        ),
        REQUEST_IDS,
        INT,
        st.binary(max_size=40),
    ),
    max_size=8,
)
FIRST = st.integers(0, 2**62).map(TransactionId)


def hello(count: int) -> RecordBatch:
    request_id = RequestId(ClientId(1), Generation(1), PartitionId(0), 2)
    record = NewRecord(request_id_bytes(request_id), 0x11223344, b"hello", crc32(b"hello"))
    return pack_records(TransactionId(0), [record] * count)


def test_a_record_has_the_bytes_of_the_original() -> None:
    expected = (
        "0000000000000000 00000001000000010000000000000002 11223344 00000005"
        " 3610a686 68656c6c6f ee9a12e9"
    )
    assert hello(1).block == bytes.fromhex(expected)


def test_a_segment_of_the_original_is_scanned_to_its_end() -> None:
    data = (GOLDEN / "storage-after-clients/1/0000000000000000000.seg").read_bytes()
    offsets = scan_records(data, TransactionId(0), start=128)
    index = (GOLDEN / "storage-after-clients/1/0000000000000000000.idx").read_bytes()
    assert offsets[-1] == len(data)
    assert offsets[:-1].tolist() == np.frombuffer(index, ">i8", offset=128).tolist()


@given(FIRST, NEW_RECORDS)
def test_what_is_packed_is_read_back(first: TransactionId, new: list[NewRecord]) -> None:
    batch = pack_records(first, new)
    assert batch_from_block(batch.block, first) == batch
    assert [record.transaction_id for record in batch.records()] == [
        first + index for index in range(len(new))
    ]
    assert [
        NewRecord(request_id_bytes(r.request_id), r.header, r.data, r.checksum)
        for r in batch.records()
    ] == new
    assert batch.headers().tolist() == [record.header for record in new]
    assert batch.request_ids().tobytes() == b"".join(record.request_id for record in new)
    assert batch.data_checksums().tolist() == [record.checksum for record in new]
    assert [batch.data(index) for index in range(len(batch))] == [record.data for record in new]


@given(FIRST, NEW_RECORDS, st.integers(-2, 10), st.integers(0, 10))
def test_a_slice_holds_the_records_asked_for(
    first: TransactionId, new: list[NewRecord], start: int, count: int
) -> None:
    batch = pack_records(first, new)
    part = batch.slice(TransactionId(first + start), count)
    wanted = [
        r for r in batch.records() if first + start <= r.transaction_id < first + start + count
    ]
    assert list(part.records()) == wanted
    if wanted:
        assert batch_from_block(part.block, wanted[0].transaction_id) == part


@given(FIRST, st.lists(NEW_RECORDS, min_size=1, max_size=4))
def test_joined_batches_are_the_batch_packed_at_once(
    first: TransactionId, parts: list[list[NewRecord]]
) -> None:
    batches = []
    following = first
    for part in parts:
        batches.append(pack_records(following, part))
        following = batches[-1].next_transaction_id
    joined = join_batches(batches)
    packed = pack_records(first, [record for part in parts for record in part])
    assert joined == packed
    assert joined.offsets.tolist() == packed.offsets.tolist()


def test_a_batch_with_a_gap_cannot_be_joined() -> None:
    with pytest.raises(AssertionError):
        join_batches([hello(2), empty_batch(TransactionId(3))])


@pytest.mark.parametrize("size", range(135))
def test_a_cut_block_is_read_up_to_its_last_whole_record(size: int) -> None:
    block = hello(3).block[:size]
    assert scan_records(block, TransactionId(0)).tolist() == [0, 45, 90, 135][: 1 + size // 45]


@pytest.mark.parametrize("position", range(45))
def test_every_changed_byte_is_noticed(position: int) -> None:
    """I2, SD-16: no byte of a record can change without its record being refused."""
    damaged = bytearray(hello(2).block)
    damaged[45 + position] ^= 0x40
    assert scan_records(bytes(damaged), TransactionId(0)).tolist() == [0, 45]
    with pytest.raises(CorruptionError, match="record 1"):
        batch_from_block(bytes(damaged), TransactionId(0))


def test_a_record_out_of_its_place_is_refused() -> None:
    assert scan_records(hello(1).block, TransactionId(1)).tolist() == [0]


@given(REQUEST_IDS)
def test_a_request_id_survives_its_bytes(request_id: RequestId) -> None:
    """CS-06."""
    assert request_id_from(request_id_bytes(request_id)) == request_id
    assert len(request_id_bytes(request_id)) == 16
