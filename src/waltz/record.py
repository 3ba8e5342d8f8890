"""The transaction record and the batch: one layout, on disk and in all processes.

A batch is the bytes of the segment file: whole records, back to back, with dense IDs. It is packed
once, where transaction IDs are given, and goes unsplit to every replica, to disk, to readers and to
Arrow. Columns are cut from it without a loop.

    offset  size  field
         0     8  transaction ID
         8    16  request ID
        24     4  transaction header
        28     4  data length n
        32     4  CRC-32 of the data, as the client computed it
        36     n  data
    36 + n     4  CRC-32 of all bytes of the record before it

Big-endian. Source: Waltz Internals, "Segment Data File"; the order is that of the Java original.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, overload
from zlib import crc32

from waltz.arrays import np
from waltz.checksums import checksums_of_rows, joined, moved
from waltz.errors import CorruptionError
from waltz.limits import DATA_BYTES_MAX
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD_HEADER = struct.Struct(">q16siiI")
RECORD_HEADER_BYTES = RECORD_HEADER.size
REQUEST_ID_BYTES = 16
RECORD_OVERHEAD_BYTES = RECORD_HEADER_BYTES + 4

_FEW_TO_PACK_MAX = 64
_FEW_TO_CHECK_MAX = 256
"""Up to this many records a loop is cheaper than columns, both to pack and to check them."""

_CHECKSUM = struct.Struct(">I")
REQUEST_ID = struct.Struct(">iiii")

assert RECORD_HEADER_BYTES == 36


class NewRecord(NamedTuple):
    """A transaction that has no ID yet: `request_id` as its 16 wire bytes, and the `checksum` of
    `data`, which was verified when both arrived."""

    request_id: bytes
    header: int
    data: bytes
    checksum: int


@dataclass(frozen=True, slots=True, eq=False)
class NewRecords(Sequence[NewRecord]):
    """Transactions that have no IDs yet, side by side.

    request_ids   a row of 16 bytes each.
    checksums     CRC-32 of the data, as the client computed it.
    """

    request_ids: NDArray[np.uint8]
    headers: NDArray[np.int32]
    data: list[bytes]
    checksums: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, place: int) -> NewRecord: ...
    @overload
    def __getitem__(self, place: slice) -> NewRecords: ...
    def __getitem__(self, place: int | slice) -> NewRecord | NewRecords:
        if isinstance(place, slice):
            return NewRecords(
                self.request_ids[place],
                self.headers[place],
                self.data[place],
                self.checksums[place],
            )
        return NewRecord(
            self.request_ids[place].tobytes(),
            int(self.headers[place]),
            self.data[place],
            int(self.checksums[place]),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NewRecords):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes that each record will take in a batch."""
        return np.fromiter(map(len, self.data), np.int64, len(self)) + RECORD_OVERHEAD_BYTES

    @property
    def byte_count(self) -> int:
        """The bytes that all records will take in a batch."""
        return sum(map(len, self.data)) + RECORD_OVERHEAD_BYTES * len(self.data)

    def _values(self) -> tuple[bytes, bytes, tuple[bytes, ...], bytes]:
        return (
            self.request_ids.tobytes(),
            self.headers.tobytes(),
            tuple(self.data),
            self.checksums.tobytes(),
        )


class Record(NamedTuple):
    """One record, for code that handles transactions one by one."""

    transaction_id: TransactionId
    request_id: RequestId
    header: int
    data: bytes
    checksum: int


def request_id_bytes(request_id: RequestId) -> bytes:
    return REQUEST_ID.pack(*request_id)


def request_id_from(data: bytes | memoryview) -> RequestId:
    client_id, generation, partition_id, sequence_number = REQUEST_ID.unpack(data)
    return RequestId(
        ClientId(client_id), Generation(generation), PartitionId(partition_id), sequence_number
    )


