"""The choice of transactions that a live tail reads: it costs a cluster the same at any load.

Owns the bounds on rows and ranges, and the count of what is skipped. Pure: it is given marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from waltz.console.plain_text import plain_data
from waltz.types import PartitionId, RequestId, TransactionId

TAIL_ROWS_MAX: Final = 50
"""Transactions that are read and shown per second; of more, the newest."""

TAIL_RANGES_MAX: Final = 8
"""Partitions that are read per second, each over a connection of its own; with more the turn goes
round."""

TAIL_DATA_BYTES: Final = 512
"""Bytes of a transaction's data that a row shows."""

TAIL_READ_BYTES_MAX: Final = 4 * 1024 * 1024
"""Once a second has brought this many bytes of data, the rest of its transactions is skipped."""


@dataclass(frozen=True, slots=True)
class Range:
    """The transactions of a partition from `first` to before `end`."""

    partition_id: PartitionId
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Row:
    """A transaction as the tail shows it; `data` is None where it was not asked for."""

    partition_id: int
    transaction_id: int
    header: int
    request_id: RequestId
    data: bytes | None

    def to_json(self) -> dict[str, Any]:
        """Return the row as its page gets it; all text is plain."""
        row: dict[str, Any] = {
            "partition": self.partition_id,
            "id": str(self.transaction_id),
            "header": self.header,
            "request": "/".join(map(str, self.request_id)),
        }
        if self.data is not None:
            row |= {"size": len(self.data), "data": plain_data(self.data, TAIL_DATA_BYTES)}
        return row


@dataclass(frozen=True, slots=True)
class Sampled:
    """The ranges to read, and the number of transactions that nobody will."""

    ranges: tuple[Range, ...]
    skipped: int


def sample(
    before: Mapping[PartitionId, TransactionId],
    now: Mapping[PartitionId, TransactionId],
    turn: int = 0,
) -> Sampled:
    """Return what to read of the transactions after the marks `before` up to those of `now`.

    A partition that is not in `before` begins at its mark. `turn` chooses among partitions if too
    many have moved.
    """
    moved = [
        (number, before[number], mark)
        for number, mark in sorted(now.items())
        if mark > before.get(number, mark)
    ]
    total = sum(mark - start for _, start, mark in moved)
    offset = turn * TAIL_RANGES_MAX % len(moved) if len(moved) > TAIL_RANGES_MAX else 0
    chosen = (moved[offset:] + moved[:offset])[:TAIL_RANGES_MAX]
    rows = _shares([mark - start for _, start, mark in chosen])
    ranges = tuple(
        Range(number, mark + 1 - count, mark + 1)
        for (number, _, mark), count in zip(chosen, rows, strict=True)
        if count
    )
    return Sampled(ranges, total - sum(rows))


def _shares(wanted: Sequence[int]) -> list[int]:
    """Return a share of TAIL_ROWS_MAX for each, none larger than wanted, small ones first."""
    shares = [0] * len(wanted)
    left = TAIL_ROWS_MAX
    for place, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], left // (len(wanted) - place))
        left -= shares[index]
    return shares
