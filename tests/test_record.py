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


def test_many_records_are_packed_as_a_few_are() -> None:
    """By columns, or one after the other."""
    new = [
        NewRecord(bytes([number]) * 16, -number, data, crc32(data))
        for number in range(200)
        for data in [b"d" * (number % 50)]
    ]
    first = TransactionId(2**40 + 9)
    packed = pack_records(first, new)
    parts = [pack_records(TransactionId(first + n), new[n : n + 20]) for n in range(0, 200, 20)]
    joined = join_batches(parts)
    assert packed == joined
    assert packed.offsets.tolist() == joined.offsets.tolist()
    assert batch_from_block(packed.block, first) == packed


@pytest.mark.parametrize("place", [0, 57, 199])
def test_data_that_have_changed_since_they_were_verified_get_no_good_record(place: int) -> None:
    """The checksum of a record follows from the one that the client sent, not from the data."""
    new = [NewRecord(bytes(16), 0, b"some data", crc32(b"some data")) for _ in range(200)]
    new[place] = new[place]._replace(data=b"some dots")
    fault = pack_records(TransactionId(7), new).fault(with_data=False)
    assert fault is not None
    assert f"CRC-32 of the record {7 + place} is" in fault


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


def filled(count: int, size: int) -> RecordBatch:
    """Records of various data, dense from 7 on, with right checksums."""
    data = [bytes([number % 251]) * (size + number % 3) for number in range(count)]
    return pack_records(
        TransactionId(7),
        [
            NewRecord(bytes(12) + number.to_bytes(4, "big"), number, each, crc32(each))
            for number, each in enumerate(data)
        ],
    )


SHAPES = [(0, 0), (1, 0), (3, 8), (32, 5), (33, 5), (100, 0), (40, 2000)]
"""Numbers of records and about their bytes: few, many, and so long that one pass must do."""


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize(("count", "size"), SHAPES)
def test_a_batch_as_it_was_packed_has_no_fault(count: int, size: int, with_data: bool) -> None:
    batch = filled(count, size)
    assert batch.fault(with_data=with_data) is None
    assert not batch.wrong_data().any()


@pytest.mark.parametrize("with_data", [False, True])
@pytest.mark.parametrize(("count", "size"), SHAPES[1:])
def test_a_changed_byte_anywhere_is_a_fault(count: int, size: int, with_data: bool) -> None:
    batch = filled(count, size)
    middle = int(batch.offsets[count // 2])
    end = int(batch.offsets[count // 2 + 1])
    for position in {*range(middle, min(middle + 50, end)), end - 5, end - 4, end - 1}:
        changed = bytearray(batch.block)
        changed[position] ^= 0x10
        found = RecordBatch(batch.first_transaction_id, bytes(changed), batch.offsets)
        assert found.fault(with_data=with_data) is not None, position


@pytest.mark.parametrize(("count", "size"), SHAPES[1:])
def test_data_that_its_checksum_does_not_fit_is_a_fault_if_asked_for(count: int, size: int) -> None:
    """The checksum of the record covers it as it is: only the data's own one tells."""
    good = pack_records(
        TransactionId(7), [NewRecord(bytes(16), 0, bytes(size), crc32(bytes(size)))] * count
    )
    block = bytearray(good.block)
    start, end = good.offsets[count // 2 : count // 2 + 2].tolist()
    block[start + 35] ^= 1
    block[end - 4 : end] = crc32(block[start : end - 4]).to_bytes(4, "big")
    batch = RecordBatch(TransactionId(7), bytes(block), good.offsets)
    assert batch.fault(with_data=False) is None
    fault = batch.fault(with_data=True)
    assert fault is not None
    assert f"CRC-32 of the data {7 + count // 2} is" in fault
    assert np.flatnonzero(batch.wrong_data()).tolist() == [count // 2]


@pytest.mark.parametrize(("count", "size"), [(3, 8), (100, 8)])
def test_offsets_that_are_not_those_of_the_records_are_a_fault(count: int, size: int) -> None:
    batch = filled(count, size)
    for place, shift in ((0, 1), (1, 1), (1, -1), (1, -(2**40)), (2, 2**40)):
        offsets = batch.offsets.copy()
        offsets[place] += shift
        assert RecordBatch(TransactionId(7), batch.block, offsets).fault(with_data=True)
    assert RecordBatch(TransactionId(8), batch.block, batch.offsets).fault(with_data=True)
    assert RecordBatch(TransactionId(7), batch.block, batch.offsets[:-1]).fault(with_data=True)
    low = pack_records(TransactionId(-1), [NewRecord(bytes(16), 0, b"", 0)] * count)
    assert "expected a transaction ID" in (low.fault(with_data=True) or "")
