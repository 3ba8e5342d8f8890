"""Bounds of bytes: what fits is taken, and never nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz import BlockData, TransactionColumns
from waltz.spark.byte_limit import admit_bytes, data_lengths, fitting
from waltz.spark.progress import Progress
from waltz.types import PartitionId, TransactionId


@given(st.lists(st.lists(st.integers(0, 9), max_size=4)), st.integers(0, 60), st.integers(0, 3))
def test_as_many_as_fit_are_taken(runs: list[list[int]], bytes_max: int, at_least: int) -> None:
    sizes = [size for run in runs for size in run]
    count, used = fitting((np.array(run, np.int64) for run in runs), bytes_max, at_least=at_least)
    assert used == sum(sizes[:count])
    assert used <= bytes_max or count <= at_least
    if count < len(sizes):
        assert count >= at_least
        assert used + sizes[count] > bytes_max


def test_no_more_is_read_than_it_takes() -> None:
    def lengths() -> Iterator[Any]:
        yield np.array([5, 5])
        yield np.array([5, 5])
        raise AssertionError("read too far")

    assert fitting(lengths(), 15, at_least=1) == (3, 15)


SIZES = {0: [10] * 9, 1: [30] * 9, 2: [200], 3: []}


def admitted(next_ids: list[int], bytes_max: int) -> list[int]:
    start = Progress(
        UUID(int=1), {PartitionId(n): TransactionId(next_id) for n, next_id in enumerate(next_ids)}
    )
    ends = {PartitionId(n): TransactionId(len(sizes)) for n, sizes in SIZES.items()}
    reached = admit_bytes(
        start, ends, bytes_max, lambda p, first, end: [np.array(SIZES[p][first:end], np.int64)]
    )
    return [reached[PartitionId(n)] for n in range(4)]


@pytest.mark.parametrize(
    ("next_ids", "bytes_max", "reached"),
    [
        ([0, 0, 0, 0], 10_000, [9, 9, 1, 0]),
        ([0, 0, 0, 0], 90, [3, 1, 0, 0]),
        ([0, 9, 1, 0], 35, [3, 9, 1, 0]),
        ([9, 9, 0, 0], 1, [9, 9, 1, 0]),  # larger than allowed, and all there is
        ([0, 0, 1, 0], 1, [0, 1, 1, 0]),
        ([9, 9, 1, 0], 1, [9, 9, 1, 0]),
    ],
)
def test_partitions_share_what_is_allowed(
    next_ids: list[int], bytes_max: int, reached: list[int]
) -> None:
    """PS-03."""
    assert admitted(next_ids, bytes_max) == reached


def test_batches_lead_to_the_end() -> None:
    place, batches = [0, 0, 0, 0], 0
    while place != [9, 9, 1, 0]:
        further = admitted(place, 40)
        assert further != place
        place, batches = further, batches + 1
    assert 9 < batches < 20


def test_lengths_are_those_of_the_data_wherever_they_lie() -> None:
    block = BlockData(b"abcdef", np.array([0, 2]), np.array([1, 6]))
    for data in (block, [b"a", b"cdef"]):
        columns = TransactionColumns(TransactionId(0), bytes(32), np.zeros(2, np.int32), data)
        assert data_lengths(columns).tolist() == [1, 4]
