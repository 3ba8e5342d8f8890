"""The hand-packed step between disk and wire layout, against the declared record."""

from __future__ import annotations

import struct
import tracemalloc
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import batches
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import DATA_BYTES_MAX, RECORD_LIST_RECORDS_MAX
from waltz.record import (
    NewRecord,
    RecordBatch,
    batch_from_block,
    empty_batch,
    pack_records,
)
from waltz.types import TransactionId
from waltz.wire.fields import ListOf, Reader
from waltz.wire.records import RECORD, RECORDS

DECLARED = ListOf(RECORD, RECORD_LIST_RECORDS_MAX)
"""The layout as the specification has it, a record at a time."""

LENGTH_OFFSET = 4 + 28


def written(batch: RecordBatch) -> bytes:
    parts: list[bytes] = []
    RECORDS.write(parts, batch)
    return b"".join(parts)


def read(data: bytes) -> RecordBatch:
    reader = Reader(data)
    batch = RECORDS.read(reader)
    reader.expect_end()
    return batch


def batch_of(*bodies: bytes, first: int = 100) -> RecordBatch:
    return pack_records(
        TransactionId(first), [NewRecord(bytes(16), 1, data, crc32(data)) for data in bodies]
    )


@given(batches())
def test_a_batch_has_the_bytes_of_its_declared_records(batch: RecordBatch) -> None:
    parts: list[bytes] = []
    DECLARED.write(parts, tuple(batch.records()))
    assert written(batch) == b"".join(parts)


@given(batches())
def test_what_is_read_is_the_block_that_will_lie_on_disk(batch: RecordBatch) -> None:
    found = read(written(batch))
    assert found == batch
    assert np.array_equal(found.offsets, batch.offsets)
    assert tuple(found.records()) == DECLARED.read(Reader(written(batch)))
    assert batch_from_block(found.block, found.first_transaction_id) == batch


@given(batches(), st.data())
def test_a_slice_is_written_as_its_records(batch: RecordBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(batch)))
    part = batch.slice(
        TransactionId(batch.first_transaction_id + start), data.draw(st.integers(0, 8))
    )
    assert tuple(DECLARED.read(Reader(written(part)))) == tuple(part.records())


def test_an_empty_list_is_an_empty_batch_from_0() -> None:
    assert written(empty_batch(TransactionId(77))) == bytes(4)
    assert read(bytes(4)) == empty_batch(TransactionId(0))


def test_the_data_checksum_is_carried_and_not_verified() -> None:
    """As in the original storage node; the reader at the far end verifies it."""
    batch = pack_records(TransactionId(0), [NewRecord(bytes(16), 0, b"hello", 12345)])
    assert read(written(batch)).record(0).checksum == 12345


@pytest.mark.parametrize("length", [-1, -(2**31), DATA_BYTES_MAX + 1, 2**30, 2**31 - 1])
def test_a_data_length_out_of_bounds_is_refused(length: int) -> None:
    data = bytearray(written(batch_of(b"hello", b"world")))
    data[LENGTH_OFFSET : LENGTH_OFFSET + 4] = struct.pack(">i", length)
    with pytest.raises(RemoteProtocolError, match=f"data length {length} at byte 32; expected 0"):
        read(bytes(data))


@pytest.mark.parametrize("length", [6, 50, 1000, DATA_BYTES_MAX])
def test_a_data_length_past_the_end_is_refused(length: int) -> None:
    data = bytearray(written(batch_of(b"hello")))
    data[LENGTH_OFFSET : LENGTH_OFFSET + 4] = struct.pack(">i", length)
    with pytest.raises(RemoteProtocolError, match="the message ends at 45"):
        read(bytes(data))


@pytest.mark.parametrize("count", [-1, 3, 2**30, 2**31 - 1, RECORD_LIST_RECORDS_MAX + 1])
def test_a_count_that_cannot_be_is_refused_before_anything_is_allocated(count: int) -> None:
    data = struct.pack(">i", count) + written(batch_of(b"a", b"b"))[4:]
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=f"{count}"):
            read(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_every_truncation_is_refused() -> None:
    data = written(batch_of(b"hello", b"", b"world"))
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            read(data[:end])


@pytest.mark.parametrize("second", [99, 100, 102, -1])
def test_ids_that_are_not_dense_are_refused(second: int) -> None:
    """PM-04."""
    data = written(batch_of(b"a"))[4:] + written(batch_of(b"b", first=second))[4:]
    with pytest.raises(RemoteProtocolError, match=f"transaction ID {second} .* expected 101"):
        read(struct.pack(">i", 2) + data)


def test_the_largest_transaction_id_has_no_successor() -> None:
    last = written(batch_of(b"a", first=2**63 - 1))
    assert read(last).last_transaction_id == 2**63 - 1
    wrapped = last[4:] + written(batch_of(b"b", first=-(2**63)))[4:]
    with pytest.raises(RemoteProtocolError, match="expected 9223372036854775808"):
        read(struct.pack(">i", 2) + wrapped)


def test_what_a_peer_would_refuse_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match=f"at most {RECORD_LIST_RECORDS_MAX}"):
        written(batch_of(*[b""] * (RECORD_LIST_RECORDS_MAX + 1)))
    with pytest.raises(LocalProtocolError, match=f"at most {DATA_BYTES_MAX}"):
        written(batch_of(bytes(DATA_BYTES_MAX + 1)))
