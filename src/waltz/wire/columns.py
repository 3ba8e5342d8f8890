"""Columns of transactions as version 5 of the client protocol carries them.

Owns the values and their encodings: little-endian columns side by side, so that decoding is a cast
of what arrived. What is per transaction here is one CRC-32 of each body and one slice that cuts it
out, both calls into C. Every count is judged against what remains before anything is allocated, and
every sum of lengths against what remains before a byte is cut.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, chain, pairwise, repeat
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from waltz.arrays import np, total
from waltz.errors import LocalProtocolError, RemoteProtocolError
from waltz.limits import (
    BATCH_APPENDS_MAX,
    BATCH_LOCKS_MAX,
    DATA_BYTES_MAX,
    LOCKS_MAX,
    RECORD_LIST_RECORDS_MAX,
)
from waltz.record import RecordBatch, empty_batch
from waltz.types import RequestId, TransactionId
from waltz.wire.fields import Reader, check_size

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COUNT: Final = struct.Struct("<I")
_FEED_START: Final = struct.Struct("<IIB")
_BLOCK_START: Final = struct.Struct("<qII")

_APPEND_COLUMNS_BYTES: Final = 26
"""Bytes of one append in the columns of numbers."""

LOCK_KINDS: Final = 3
"""Write, read and append locks, in this order."""

_REQUEST_NUMBERS: Final = 4
RUN_NUMBERS: Final = 5
"""Client ID, generation, partition ID, first sequence number, count."""

_FEW_RUNS_MAX: Final = 16
_FEW_RECORDS_MAX: Final = 32
"""Up to this many a loop is cheaper than columns; most feeds are of one record."""


class Columns:
    """Values that are equal if all their columns are."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _same(getattr(self, field.name), getattr(other, field.name))
            for field in fields(self)  # type: ignore[arg-type]
        )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return bool(one == other)


@dataclass(frozen=True, slots=True, eq=False)
class Bodies(Columns):
    """Data of transactions with their CRC-32, one each."""

    data: list[bytes]
    checksums: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True, eq=False)
class AppendColumns(Columns):
    """Appends of one client, at least one, one entry per column each.

    client_high_water_marks   what the client had applied when it executed the transaction.
    lock_counts               a row per append: write, read and append locks.
    lock_hashes               those of all appends back to back, in the order of the counts.
    """

    client_high_water_marks: NDArray[np.int64]
    headers: NDArray[np.int32]
    lock_counts: NDArray[np.uint16]
    lock_hashes: NDArray[np.int32]
    bodies: Bodies

    def __len__(self) -> int:
        return len(self.headers)

    def split(self, places: Sequence[int]) -> list[AppendColumns]:
        """Return the appends in parts: `places` are the rows, in order, at which a part after the
        first one begins."""
        lock_ends = [0, *np.cumsum(self.lock_counts.sum(axis=1, dtype=np.int64)).tolist()]
        return [
            AppendColumns(
                self.client_high_water_marks[start:end],
                self.headers[start:end],
                self.lock_counts[start:end],
                self.lock_hashes[lock_ends[start] : lock_ends[end]],
                Bodies(self.bodies.data[start:end], self.bodies.checksums[start:end]),
            )
            for start, end in pairwise((0, *places, len(self)))
        ]


@dataclass(frozen=True, slots=True, eq=False)
class FeedColumns(Columns):
    """Transactions of a feed, at least one, in order.

    runs     a row per run of dense request IDs: client ID, generation, partition ID, the first
             sequence number, and how many transactions follow on it.
    bodies   None if the data was not asked for.
    """

    runs: NDArray[np.int32]
    headers: NDArray[np.int32]
    bodies: Bodies | None

    def __len__(self) -> int:
        return len(self.headers)

    def request_runs(self) -> Iterator[tuple[RequestId, int]]:
        """Yield the first request ID of each run and its length."""
        for *request_id, count in self.runs.tolist():
            yield RequestId._make(request_id), count

    def request_ids(self) -> Iterator[RequestId]:
        """Yield one request ID per transaction."""
        return request_ids_in(self.request_runs())


