"""Determines how far a database of tables has taken the log in, even if its own record of that is
wrong.

Marks, digests of blocks and the rows themselves record it three times; where one of them was
changed the others are believed, so that a changed mark is reported as one difference and not as a
thousand wrong rows. Pure: the log is asked through a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from waltz.errors import NotFoundError
from waltz.spark.codes import OUTSIDE_LOG
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.fold import (
    BLOCKS,
    MARKS,
    ColumnDifference,
    StoredValue,
    TableDifference,
)
from waltz.spark.pipelines.table_store import BLOCK_TRANSACTIONS
from waltz.types import PartitionId, TransactionId


@dataclass(frozen=True, slots=True)
class StatedExtent:
    """A database's own records of how far it is.

    marks      the next transaction of each partition.
    blocks     transactions and digest of each block, by partition and block.
    mentioned  the transaction after the last one that a row mentions, by partition.
    """

    marks: Mapping[PartitionId, TransactionId]
    blocks: Mapping[tuple[int, int], tuple[int, str]]
    mentioned: Mapping[int, int]

    def counted(self, partition_id: int) -> int:
        """Return how many transactions the blocks of a partition have."""
        return sum(
            count for (partition, _), (count, _) in self.blocks.items() if partition == partition_id
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """The number of transactions taken in per partition, and the marks that differ from it."""

    ends: Mapping[PartitionId, TransactionId]
    differences: tuple[TableDifference, ...]


def extent_of(
    claims: StatedExtent,
    log_ends: Mapping[PartitionId, TransactionId],
    digest_of: Callable[[TransactionRange], str],
) -> Extent:
    """Return how far the database is. `digest_of` returns the digest of a block in the log.

    Raises NotFoundError: marks and blocks agree on more than the log has, which has lost data.
    """
    ends: dict[PartitionId, TransactionId] = {}
    differences: list[TableDifference] = []
    for partition in sorted({*claims.marks, *(each for each, _ in claims.blocks)}):
        partition_id = PartitionId(partition)
        mark, counted = claims.marks.get(partition_id, TransactionId(0)), claims.counted(partition)
        log_end = log_ends.get(partition_id, TransactionId(0))
        if mark == counted and mark > log_end and partition_id in log_ends:
            raise NotFoundError(
                f"{OUTSIDE_LOG} partition {partition} was taken in to transaction {mark - 1}; its"
                f" high-water mark is {log_end - 1}. The log has lost data"
            )
        end = mark
        if mark != counted:
            end = _believed(partition_id, claims, log_end, digest_of)
        if end != mark or mark > log_end:
            differences.append(_wrong_mark(partition, claims, end, log_end))
        if partition_id in log_ends and end:
            ends[partition_id] = min(end, log_end)
    return Extent(ends, tuple(differences))


def _believed(
    partition_id: PartitionId,
    claims: StatedExtent,
    log_end: TransactionId,
    digest_of: Callable[[TransactionRange], str],
) -> TransactionId:
    """Return the one of mark and count that digests and rows speak for; the mark if neither."""
    mark = claims.marks.get(partition_id, TransactionId(0))
    counted = TransactionId(claims.counted(partition_id))
    for end in (mark, counted):
        if not claims.mentioned.get(partition_id, 0) <= end <= log_end:
            continue
        numbers = {block for partition, block in claims.blocks if partition == partition_id}
        last = (end - 1) // BLOCK_TRANSACTIONS
        if numbers != set(range(last + 1)):
            continue
        first = TransactionId(last * BLOCK_TRANSACTIONS)
        if (
            not end
            or digest_of(TransactionRange(partition_id, first, end))
            == (claims.blocks[partition_id, last][1])
        ):
            return end
    return mark if mark <= log_end else min(counted, log_end)


def _wrong_mark(
    partition: int, claims: StatedExtent, end: TransactionId, log_end: TransactionId
) -> TableDifference:
    mark = claims.marks.get(PartitionId(partition))
    first = min(mark or 0, end)
    column = ColumnDifference("next_transaction_id", end, mark, partition, first)
    detail = "" if log_end else "the log has nothing of this partition"
    return TableDifference(MARKS, {"partition": partition}, (column,), partition, first, detail)


def different_blocks(
    found: Mapping[tuple[int, int], tuple[int, str]],
    expected: Mapping[tuple[int, int], tuple[int, str]],
) -> Iterator[TableDifference]:
    """Yield the blocks that differ from the log's, in their order."""
    for place in sorted(found.keys() | expected.keys()):
        partition, block = place
        first = block * BLOCK_TRANSACTIONS
        ours, theirs = expected.get(place), found.get(place)
        if ours == theirs:
            continue
        columns: tuple[ColumnDifference, ...] = ()
        run = f"transactions {first} to {first + BLOCK_TRANSACTIONS - 1}"
        if ours is None:
            detail = f"{run}: none of them were taken in"
        elif theirs is None:
            detail = f"{run}: missing"
        else:
            both: tuple[tuple[str, StoredValue, StoredValue], ...] = (
                ("transactions", ours[0], theirs[0]),
                ("digest", ours[1], theirs[1]),
            )
            columns = tuple(
                ColumnDifference(name, one, other, partition, first)
                for name, one, other in both
                if one != other
            )
            detail = f"{run}: the log, or what is kept of it, was changed since they were taken in"
        key = {"partition": partition, "block": block}
        yield TableDifference(BLOCKS, key, columns, partition, first, detail)
