"""Transactions side by side: what a reader yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from waltz.client.fed import Fed
from waltz.record import RECORD_HEADER_BYTES, RecordBatch
from waltz.types import TransactionId


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


def columns_of(fed: Sequence[Fed], data: list[bytes]) -> TransactionColumns:
    """Put feed and bodies, at least one of each, side by side."""
    assert len(fed) == len(data) > 0
    return TransactionColumns(
        fed[0].transaction_id,
        np.array([each.request_id for each in fed], ">i4").tobytes(),
        np.array([each.header for each in fed], np.int32),
        data,
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
