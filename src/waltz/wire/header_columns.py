"""Headers of records side by side: a replica's answer to a reader that wants no data.

Owns the value and its two encodings. Up to version 2 of the storage protocol a list of headers is a
count and a row for each, as in the original; from version 3 on it has the columns of the feed, so
that a server hands them on as they are, and a checksum of its own: that of the records, which the
replica has verified, stays behind with the data.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final
from zlib import crc32

from waltz.arrays import np
from waltz.errors import RemoteProtocolError
from waltz.limits import RECORD_LIST_RECORDS_MAX
from waltz.record import REQUEST_ID_BYTES, RecordBatch
from waltz.types import TransactionId
from waltz.wire.columns import (
    RUN_NUMBERS,
    Columns,
    FeedColumns,
    column_of,
    expanded_request_ids,
    read_runs,
    request_id_runs,
)
from waltz.wire.fields import Reader, check_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COUNT: Final = struct.Struct(">i")
_START: Final = struct.Struct("<qII")
_CHECKSUM: Final = struct.Struct("<I")


@cache
def _rows() -> np.dtype[np.void]:
    return np.dtype(
        [("transaction_id", ">i8"), ("request_id", "u1", (REQUEST_ID_BYTES,)), ("header", ">i4")]
    )


@dataclass(frozen=True, slots=True, eq=False)
class HeaderColumns(Columns):
    """Records with dense IDs from `first_transaction_id` on without their data, perhaps none.

    runs   those of their request IDs; see `FeedColumns`.
    """

    first_transaction_id: TransactionId
    runs: NDArray[np.int32]
    transaction_headers: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.transaction_headers)

    @property
    def next_transaction_id(self) -> TransactionId:
        return TransactionId(self.first_transaction_id + len(self))

    @property
    def byte_count(self) -> int:
        """The memory of the columns."""
        return self.runs.nbytes + self.transaction_headers.nbytes

    def headers(self) -> NDArray[np.int32]:
        """One transaction header per record."""
        return self.transaction_headers

    def request_ids(self) -> NDArray[np.uint8]:
        """One row of 16 bytes per record."""
        return expanded_request_ids(self.runs).view(np.uint8).reshape(-1, REQUEST_ID_BYTES)

    def slice(self, first: TransactionId, count: int) -> HeaderColumns:
        """Return the records `first` to `first + count - 1`, as far as they are here."""
        start = min(max(0, first - self.first_transaction_id), len(self))
        end = min(max(start, first - self.first_transaction_id + count), len(self))
        if end - start == len(self):
            return self
        return HeaderColumns(
            TransactionId(self.first_transaction_id + start),
            _runs_between(self.runs, start, end),
            self.transaction_headers[start:end],
        )

    def feed(self) -> FeedColumns:
        """Return what the feed says of them; at least one."""
        return FeedColumns(self.runs, self.transaction_headers, None)


def header_columns(records: RecordBatch) -> HeaderColumns:
    """Return all of `records` but the data."""
    if not len(records):
        return no_headers(records.first_transaction_id)
    return HeaderColumns(
        records.first_transaction_id, request_id_runs(records.request_ids()), records.headers()
    )


def no_headers(first_transaction_id: TransactionId) -> HeaderColumns:
    return HeaderColumns(
        first_transaction_id, np.zeros((0, RUN_NUMBERS), np.int32), np.zeros(0, np.int32)
    )


def join_headers(parts: list[HeaderColumns]) -> HeaderColumns:
    """Return adjoining `parts`, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    return HeaderColumns(
        parts[0].first_transaction_id,
        np.concatenate([part.runs for part in parts]),
        np.concatenate([part.transaction_headers for part in parts]),
    )