class RecordBatch:
    """Whole records with dense IDs from `first_transaction_id`; may be empty. A value.

    `offsets` has one entry per record, the byte where it starts in `block`, and a last one equal to
    the length of `block`. `last_transaction_id` is one before the first for an empty batch. `count`
    is the length, without a call.
    """

    # The count is asked for dozens of times on the way of a batch, so it is computed once.
    __slots__ = (
        "_offsets",
        "block",
        "count",
        "first_transaction_id",
        "last_transaction_id",
        "next_transaction_id",
    )

    def __init__(
        self,
        first_transaction_id: TransactionId,
        block: bytes,
        offsets: NDArray[np.int64] | list[int],
    ) -> None:
        self.first_transaction_id = first_transaction_id
        self.block = block
        self._offsets = offsets
        count = self.count = len(offsets) - 1
        self.next_transaction_id = TransactionId(first_transaction_id + count)
        self.last_transaction_id = TransactionId(first_transaction_id + count - 1)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """See the class."""
        if isinstance(self._offsets, list):  # few are often needed one by one only
            self._offsets = np.array(self._offsets, np.int64)
        return self._offsets

    def offset_list(self) -> list[int]:
        """Return the same as `offsets`, for a loop."""
        offsets = self._offsets
        return offsets if isinstance(offsets, list) else offsets.tolist()

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"RecordBatch({self.first_transaction_id} to {self.last_transaction_id})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordBatch):
            return NotImplemented
        return self.first_transaction_id == other.first_transaction_id and self.block == other.block

    def __hash__(self) -> int:
        return hash((self.first_transaction_id, self.block))

    def slice(self, first: TransactionId, count: int) -> RecordBatch:
        """Return the records `first` to `first + count - 1`, as far as this batch has them."""
        start = min(max(0, first - self.first_transaction_id), len(self))
        end = min(max(start, first - self.first_transaction_id + count), len(self))
        begin = int(self.offsets[start])
        return RecordBatch(
            TransactionId(self.first_transaction_id + start),
            self.block[begin : int(self.offsets[end])],
            self.offsets[start : end + 1] - begin,
        )

    def head(self, first: TransactionId, count_max: int, bytes_max: int) -> RecordBatch:
        """Return records from `first` on, which this batch has: at least one, at most `count_max`,
        and no more than `bytes_max` bytes unless the first is larger."""
        start = first - self.first_transaction_id
        limit = int(self.offsets[start]) + bytes_max
        fits = int(np.searchsorted(self.offsets[start + 1 :], limit, side="right"))
        return self.slice(first, max(1, min(fits, count_max)))

    def transaction_ids(self) -> NDArray[np.int64]:
        """Return the transaction IDs in the block, one per record."""
        return self._column(0, 8).view(">i8").ravel().astype(np.int64)

    def headers(self) -> NDArray[np.int32]:
        """Return the transaction headers, one per record."""
        return self._column(24, 4).view(">i4").ravel().astype(np.int32)

    def request_ids(self) -> NDArray[np.uint8]:
        """Return the request IDs, a row of 16 bytes per record."""
        return self._column(8, 16)

    def data_checksums(self) -> NDArray[np.uint32]:
        return self._column(32, 4).view(">u4").ravel().astype(np.uint32)

    def fault(self, *, with_data: bool) -> str | None:
        """Return what is wrong with the block: impossible offsets, IDs that are not dense, lengths
        that do not fit the offsets, a wrong checksum of a record or, `with_data`, of its data.
        None: nothing is wrong."""
        first, count, offsets = self.first_transaction_id, self.count, self.offsets
        if not count:
            return None
        if first < 0 or first > 2**63 - 1 - count:
            return f"records from {first} on; expected a transaction ID"
        if count <= _FEW_TO_CHECK_MAX and _few_check_out(
            self.block, first, self.offset_list(), with_data=with_data
        ):
            return None
        if offsets[-1] != len(self.block):
            return f"a block of {len(self.block)} bytes; expected {offsets[-1]}"
        lengths = np.diff(offsets) - RECORD_OVERHEAD_BYTES
        if offsets[0] or int(lengths.min()) < 0 or int(lengths.max()) > DATA_BYTES_MAX:
            return (
                f"records start at {offsets[:8].tolist()}...; expected 0, then at least"
                f" {RECORD_OVERHEAD_BYTES} and at most {DATA_BYTES_MAX} more each"
            )
        rows = self._column(0, RECORD_HEADER_BYTES)
        heads = rows.view(_record_headers()).ravel()
        if not np.array_equal(heads["transaction_id"], np.arange(first, first + count)):
            return f"transaction IDs are not dense from {first} on"
        if not np.array_equal(heads["length"], lengths):
            return "data lengths do not fit where the records start"
        told = _record_checksums(self.block, offsets)
        # No call per record: if the block has the checksum that follows from those of its records,
        # all records check out, except for a chance of one in 2**32; else at least one does not.
        if joined(told, offsets) != crc32(self.block):
            return _first_wrong("the record", first, _checksums(self.block, offsets, 0), told)
        if not with_data:
            return None
        # No byte of the data is read a second time.
        found = told ^ moved(checksums_of_rows(rows), lengths)
        return _first_wrong("the data", first, found, heads["checksum"])

    def wrong_data(self) -> NDArray[np.bool_]:
        """Whether the CRC-32 of each record's data differs from the one stored with it."""
        found = _checksums(self.block, self.offsets, RECORD_HEADER_BYTES)
        wrong: NDArray[np.bool_] = found != self.data_checksums()
        return wrong

    def all_data(self) -> list[bytes]:
        """Return the data of each record."""
        starts = (self.offsets[:-1] + RECORD_HEADER_BYTES).tolist()
        ends = (self.offsets[1:] - 4).tolist()
        return list(map(self.block.__getitem__, map(slice, starts, ends)))

    def data(self, index: int) -> bytes:
        """Return the data of the record at zero-based `index`."""
        offsets = self._offsets
        return self.block[int(offsets[index]) + RECORD_HEADER_BYTES : int(offsets[index + 1]) - 4]

    def record(self, index: int) -> Record:
        offset = int(self._offsets[index])
        transaction_id, request_id, header, length, checksum = RECORD_HEADER.unpack_from(
            self.block, offset
        )
        start = offset + RECORD_HEADER_BYTES
        return Record(
            TransactionId(transaction_id),
            request_id_from(request_id),
            header,
            self.block[start : start + length],
            checksum,
        )

    def records(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))

    def _column(self, start: int, size: int) -> NDArray[np.uint8]:
        if self.count == 1:
            begin = int(self._offsets[0]) + start
            return np.frombuffer(self.block, np.uint8, size, begin).reshape(1, size)
        return _rows_at(self.block, self.offsets[:-1] + start, size)


