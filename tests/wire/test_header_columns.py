"""Headers side by side are those of their records, in both encodings."""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import batches
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import RECORD_LIST_RECORDS_MAX
from waltz.record import NewRecord, RecordBatch, pack_records, request_id_bytes
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.fields import ListOf, Reader
from waltz.wire.header_columns import (
    HEADER_COLUMNS,
    HEADER_ROWS,
    HeaderColumns,
    HeaderColumnsField,
    HeaderRows,
    header_columns,
    join_headers,
    no_headers,
)
from waltz.wire.records import RECORD_HEADER_FIELD, RecordHeader

DECLARED = ListOf(RECORD_HEADER_FIELD, RECORD_LIST_RECORDS_MAX)
"""The layout as the specification has it, a row at a time."""

FIELDS = pytest.mark.parametrize("field", [HEADER_ROWS, HEADER_COLUMNS])


def request_id(number: int) -> RequestId:
    return RequestId(ClientId(7), Generation(1), PartitionId(3), number)


def records_of(*numbers: int, first: int = 100) -> RecordBatch:
    """Records whose request IDs end with these numbers."""
    return pack_records(
        TransactionId(first),
        [NewRecord(request_id_bytes(request_id(each)), each, b"data", 0) for each in numbers],
    )


def written(field: HeaderRows | HeaderColumnsField, value: HeaderColumns) -> bytes:
    parts: list[bytes] = []
    field.write(parts, value)
    return b"".join(parts)


def read(field: HeaderRows | HeaderColumnsField, data: bytes) -> HeaderColumns:
    reader = Reader(data)
    found = field.read(reader)
    reader.expect_end()
    return found


@given(batches(checked=True))
def test_headers_are_those_of_the_records(records: RecordBatch) -> None:
    found = header_columns(records)
    assert len(found) == len(records)
    assert found.first_transaction_id == records.first_transaction_id
    assert found.next_transaction_id == records.next_transaction_id
    assert np.array_equal(found.request_ids(), records.request_ids())
    assert np.array_equal(found.headers(), records.headers())


@given(batches(checked=True))
def test_rows_have_the_bytes_of_their_declared_headers(records: RecordBatch) -> None:
    rows = [RecordHeader(*record[:3]) for record in records.records()]
    parts: list[bytes] = []
    DECLARED.write(parts, tuple(rows))
    assert written(HEADER_ROWS, header_columns(records)) == b"".join(parts)


@FIELDS
@given(records=batches(checked=True))
def test_what_is_written_is_read(
    field: HeaderRows | HeaderColumnsField, records: RecordBatch
) -> None:
    headers = header_columns(records)
    assert read(field, written(field, headers)) == headers


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_a_part_is_that_of_the_records(steps: list[int], data: st.DataObject) -> None:
    records = records_of(*np.cumsum(steps).tolist())
    first = TransactionId(data.draw(st.integers(95, 125)))
    count = data.draw(st.integers(0, 25))
    part = header_columns(records).slice(first, count)
    expected = records.slice(first, count)
    assert part.first_transaction_id == expected.first_transaction_id
    assert np.array_equal(part.request_ids(), expected.request_ids())
    assert np.array_equal(part.headers(), expected.headers())


def test_adjoining_parts_are_one() -> None:
    whole = header_columns(records_of(4, 5, 6, 9))
    parts = [header_columns(records_of(4, 5)), header_columns(records_of(6, 9, first=102))]
    joined = join_headers(parts)
    assert joined.first_transaction_id == whole.first_transaction_id
    assert np.array_equal(joined.request_ids(), whole.request_ids())
    assert joined.byte_count == joined.runs.nbytes + 16
    assert join_headers(parts[:1]) is parts[0]


@FIELDS
def test_more_than_a_list_may_have_is_not_sent(field: HeaderRows | HeaderColumnsField) -> None:
    count = RECORD_LIST_RECORDS_MAX + 1
    runs = np.array([[1, 1, 1, 0, count]], np.int32)
    with pytest.raises(LocalProtocolError, match=f"at most {RECORD_LIST_RECORDS_MAX}"):
        written(field, HeaderColumns(TransactionId(0), runs, np.zeros(count, np.int32)))


def test_rows_whose_ids_are_not_dense_are_refused() -> None:
    body = bytearray(written(HEADER_ROWS, header_columns(records_of(1, 2))))
    body[4 + 28 + 7] ^= 1
    with pytest.raises(RemoteProtocolError, match="not dense from 100"):
        read(HEADER_ROWS, bytes(body))


def test_rows_that_do_not_begin_at_a_transaction_id_are_refused() -> None:
    body = bytearray(written(HEADER_ROWS, header_columns(records_of(1, 2))))
    body[4] |= 0x80
    with pytest.raises(RemoteProtocolError, match="expected a transaction ID"):
        read(HEADER_ROWS, bytes(body))


def test_every_changed_byte_of_the_columns_is_refused() -> None:
    body = written(HEADER_COLUMNS, header_columns(records_of(1, 2, 9)))
    for position in range(len(body)):
        changed = bytearray(body)
        changed[position] ^= 0x40
        with pytest.raises(RemoteProtocolError):
            read(HEADER_COLUMNS, bytes(changed))


def test_every_cut_is_refused() -> None:
    for field in (HEADER_ROWS, HEADER_COLUMNS):
        body = written(field, header_columns(records_of(1, 2)))
        for end in range(len(body)):
            with pytest.raises(RemoteProtocolError):
                read(field, body[:end])


@pytest.mark.parametrize(
    ("first", "count", "runs"),
    [
        (0, 2**32 - 1, 1),
        (0, RECORD_LIST_RECORDS_MAX + 1, 1),
        (0, 1, 2),
        (0, 1, 0),
        (-1, 1, 1),
        (2**63 - 1, 1, 1),
    ],
)
def test_counts_that_cannot_be_are_refused(first: int, count: int, runs: int) -> None:
    start = struct.pack("<qII", first, count, runs)
    columns = struct.pack("<6i", 7, 1, 3, 0, 1, 9)
    checksum = struct.pack("<I", crc32(start + columns))
    with pytest.raises(RemoteProtocolError, match="headers"):
        read(HEADER_COLUMNS, start + checksum + columns)


def test_none_are_none() -> None:
    assert len(no_headers(TransactionId(5))) == 0
    assert read(HEADER_ROWS, written(HEADER_ROWS, no_headers(TransactionId(5)))) == no_headers(
        TransactionId(0)
    )
