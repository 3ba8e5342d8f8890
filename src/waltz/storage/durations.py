"""Durations as counts below fixed bounds, like a histogram of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds, from a sync that a write cache answers to one so slow that servers give up."""


class Durations:
    __slots__ = ("_counts", "count", "sum_seconds")

    def __init__(self) -> None:
        self.count = 0
        self.sum_seconds = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)
        """At index i the durations above bound i - 1 and up to bound i; the last has no bound."""

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum_seconds += seconds
        self._counts[bisect_left(BOUNDS, seconds)] += 1

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound and the number of durations up to it."""
        total = 0
        for bound, count in zip(BOUNDS, self._counts, strict=False):
            total += count
            yield bound, total
