"""Which rows of the log are wanted, so that the others are not read. Pure: no session, no log.

A condition on a column is a set of integers, kept as intervals: what an option says, and those of
Spark's filters that can be said like that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
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
)

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION
from waltz.spark.offsets import TransactionRange
from waltz.types import TransactionId

LOW: Final = -(1 << 63)
HIGH: Final = (1 << 63) - 1
"""What a column can have at most; partitions and headers have less."""

NEVER_NULL: Final = ("partition", "transaction_id", "request_id", "header", "data")


@dataclass(frozen=True, slots=True)
class Intervals:
    """A set of integers: inclusive intervals, ascending, with gaps between them."""

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, bounds: Iterable[tuple[int, int]]) -> Intervals:
        """Return the union of intervals in any order; one that ends before it begins is empty."""
        joined: list[tuple[int, int]] = []
        for low, high in sorted(each for each in bounds if each[0] <= each[1]):
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(joined[-1][1], high)
            else:
                joined.append((low, high))
        return cls(tuple(joined))

    def and_also(self, other: Intervals) -> Intervals:
        """Return what is in both."""
        return Intervals.of(
            (max(low, other_low), min(high, other_high))
            for low, high in self.bounds
            for other_low, other_high in other.bounds
        )

    def __contains__(self, value: int) -> bool:
        return any(low <= value <= high for low, high in self.bounds)

    def mask(self, values: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return for each value whether it is in the set."""
        found = np.zeros(len(values), np.bool_)
        wide = values.astype(np.int64)
        for low, high in self.bounds:
            found |= (wide >= low) & (wide <= high)
        return found


ALL: Final = Intervals(((LOW, HIGH),))


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The rows whose partition, transaction ID and header are all wanted."""

    partitions: Intervals = ALL
    transaction_ids: Intervals = ALL
    headers: Intervals = ALL

    def cut(self, ranges: Iterable[TransactionRange]) -> list[TransactionRange]:
        """Return what of `ranges` is left without regard to headers, in order, none empty."""
        return [
            TransactionRange(each.partition_id, TransactionId(first), TransactionId(end))
            for each in ranges
            if each.partition_id in self.partitions
            for low, high in self.transaction_ids.bounds
            if (first := max(each.first, low)) < (end := min(each.end, high + 1))
        ]

    def pushed(self, filters: Iterable[Filter]) -> tuple[RowFilter, list[Filter]]:
        """Return this and `filters` as far as they can be said, and those that cannot: Spark has to
        look at these itself."""
        narrowed, left = self, []
        for each in filters:
            taken = narrowed._pushed_one(each)
            if taken is None:
                left.append(each)
            else:
                narrowed = taken
        return narrowed, left

    def _pushed_one(self, wanted: Filter) -> RowFilter | None:
        column = ".".join(getattr(wanted, "attribute", ()))
        if isinstance(wanted, IsNotNull) and column in NEVER_NULL:
            return self
        values = _intervals(wanted)
        if values is None:
            return None
        match column:
            case "partition":
                return replace(self, partitions=self.partitions.and_also(values))
            case "transaction_id":
                return replace(self, transaction_ids=self.transaction_ids.and_also(values))
            case "header":
                return replace(self, headers=self.headers.and_also(values))
            case _:
                return None


def _intervals(wanted: Filter) -> Intervals | None:
    match wanted:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return Intervals.of([(value, value)]) if _is_integer(value) else None
        case GreaterThan(value=value):
            return Intervals.of([(value + 1, HIGH)]) if _is_integer(value) else None
        case GreaterThanOrEqual(value=value):
            return Intervals.of([(value, HIGH)]) if _is_integer(value) else None
        case LessThan(value=value):
            return Intervals.of([(LOW, value - 1)]) if _is_integer(value) else None
        case LessThanOrEqual(value=value):
            return Intervals.of([(LOW, value)]) if _is_integer(value) else None
        case In(value=values):
            if not all(_is_integer(value) or value is None for value in values):
                return None
            return Intervals.of((value, value) for value in values if value is not None)
        case _:
            return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def parse_headers(text: str) -> Intervals:
    """Return the headers written as "1,3..9,-5..-2". Raises ConfigurationError."""
    bounds = []
    for part in text.split(","):
        first, separator, last = part.strip().partition("..")
        try:
            low, high = int(first), int(last) if separator else int(first)
        except ValueError:
            low, high = 1, 0
        if not -(1 << 31) <= low <= high < 1 << 31:
            raise ConfigurationError(
                f"{INVALID_OPTION} option headers is {text!r}; expected 32-bit numbers and"
                ' ascending ranges such as "1,3..9"'
            )
        bounds.append((low, high))
    return Intervals.of(bounds)


class PushFilters:
    """A reader's `pushFilters`, to be set on the instance.

    Spark refuses every read by a class that defines the method while pushing is off, which it is by
    default. Taken from the instance, this passes for the one that is not overridden, and is called
    where pushing is on.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: Sequence[Filter]) -> list[Filter]:
        row_filter: RowFilter = self._reader.row_filter
        self._reader.row_filter, left = row_filter.pushed(filters)
        return left