def request_ids_in(runs: Iterable[tuple[RequestId, int]]) -> Iterator[RequestId]:
    """Yield the request IDs of runs, of each of which the first and the length are given."""
    return chain.from_iterable(
        map(
            RequestId,
            repeat(first.client_id, length),
            repeat(first.generation),
            repeat(first.partition_id),
            range(first.sequence_number, first.sequence_number + length),
        )
        for first, length in runs
    )


def feed_columns(batch: RecordBatch, *, with_data: bool) -> FeedColumns:
    """Return what the feed says of `batch`, which is not empty."""
    bodies = Bodies(batch.all_data(), batch.data_checksums()) if with_data else None
    if batch.count == 1:
        one = batch.record(0)
        runs, headers = [[*one.request_id, 1]], [one.header]
        return FeedColumns(np.array(runs, np.int32), np.array(headers, np.int32), bodies)
    return FeedColumns(request_id_runs(batch.request_ids()), batch.headers(), bodies)


def request_id_runs(request_ids: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Return the runs of dense request IDs in rows of 16 bytes, at least one; see
    `FeedColumns`."""
    request_ids = np.ascontiguousarray(request_ids)
    count = len(request_ids)
    if count <= _FEW_RECORDS_MAX:
        return np.array(_few_runs(request_ids.view(">i4").tolist()), np.int32)
    writers, places = request_ids.view(">u8").T
    places = places.astype(np.uint64)
    is_start = np.ones(count, np.bool_)
    np.not_equal(writers[1:], writers[:-1], out=is_start[1:])
    is_start[1:] |= places[1:] != places[:-1] + np.uint64(1)
    # A run ends before a sequence number of 0 or -2**31, at which the sum may have carried.
    is_start[1:] |= (places[1:] & np.uint64(2**31 - 1)) == 0
    starts = np.flatnonzero(is_start)
    runs = np.empty((len(starts), RUN_NUMBERS), np.int32)
    runs[:, :_REQUEST_NUMBERS] = request_ids[starts].view(">i4")
    runs[:-1, _REQUEST_NUMBERS] = starts[1:] - starts[:-1]
    runs[-1, _REQUEST_NUMBERS] = count - starts[-1]
    return runs


def _few_runs(request_ids: list[list[int]]) -> list[list[int]]:
    """Return the runs of a few request IDs, four numbers each, as a loop finds them: the same as
    the columns of `request_id_runs`."""
    runs: list[list[int]] = []
    for *writer, number in request_ids:
        if runs and number and number == runs[-1][3] + runs[-1][4] and writer == runs[-1][:3]:
            runs[-1][4] += 1
        else:
            runs.append([*writer, number, 1])
    return runs


def expanded_request_ids(runs: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the four numbers of each request ID of the runs, big-endian, a row each."""
    lengths = runs[:, _REQUEST_NUMBERS]
    numbers = np.repeat(runs[:, :_REQUEST_NUMBERS].astype(">i4"), lengths, axis=0)
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    numbers[:, _REQUEST_NUMBERS - 1] += np.arange(len(numbers)) - np.repeat(begins, lengths)
    return numbers


# Fields


def column_of(reader: Reader, kind: str, count: int) -> NDArray[Any]:
    """Cast the next `count` numbers. Raises RemoteProtocolError: fewer remain."""
    start = reader.position
    size = count * np.dtype(kind).itemsize
    if reader.end - start < size:
        raise RemoteProtocolError(
            f"a column of {size} bytes at byte {start}; {reader.end - start} remain"
        )
    reader.position = start + size
    return np.frombuffer(reader.body, kind, count, start)


def read_runs(reader: Reader, run_count: int, count: int) -> NDArray[np.int32]:
    """Cast the next runs of request IDs; see `FeedColumns`.

    Raises RemoteProtocolError: fewer remain, one is empty or too long, or they are not of `count`
    transactions in all.
    """
    runs = column_of(reader, "<i4", RUN_NUMBERS * run_count).reshape(-1, RUN_NUMBERS)
    lengths = runs[:, _REQUEST_NUMBERS]
    if run_count <= _FEW_RUNS_MAX:
        rows = runs.tolist()
        shortest = min((length for *_, length in rows), default=1)
        in_all = sum(length for *_, length in rows)
        end = max((first + length for *_, first, length in rows), default=0)
    else:
        shortest, in_all = int(lengths.min()), int(lengths.sum(dtype=np.int64))
        end = int((runs[:, _REQUEST_NUMBERS - 1].astype(np.int64) + lengths).max())
    if shortest < 1 or in_all != count:
        raise RemoteProtocolError(
            f"runs of {lengths[:8].tolist()}... transactions; expected {count} in all"
        )
    if end > 2**31:
        raise RemoteProtocolError("a run goes beyond the last sequence number")
    return runs


def _numbers(values: Any, kind: str, count: int, what: str) -> bytes:
    """Return a column. Raises LocalProtocolError: another number of rows, or out of range."""
    given = np.asarray(values)
    if len(given) != count:
        raise LocalProtocolError(f"{len(given)} {what}; expected {count}")
    wanted = np.dtype(kind)
    if given.dtype != wanted:
        bounds = np.iinfo(wanted)
        if len(given) and not (bounds.min <= given.min() and given.max() <= bounds.max):
            raise LocalProtocolError(f"{what}: {given.min()} to {given.max()} do not fit")
    return given.astype(wanted, copy=False).tobytes()


def _data_lengths(bodies: Bodies) -> NDArray[np.int32]:
    """Raises LocalProtocolError: one that a peer would not take."""
    lengths = list(map(len, bodies.data))
    check_size(max(lengths, default=0), DATA_BYTES_MAX)
    return np.array(lengths, np.int32)


def _read_bodies(
    reader: Reader, lengths: NDArray[np.int32], checksums: NDArray[np.uint32]
) -> Bodies:
    """Cut the bodies out of what is left of the message, all of it.

    Raises RemoteProtocolError: a length out of range, another number of bytes, or a body that its
    checksum does not fit.
    """
    sizes = lengths.tolist()
    if min(sizes) < 0 or max(sizes) > DATA_BYTES_MAX:
        raise RemoteProtocolError(
            f"data lengths {min(sizes)} to {max(sizes)}; expected 0 to {DATA_BYTES_MAX}"
        )
    if sum(sizes) != reader.end - reader.position:
        raise RemoteProtocolError(
            f"data of {sum(sizes)} bytes at byte {reader.position};"
            f" {reader.end - reader.position} remain"
        )
    data = _cut(reader.body, reader.position, sizes)
    _check(data, checksums)
    reader.position = reader.end
    return Bodies(data, checksums.astype(np.uint32, copy=False))


def _cut(text: bytes, start: int, sizes: Sequence[int]) -> list[bytes]:
    """Return the pieces of these sizes, at least one, that begin at `start` and end with `text`."""
    size = sizes[0]
    if size and sizes.count(size) == len(sizes):  # as often, and five times as fast
        pieces: list[bytes] = np.frombuffer(text, f"V{size}", len(sizes), start).tolist()
        return pieces
    ends = list(accumulate(sizes, initial=start))
    return list(map(text.__getitem__, map(slice, ends[:-1], ends[1:])))


def _check(data: Sequence[bytes | memoryview], checksums: NDArray[np.uint32]) -> None:
    """Raises RemoteProtocolError, naming the first body that its checksum does not fit."""
    found, told = list(map(crc32, data)), checksums.tolist()
    if found != told:
        index = next(i for i, one in enumerate(found) if one != told[i])
        raise RemoteProtocolError(
            f"checksum: CRC-32 of the {len(data[index])} bytes of data {index} is"
            f" {found[index]:08x}; the message says {told[index]:08x}"
        )


class AppendColumnsField:
    """A count, columns, lock hashes, and the data back to back."""

    name = (
        "n (u32), then columns of n: client high-water mark (i64), header (i32), data length (i32),"
        " CRC-32 of data (u32), numbers of write, read and append locks (3 x u16); then the lock"
        " hashes (i32), append by append; then the data, verified. All little-endian"
    )
    size_min = 4 + _APPEND_COLUMNS_BYTES

    def write(self, parts: list[bytes], value: AppendColumns) -> None:
        count = len(value)
        check_size(count, BATCH_APPENDS_MAX)
        if not count:
            raise LocalProtocolError("the message has no appends; expected at least 1")
        counts = np.asarray(value.lock_counts).reshape(-1, LOCK_KINDS)
        locks = total(counts.ravel())
        if locks > LOCKS_MAX:
            check_size(int(counts.max()), LOCKS_MAX)
            check_size(locks, BATCH_LOCKS_MAX)
        bodies = value.bodies
        parts += (
            _COUNT.pack(count),
            _numbers(value.client_high_water_marks, "<i8", count, "client high-water marks"),
            _numbers(value.headers, "<i4", count, "headers"),
            _numbers(_data_lengths(bodies), "<i4", count, "data lengths"),
            _numbers(bodies.checksums, "<u4", count, "checksums"),
            _numbers(counts, "<u2", count, "numbers of locks"),
            _numbers(value.lock_hashes, "<i4", locks, "lock hashes"),
            *bodies.data,
        )

    def read(self, reader: Reader) -> AppendColumns:
        (count,) = reader.unpack(_COUNT)
        if not 1 <= count <= BATCH_APPENDS_MAX:
            raise RemoteProtocolError(
                f"the message has {count} appends; expected 1 to {BATCH_APPENDS_MAX}"
            )
        # All at once, for most batches are small: what is done for each column is their price.
        start, body = reader.position, reader.body
        size = _APPEND_COLUMNS_BYTES * count
        if reader.end - start < size:
            raise RemoteProtocolError(
                f"columns of {size} bytes at byte {start}; {reader.end - start} remain"
            )
        reader.position = start + size
        marks = np.frombuffer(body, "<i8", count, start)
        headers = np.frombuffer(body, "<i4", count, start + 8 * count)
        lengths = np.frombuffer(body, "<i4", count, start + 12 * count)
        checksums = np.frombuffer(body, "<u4", count, start + 16 * count)
        counts = np.frombuffer(body, "<u2", LOCK_KINDS * count, start + 20 * count)
        locks = total(counts)
        if locks > LOCKS_MAX and (int(counts.max()) > LOCKS_MAX or locks > BATCH_LOCKS_MAX):
            raise RemoteProtocolError(
                f"{counts.max()} locks of one kind, {locks} in all; expected at most {LOCKS_MAX}"
                f" and {BATCH_LOCKS_MAX}"
            )
        hashes = column_of(reader, "<i4", locks)
        bodies = _read_bodies(reader, lengths, checksums)
        return AppendColumns(marks, headers, counts.reshape(-1, LOCK_KINDS), hashes, bodies)


class FeedColumnsField:
    """Two counts, the runs, the headers, and the data if the feed has them."""

    name = (
        "n (u32), m (u32), 1 with data or 0 (u8), then m runs of request IDs: client ID,"
        " generation, partition ID, first sequence number, how many (5 x i32); then n headers"
        " (i32); with data also columns of n: data length (i32), CRC-32 of data (u32), and the"
        " data, verified. All little-endian"
    )
    size_min = _FEED_START.size + 4 * RUN_NUMBERS + 4

    def write(self, parts: list[bytes], value: FeedColumns) -> None:
        count, runs = len(value), len(value.runs)
        check_size(count, RECORD_LIST_RECORDS_MAX)
        if not count or total(value.runs[:, _REQUEST_NUMBERS]) != count:
            raise LocalProtocolError(f"{runs} runs do not make {count} transactions")
        parts += (
            _FEED_START.pack(count, runs, value.bodies is not None),
            _numbers(value.runs, "<i4", runs, "runs"),
            _numbers(value.headers, "<i4", count, "headers"),
        )
        if value.bodies is not None:
            lengths = _data_lengths(value.bodies)
            parts += (
                _numbers(lengths, "<i4", count, "data lengths"),
                _numbers(value.bodies.checksums, "<u4", count, "checksums"),
                *value.bodies.data,
            )

    def read(self, reader: Reader) -> FeedColumns:
        count, run_count, has_data = reader.unpack(_FEED_START)
        if not 1 <= run_count <= count <= RECORD_LIST_RECORDS_MAX or has_data > 1:
            raise RemoteProtocolError(
                f"{count} transactions in {run_count} runs, data {has_data}; expected 1 to"
                f" {RECORD_LIST_RECORDS_MAX}, no more runs than these, and 0 or 1"
            )
        runs = read_runs(reader, run_count, count)
        headers = column_of(reader, "<i4", count)
        if not has_data:
            return FeedColumns(runs, headers, None)
        data_lengths = column_of(reader, "<i4", count)
        checksums = column_of(reader, "<u4", count)
        return FeedColumns(runs, headers, _read_bodies(reader, data_lengths, checksums))


def _starts(batch: RecordBatch) -> bytes:
    """Return where each record starts in the block."""
    if batch.count <= _FEW_RECORDS_MAX:
        return b"".join(map(_COUNT.pack, batch.offset_list()[:-1]))
    return batch.offsets[:-1].astype("<u4").tobytes()


class RecordBlockField:
    """Records as they lie on disk, with where each starts; every checksum is verified."""

    size_min = _BLOCK_START.size

    def __init__(self, *, with_data: bool) -> None:
        """Without `with_data` the user of the reader verifies the checksums of the data."""
        self.name = (
            "first transaction ID (i64), n (u32), bytes of the block (u32), where each of n"
            " records starts in it (u32), little-endian; then the block: records as in a segment"
            " file (see disk.md), verified"
        )
        if not with_data:
            self.name += " but for the CRC-32 of data, which the last reader verifies"
        self._with_data = with_data

    def write(self, parts: list[bytes], value: RecordBatch) -> None:
        check_size(value.count, RECORD_LIST_RECORDS_MAX)
        parts += (
            _BLOCK_START.pack(value.first_transaction_id, value.count, len(value.block)),
            _starts(value),
            value.block,
        )

    def read(self, reader: Reader) -> RecordBatch:
        first, count, size = reader.unpack(_BLOCK_START)
        if count > RECORD_LIST_RECORDS_MAX:
            raise RemoteProtocolError(
                f"the message has {count} records; expected 0 to {RECORD_LIST_RECORDS_MAX}"
            )
        starts = column_of(reader, "<u4", count)
        block = reader.take(size)
        if not count:
            if size:
                raise RemoteProtocolError(f"a block of {size} bytes without records")
            return empty_batch(TransactionId(first))
        offsets = np.empty(count + 1, np.int64)
        offsets[:count] = starts
        offsets[count] = size
        batch = RecordBatch(TransactionId(first), block, offsets)
        fault = batch.fault(with_data=self._with_data)
        if fault is not None:
            raise RemoteProtocolError(fault)
        return batch


APPEND_COLUMNS: Final = AppendColumnsField()
FEED_COLUMNS: Final = FeedColumnsField()
RECORD_BLOCK: Final = RecordBlockField(with_data=True)
STORED_BLOCK: Final = RecordBlockField(with_data=False)