def _runs_between(runs: NDArray[np.int32], start: int, end: int) -> NDArray[np.int32]:
    """Return what belongs to the places from `start` to before `end` among all of `runs`."""
    ends = np.cumsum(runs[:, -1], dtype=np.int64)
    begins = ends - runs[:, -1]
    touched = (begins < end) & (ends > start)
    found = runs[touched]
    skipped = np.maximum(start - begins[touched], 0)
    found[:, -2] += skipped.astype(np.int32)
    found[:, -1] = np.minimum(ends[touched], end) - np.maximum(begins[touched], start)
    return found


class HeaderRows:
    """A count and a row for each, big-endian, with dense IDs: versions 0 to 2."""

    name = "count, then record header each"
    size_min = 4

    def write(self, parts: list[bytes], value: HeaderColumns) -> None:
        count = len(value)
        check_size(count, RECORD_LIST_RECORDS_MAX)
        rows = np.empty(count, _rows())
        rows["transaction_id"] = value.first_transaction_id + np.arange(count)
        rows["request_id"] = value.request_ids()
        rows["header"] = value.transaction_headers
        parts += (_COUNT.pack(count), rows.tobytes())

    def read(self, reader: Reader) -> HeaderColumns:
        """Raises RemoteProtocolError also for IDs that are not dense, or negative."""
        count = reader.count(RECORD_LIST_RECORDS_MAX, _rows().itemsize)
        if not count:
            return no_headers(TransactionId(0))
        rows = np.frombuffer(reader.take(count * _rows().itemsize), _rows())
        first = TransactionId(int(rows["transaction_id"][0]))
        _check_first(first, count)
        if not np.array_equal(rows["transaction_id"], np.arange(first, first + count)):
            raise RemoteProtocolError(f"transaction IDs are not dense from {first} on")
        return HeaderColumns(
            first, request_id_runs(rows["request_id"]), rows["header"].astype(np.int32)
        )


class HeaderColumnsField:
    """The columns of the feed behind their checksum: from version 3 on."""

    name = (
        "first transaction ID (i64), n (u32), m (u32), CRC-32 (u32) of all of this field but"
        " itself, then m runs of request IDs: client ID, generation, partition ID, first sequence"
        " number, how many (5 x i32); then n headers (i32). All little-endian, verified"
    )
    size_min = _START.size + _CHECKSUM.size

    def write(self, parts: list[bytes], value: HeaderColumns) -> None:
        check_size(len(value), RECORD_LIST_RECORDS_MAX)
        start = _START.pack(value.first_transaction_id, len(value), len(value.runs))
        columns = (
            value.runs.astype("<i4", copy=False).tobytes()
            + value.transaction_headers.astype("<i4", copy=False).tobytes()
        )
        parts += (start, _CHECKSUM.pack(crc32(columns, crc32(start))), columns)

    def read(self, reader: Reader) -> HeaderColumns:
        begin = reader.position
        first, count, run_count = reader.unpack(_START)
        (told,) = reader.unpack(_CHECKSUM)
        if not run_count <= count <= RECORD_LIST_RECORDS_MAX or bool(count) != bool(run_count):
            raise RemoteProtocolError(
                f"{count} headers in {run_count} runs; expected 0 to {RECORD_LIST_RECORDS_MAX},"
                " and no more runs than these"
            )
        columns_begin = reader.position
        runs = read_runs(reader, run_count, count)
        headers = column_of(reader, "<i4", count)
        found = crc32(
            memoryview(reader.body)[columns_begin : reader.position],
            crc32(reader.body[begin : begin + _START.size]),
        )
        if found != told:
            raise RemoteProtocolError(
                f"checksum: CRC-32 of {count} headers is {found:08x}; the message says {told:08x}"
            )
        if count:
            _check_first(first, count)
        return HeaderColumns(TransactionId(first), runs, headers)


def _check_first(first: int, count: int) -> None:
    if not 0 <= first <= 2**63 - 1 - count:
        raise RemoteProtocolError(f"headers from {first} on; expected a transaction ID")


HEADER_ROWS: Final = HeaderRows()
HEADER_COLUMNS: Final = HeaderColumnsField()
