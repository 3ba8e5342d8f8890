"""The headers whose rows are wanted, so that the data of others is not fetched. Pure.

Spark's own filters are not used, although the API has a method for them: Spark 4.3 reuses the
filtered rows of a data frame for every later use of the same data frame, in a join or a union for
both sides, and so silently leaves out rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION

LOW: Final = -(1 << 63)
HIGH: Final = (1 << 63) - 1
"""Beyond every header."""


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

    def mask(self, values: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return for each value whether it is in the set."""
        found = np.zeros(len(values), np.bool_)
        wide = values.astype(np.int64)
        for low, high in self.bounds:
            found |= (wide >= low) & (wide <= high)
        return found


ALL: Final = Intervals(((LOW, HIGH),))


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
