"""Computes how many transactions fit into a bound of bytes. Pure: the caller brings the lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from waltz import BlockData, TransactionColumns
from waltz.spark.progress import NextIds, Progress
from waltz.types import PartitionId, TransactionId

Lengths = Iterable[NDArray[np.int64]]
"""Lengths of the data of transactions that follow each other."""


def data_lengths(columns: TransactionColumns) -> NDArray[np.int64]:
    """Return the length of the data of each transaction, in bytes."""
    data = columns.data
    if isinstance(data, BlockData):
        return data.ends - data.starts
    return np.array([len(each) for each in data], np.int64)


def fitting(lengths: Lengths, bytes_max: int, *, at_least: int) -> tuple[int, int]:
    """Return how many of the transactions fit into `bytes_max`, but no fewer than `at_least`, and
    their bytes. Takes no more of `lengths` than needed."""
    count = used = 0
    for run in lengths:
        ends = used + np.cumsum(run)
        taken = int(np.searchsorted(ends, bytes_max, side="right"))
        taken = min(len(run), max(taken, at_least - count))
        if taken:
            used = int(ends[taken - 1])
        count += taken
        if taken < len(run):
            break
    return count, used


def admit_bytes(
    start: Progress,
    ends: NextIds,
    bytes_max: int,
    lengths_of: Callable[[PartitionId, TransactionId, TransactionId], Lengths],
) -> NextIds:
    """Return the end of a micro-batch: towards `ends`, by at most `bytes_max` bytes of data.

    Partitions get equal shares; the rest of a share goes to the partitions after it; the first
    place rotates from batch to batch. At least one transaction is admitted, however large it is.
    """
    waiting = sorted(each for each in ends if start.next_id(each) < ends[each])
    turn = sum(start.next_ids.values()) % max(1, len(waiting))
    reached: dict[PartitionId, TransactionId] = dict(_starts(start, ends))
    left, admitted = bytes_max, 0
    for index, partition_id in enumerate(order := waiting[turn:] + waiting[:turn]):
        share = max(0, left) // (len(order) - index)
        first = start.next_id(partition_id)
        lengths = lengths_of(partition_id, first, ends[partition_id])
        count, used = fitting(lengths, share, at_least=0 if admitted else 1)
        reached[partition_id] = TransactionId(first + count)
        left -= used
        admitted += count
    return reached


def _starts(start: Progress, ends: NextIds) -> Mapping[PartitionId, TransactionId]:
    return {each: start.next_id(each) for each in ends}
