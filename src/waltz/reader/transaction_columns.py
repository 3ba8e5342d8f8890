"""Transactions side by side: what a reader yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias, overload
from zlib import crc32

from waltz.arrays import np
from waltz.record import (
    RECORD_HEADER_BYTES,
    REQUEST_ID_BYTES,
    NewRecords,
    RecordBatch,
    pack_records,
)
from waltz.types import RequestId, TransactionId
from waltz.wire.fed import FedRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

WantsData: TypeAlias = "Callable[[NDArray[np.int32]], NDArray[np.bool_]]"
"""Says for each of some headers whether the data is to be fetched."""


class BlockData(Sequence[bytes]):
    """Data where they lie in a block of records: each is cut out when it is asked for.

    Those of the transaction at `index` go from `starts[index]` to before `ends[index]`.
    """

    __slots__ = ("block", "ends", "starts")

    def __init__(self, block: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self.block = block
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, place: int) -> bytes: ...
    @overload
    def __getitem__(self, place: slice) -> BlockData: ...
    def __getitem__(self, place: int | slice) -> bytes | BlockData:
        if isinstance(place, slice):
            return BlockData(self.block, self.starts[place], self.ends[place])
        return self.block[int(self.starts[place]) : int(self.ends[place])]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.block.__getitem__, map(slice, self.starts.tolist(), self.ends.tolist()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class TransactionColumns:
    """Transactions with dense IDs from `first_transaction_id`, one entry per column each; never
    none. `request_ids` has 16 bytes per transaction."""

    first_transaction_id: TransactionId
    request_ids: bytes
    headers: NDArray[np.int32]
    data: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.data)


def columns_of(run: FedRun, data: Sequence[bytes]) -> TransactionColumns:
    """Put a run of the feed and its data side by side."""
    assert len(run) == len(data) > 0
    return TransactionColumns(
        run.first_transaction_id, _request_ids(run.request_runs, len(run)), run.headers, data
    )


def _request_ids(runs: Sequence[tuple[RequestId, int]], count: int) -> bytes:
    lengths = np.array([length for _, length in runs], np.int64)
    found = np.repeat(np.array([first for first, _ in runs], np.int64), lengths, axis=0)
    found[:, 3] += np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return found.astype(">i4").tobytes()


def join_columns(parts: Sequence[TransactionColumns]) -> TransactionColumns:
    """Return all of `parts`, at least one, each of which goes on where the one before ends."""
    if len(parts) == 1:
        return parts[0]
    return TransactionColumns(
        parts[0].first_transaction_id,
        b"".join([part.request_ids for part in parts]),
        np.concatenate([part.headers for part in parts]),
        list(chain.from_iterable(part.data for part in parts)),
    )


def columns_of_records(records: RecordBatch) -> TransactionColumns:
    """Return the columns of records, at least one, whose data stay where they lie."""
    starts, ends = records.offsets[:-1] + RECORD_HEADER_BYTES, records.offsets[1:] - 4
    return TransactionColumns(
        records.first_transaction_id,
        records.request_ids().tobytes(),
        records.headers(),
        BlockData(records.block, starts, ends),
    )


def records_of(columns: TransactionColumns) -> RecordBatch:
    """Return the records of the columns, as they lie in a segment file.

    A block of records is returned as it came. From older servers only the parts of a record come:
    they make the same bytes, and the checksums are computed here.
    """
    data = columns.data
    if isinstance(data, BlockData) and _is_whole(data):
        offsets = np.append(data.starts - RECORD_HEADER_BYTES, len(data.block))
        return RecordBatch(columns.first_transaction_id, data.block, offsets)
    rows = np.frombuffer(columns.request_ids, np.uint8).reshape(-1, REQUEST_ID_BYTES)
    bodies = list(data)
    checksums = np.fromiter(map(crc32, bodies), np.uint32, len(bodies))
    records = NewRecords(rows, columns.headers, bodies, checksums)
    return pack_records(columns.first_transaction_id, records)


def _is_whole(data: BlockData) -> bool:
    """Whether the block holds these records and nothing else."""
    return int(data.starts[0]) == RECORD_HEADER_BYTES and int(data.ends[-1]) + 4 == len(data.block)