def _rows_at(block: bytes, places: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Return a row of `size` bytes from each place in `block`."""
    # A view with an element at every byte, so that each row is copied with one call.
    count = max(0, len(block) - size + 1)
    everywhere: NDArray[np.void] = np.ndarray((count,), f"V{size}", block, 0, (1,))
    return everywhere[places].view(np.uint8).reshape(-1, size)


def _record_checksums(block: bytes, offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32 at the end of each record, of all bytes of the record before it."""
    return _rows_at(block, offsets[1:] - 4, 4).view(">u4").ravel().astype(np.uint32)


def _checksums(block: bytes, offsets: NDArray[np.int64], start: int) -> NDArray[np.uint32]:
    """Return the CRC-32 of each record from its byte `start` up to its last checksum."""
    view = memoryview(block)
    starts, ends = (offsets[:-1] + start).tolist(), (offsets[1:] - 4).tolist()
    pieces = map(view.__getitem__, map(slice, starts, ends))
    return np.fromiter(map(crc32, pieces), np.uint32, len(starts))


def _first_wrong(
    what: str, first: TransactionId, found: NDArray[np.uint32], told: NDArray[np.uint32]
) -> str | None:
    """Return what is wrong with the first of the records from `first` on of whose two checksums the
    computed one differs from the one told; None: there is none."""
    wrong = found != told
    if not wrong.any():
        return None
    index = int(np.argmax(wrong))
    return (
        f"checksum: CRC-32 of {what} {first + index} is"
        f" {int(found[index]):08x}; it says {int(told[index]):08x}"
    )


def _few_check_out(
    block: bytes, first: TransactionId, offsets: list[int], *, with_data: bool
) -> bool:
    """Return whether `RecordBatch.fault` would find nothing; checks record by record, which is
    cheaper for few."""
    count, size = len(offsets) - 1, len(block)
    position = 0
    for index, offset in enumerate(offsets):
        if offset != position:
            return False
        if position == size:
            return index == count
        if size - position < RECORD_OVERHEAD_BYTES:
            return False
        found_id, _, _, length, checksum = RECORD_HEADER.unpack_from(block, position)
        start = position + RECORD_HEADER_BYTES
        end = start + length
        if found_id != first + index or not 0 <= length <= DATA_BYTES_MAX or end + 4 > size:
            return False
        data = block[start:end]
        if with_data and crc32(data) != checksum:
            return False
        if crc32(data, crc32(block[position:start])) != _CHECKSUM.unpack_from(block, end)[0]:
            return False
        position = end + 4
    return False


def empty_batch(first_transaction_id: TransactionId) -> RecordBatch:
    return RecordBatch(first_transaction_id, b"", np.zeros(1, np.int64))


def new_records(records: Sequence[NewRecord]) -> NewRecords:
    """Return `records` as columns."""
    if isinstance(records, NewRecords):
        return records
    request_ids, headers, data, checksums = zip(*records, strict=True) if records else ((),) * 4
    return NewRecords(
        np.frombuffer(b"".join(request_ids), np.uint8).reshape(-1, REQUEST_ID_BYTES),
        np.array(headers, np.int32),
        list(data),
        np.array(checksums, np.uint32),
    )


def join_new_records(parts: Sequence[NewRecords]) -> NewRecords:
    """Return the records of all `parts`, at least one, in order."""
    if len(parts) == 1:
        return parts[0]
    return NewRecords(
        np.concatenate([part.request_ids for part in parts]),
        np.concatenate([part.headers for part in parts]),
        list(chain.from_iterable(part.data for part in parts)),
        np.concatenate([part.checksums for part in parts]),
    )


def pack_records(first_transaction_id: TransactionId, records: Sequence[NewRecord]) -> RecordBatch:
    """Give `records` the IDs from `first_transaction_id` on and lay them out.

    The checksum of the data is taken over as it came, so that it protects the data all the way from
    the client that computed it to the reader that checks it. The caller has verified it; data that
    has changed since then makes a record that is refused.
    """
    new = records if type(records) is NewRecords else new_records(records)
    count = len(new.data)
    if count <= _FEW_TO_PACK_MAX:
        return _pack_few(first_transaction_id, new)
    sizes = new.sizes()
    offsets = np.zeros(count + 1, np.int64)
    sizes.cumsum(out=offsets[1:])
    heads = np.empty(count, _record_headers())
    heads["transaction_id"] = first_transaction_id + np.arange(count)
    heads["request_id"] = new.request_ids
    heads["header"] = new.headers
    heads["length"] = sizes - RECORD_OVERHEAD_BYTES
    heads["checksum"] = new.checksums
    # Not computed from the data, which may have changed since it was verified: so all later
    # checksums rest on the one that the client has sent.
    starts = checksums_of_rows(heads.view(np.uint8).reshape(count, RECORD_HEADER_BYTES))
    # Between the data of two records are the checksum of the first and the head of the second.
    gaps = np.zeros(count + 1, _gaps())
    gaps["checksum"][1:] = moved(starts, sizes - RECORD_OVERHEAD_BYTES) ^ new.checksums
    gaps["head"][:-1] = heads.view(f"V{RECORD_HEADER_BYTES}")
    parts = [b""] * (2 * count + 1)
    parts[0::2] = gaps.view(f"V{RECORD_OVERHEAD_BYTES}").tolist()
    parts[1::2] = new.data
    parts[0] = parts[0][_CHECKSUM.size :]
    parts[-1] = parts[-1][: _CHECKSUM.size]
    return RecordBatch(first_transaction_id, b"".join(parts), offsets)


def _pack_few(first_transaction_id: TransactionId, new: NewRecords) -> RecordBatch:
    request_ids = new.request_ids.tobytes()
    parts: list[bytes] = []
    offsets = [0]
    columns = zip(new.headers.tolist(), new.data, new.checksums.tolist(), strict=True)
    for index, (header, data, checksum) in enumerate(columns):
        request_id = request_ids[REQUEST_ID_BYTES * index : REQUEST_ID_BYTES * (index + 1)]
        head = RECORD_HEADER.pack(
            first_transaction_id + index, request_id, header, len(data), checksum
        )
        parts += (head, data, _CHECKSUM.pack(crc32(data, crc32(head))))
        offsets.append(offsets[-1] + len(data) + RECORD_OVERHEAD_BYTES)
    return RecordBatch(first_transaction_id, b"".join(parts), offsets)


@cache
def _record_headers() -> np.dtype[np.void]:
    found = np.dtype(
        [
            ("transaction_id", ">i8"),
            ("request_id", "u1", (REQUEST_ID_BYTES,)),
            ("header", ">i4"),
            ("length", ">i4"),
            ("checksum", ">u4"),
        ]
    )
    assert found.itemsize == RECORD_HEADER_BYTES
    return found


@cache
def _gaps() -> np.dtype[np.void]:
    """Return the type of the bytes between the data of two records: the end of the first, and the
    head of the second."""
    found = np.dtype([("checksum", ">u4"), ("head", f"V{RECORD_HEADER_BYTES}")])
    assert found.itemsize == RECORD_OVERHEAD_BYTES
    return found


def join_batches(batches: Sequence[RecordBatch]) -> RecordBatch:
    """Return adjoining `batches`, at least one, as one."""
    if len(batches) == 1:
        return batches[0]
    offsets = []
    position = 0
    for batch, follower in zip(batches, [*batches[1:], None], strict=True):
        assert follower is None or follower.first_transaction_id == batch.next_transaction_id
        offsets.append(batch.offsets[:-1] + position)
        position += len(batch.block)
    offsets.append(np.array([position], np.int64))
    return RecordBatch(
        batches[0].first_transaction_id,
        b"".join(batch.block for batch in batches),
        np.concatenate(offsets),
    )


def scan_records(
    buffer: bytes | memoryview, first_transaction_id: TransactionId, start: int = 0
) -> NDArray[np.int64]:
    """Return the offsets of the valid records from `start` on, and the end of the last one.

    The scan stops at the first record that is cut short, has another ID than its place demands, a
    length out of bounds, or a wrong record checksum. The length is checked before it is used.
    """
    view = memoryview(buffer)
    size = len(view)
    offsets = [start]
    transaction_id = int(first_transaction_id)
    while size - start >= RECORD_OVERHEAD_BYTES:
        found_id, _, _, length, _ = RECORD_HEADER.unpack_from(view, start)
        end = start + RECORD_HEADER_BYTES + length
        if found_id != transaction_id or not 0 <= length <= DATA_BYTES_MAX or end + 4 > size:
            break
        if crc32(view[start:end]) != _CHECKSUM.unpack_from(view, end)[0]:
            break
        start = end + 4
        offsets.append(start)
        transaction_id += 1
    return np.array(offsets, np.int64)


def batch_from_block(block: bytes, first_transaction_id: TransactionId) -> RecordBatch:
    """Return the batch whose layout is exactly `block`, every record checked.

    Raises CorruptionError, naming the first record that does not check out.
    """
    offsets = scan_records(block, first_transaction_id)
    if offsets[-1] != len(block):
        raise CorruptionError(
            f"record {first_transaction_id + len(offsets) - 1} does not check out at byte"
            f" {offsets[-1]} of a block of {len(block)}"
        )
    return RecordBatch(first_transaction_id, block, offsets)
