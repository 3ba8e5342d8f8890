"""Transaction records as the storage and admin protocols carry them.

Owns the step between a record batch, which is the layout on disk, and version 0 of the wire, which
has the same fields in another order and no checksum over the whole record. One tight loop each way.

    wire: transaction ID, request ID, header, length, data, CRC-32 of the data
    disk: transaction ID, request ID, header, length, CRC-32 of the data, data, CRC-32 of the record

The checksum of the data is carried, not verified, as in the original; the reader at the far end
verifies it. Source: Waltz Internals, "Segment Data File".
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, NamedTuple
from zlib import crc32

from waltz.arrays import np
from waltz.errors import RemoteProtocolError
from waltz.limits import DAMAGED_RANGES_MAX, DATA_BYTES_MAX, RECORD_LIST_RECORDS_MAX
from waltz.record import RECORD_OVERHEAD_BYTES, Record, RecordBatch, empty_batch
from waltz.types import RequestId, SessionId, TransactionId
from waltz.wire.fields import (
    CHECKSUM,
    DATA,
    INT,
    LONG,
    NULLABLE_TEXT,
    REQUEST_ID,
    TEXT,
    ListOf,
    Reader,
    Structure,
    check_size,
)

STACK_FRAMES_MAX: Final = 1_000
"""Stack frames in one failure response; our own have none."""


_COUNT = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_ID_AND_LENGTH = struct.Struct(">q20xi")
_HEAD_BYTES = 32
_WIRE_OVERHEAD_BYTES = 36

assert _ID_AND_LENGTH.size == _HEAD_BYTES


class RecordHeader(NamedTuple):
    """A record without its data."""

    transaction_id: TransactionId
    request_id: RequestId
    header: int


class SessionInfo(NamedTuple):
    """The last store session a replica took part in.

    `low_water_mark` is the high-water mark of the partition when the session started,
    `local_low_water_mark` this replica's own last transaction then. All are -1 on a fresh replica.
    """

    session_id: SessionId
    low_water_mark: TransactionId
    local_low_water_mark: TransactionId


class DamagedRange(NamedTuple):
    """The records `first` to `next_transaction_id - 1`, which a replica cannot trust."""

    first: TransactionId
    next_transaction_id: TransactionId


class StackFrame(NamedTuple):
    """A line of a Java stack trace; line -1 is unknown, -2 native."""

    class_name: str
    method_name: str
    file_name: str | None
    line: int


class Records:
    """A record batch as a count and as many wire records, with dense IDs."""

    name = "count, then record each"
    size_min = 4

    def write(self, parts: list[bytes], value: RecordBatch) -> None:
        check_size(len(value), RECORD_LIST_RECORDS_MAX)
        if len(value):
            check_size(int(np.diff(value.offsets).max()) - RECORD_OVERHEAD_BYTES, DATA_BYTES_MAX)
        block = value.block
        starts = value.offsets.tolist()
        pieces = [_COUNT.pack(len(value))]
        for start, end in pairwise(starts):
            pieces += (
                block[start : start + 32],
                block[start + 36 : end - 4],
                block[start + 32 : start + 36],
            )
        parts.append(b"".join(pieces))

    def read(self, reader: Reader) -> RecordBatch:
        """Raises RemoteProtocolError also for IDs that are not dense."""
        count = reader.count(RECORD_LIST_RECORDS_MAX, _WIRE_OVERHEAD_BYTES)
        if count == 0:
            return empty_batch(TransactionId(0))
        body, position, last = reader.body, reader.position, reader.end - _WIRE_OVERHEAD_BYTES
        unpack, pack = _ID_AND_LENGTH.unpack_from, _CHECKSUM.pack
        (first, _) = unpack(body, position)
        offset = 0
        offsets = [0]
        pieces: list[bytes] = []
        for expected in range(first, first + count):
            if position > last:
                raise self._cut_short(reader, position, count)
            transaction_id, length = unpack(body, position)
            if transaction_id != expected:
                raise RemoteProtocolError(
                    f"transaction ID {transaction_id} at byte {position}; expected {expected}"
                )
            if not 0 <= length <= DATA_BYTES_MAX:
                raise RemoteProtocolError(
                    f"data length {length} at byte {position + 28}; expected 0 to {DATA_BYTES_MAX}"
                )
            start = position + _HEAD_BYTES
            end = start + length
            head = body[position:start] + body[end : end + 4]
            position = end + 4
            if position > reader.end:
                raise self._cut_short(reader, position, count)
            data = body[start:end]
            pieces += (head, data, pack(crc32(data, crc32(head))))
            offset += length + RECORD_OVERHEAD_BYTES
            offsets.append(offset)
        reader.position = position
        return RecordBatch(TransactionId(first), b"".join(pieces), np.array(offsets, np.int64))

    def _cut_short(self, reader: Reader, position: int, count: int) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"{count} records at byte {reader.position} reach byte {position} at least;"
            f" the message ends at {reader.end}"
        )


RECORD_HEADER_FIELD: Final = Structure(
    "record header", RecordHeader, transaction_id=LONG, request_id=REQUEST_ID, header=INT
)
RECORD: Final = Structure(
    "record",
    Record,
    transaction_id=LONG,
    request_id=REQUEST_ID,
    header=INT,
    data=DATA,
    checksum=CHECKSUM,
)
RECORDS: Final = Records()
SESSION_INFO: Final = Structure(
    "session info",
    SessionInfo,
    session_id=LONG,
    low_water_mark=LONG,
    local_low_water_mark=LONG,
)
DAMAGED_RANGE: Final = Structure(
    "damaged range", DamagedRange, first=LONG, next_transaction_id=LONG
)
DAMAGED_RANGES: Final = ListOf(DAMAGED_RANGE, DAMAGED_RANGES_MAX)
STACK_FRAME: Final = Structure(
    "stack frame",
    StackFrame,
    class_name=TEXT,
    method_name=TEXT,
    file_name=NULLABLE_TEXT,
    line=INT,
)
STACK: Final = ListOf(STACK_FRAME, STACK_FRAMES_MAX)
