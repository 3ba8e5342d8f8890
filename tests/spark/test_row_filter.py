"""Sets of integers, and Spark's filters as such."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from waltz.errors import ConfigurationError
from waltz.spark.offsets import TransactionRange
from waltz.spark.row_filter import ALL, Intervals, PushFilters, RowFilter, parse_headers
from waltz.types import PartitionId, TransactionId

BOUNDS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=5)
VALUES = range(-11, 12)


def within(bounds: list[tuple[int, int]]) -> set[int]:
    return {value for value in VALUES for low, high in bounds if low <= value <= high}


@given(BOUNDS, BOUNDS)
def test_intervals_are_the_sets_that_they_say(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    one, other = Intervals.of(first), Intervals.of(second)
    assert {value for value in VALUES if value in one} == within(first)
    both = one.and_also(other)
    assert {value for value in VALUES if value in both} == within(first) & within(second)
    mask = one.mask(np.array(VALUES, np.int32))
    assert [value for value, is_in in zip(VALUES, mask, strict=True) if is_in] == sorted(
        within(first)
    )
    assert all(
        left[1] + 1 < right[0] for left, right in zip(one.bounds, one.bounds[1:], strict=False)
    )


COLUMN = ("header",)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (EqualTo(COLUMN, 3), {3}),
        (EqualNullSafe(COLUMN, 3), {3}),
        (GreaterThan(COLUMN, 9), {10, 11}),
        (GreaterThanOrEqual(COLUMN, 10), {10, 11}),
        (LessThan(COLUMN, -9), {-11, -10}),
        (LessThanOrEqual(COLUMN, -10), {-11, -10}),
        (In(COLUMN, (7, None, 1)), {1, 7}),
        (In(COLUMN, (None,)), set()),
        (IsNotNull(COLUMN), set(VALUES)),
    ],
)
def test_a_filter_of_an_integer_is_taken_over(wanted: Filter, found: set[int]) -> None:
    """PS-06."""
    narrowed, left = RowFilter().pushed([wanted])
    assert left == []
    assert {value for value in VALUES if value in narrowed.headers} == found


@pytest.mark.parametrize(
    "wanted",
    [
        Not(EqualTo(COLUMN, 3)),
        EqualTo(COLUMN, None),
        EqualTo(COLUMN, True),
        EqualTo(COLUMN, 3.0),
        In(COLUMN, (3, "x")),
        EqualTo(("data",), 3),
        EqualTo(("header", "inner"), 3),
        IsNotNull(("other",)),
    ],
)
def test_spark_looks_at_the_others_itself(wanted: Filter) -> None:
    assert RowFilter().pushed([wanted]) == (RowFilter(), [wanted])


def test_filters_narrow_what_an_option_has_left() -> None:
    narrowed, _ = RowFilter(headers=parse_headers("1..9,20")).pushed(
        [GreaterThan(COLUMN, 5), LessThan(COLUMN, 30)]
    )
    assert narrowed.headers.bounds == ((6, 9), (20, 20))


def test_ranges_are_cut_to_what_is_wanted() -> None:
    ranges = [
        TransactionRange(PartitionId(partition), TransactionId(10), TransactionId(20))
        for partition in range(3)
    ]
    wanted, _ = RowFilter().pushed(
        [In(("partition",), (0, 2)), In(("transaction_id",), (3, 10, 12, 13, 19, 20))]
    )
    assert [(each.partition_id, each.first, each.end) for each in wanted.cut(ranges)] == [
        (partition, first, end)
        for partition in (0, 2)
        for first, end in ((10, 11), (12, 14), (19, 20))
    ]
    assert RowFilter().cut(ranges) == ranges


def test_headers_are_written_as_numbers_and_ranges() -> None:
    assert parse_headers("1, 3..5,-7..-6,4").bounds == ((-7, -6), (1, 1), (3, 5))
    for text in ("", "a", "1..", "5..3", "2147483648", "1-3"):
        with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option headers is"):
            parse_headers(text)


def test_the_method_of_the_instance_passes_for_spark_s_own() -> None:
    """Spark refuses every read where it finds the method overridden and pushing is off."""

    class Reader:
        row_filter = RowFilter()

    reader = Reader()
    push = PushFilters(reader)
    assert getattr(push, "__func__", None) is DataSourceReader.pushFilters
    assert push([EqualTo(COLUMN, 1), Not(EqualTo(COLUMN, 2))]) == [Not(EqualTo(COLUMN, 2))]
    assert reader.row_filter.headers != ALL
