"""A figure of a process or of one of its partitions: a name with its unit, and a reading.

Each owner of figures has a list of them; all views (`/metrics`, JSON, `waltz status`, the page of
metrics) are made from these lists. A reading that nobody can confirm is absent: it is never 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

S = TypeVar("S")

BOUNDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Seconds, from a sync that a write cache answers to one so slow that servers give up."""


class Durations:
    """Durations as counts below fixed bounds, like a histogram of Prometheus."""

    __slots__ = ("_counts", "count", "sum_seconds")

    def __init__(self) -> None:
        self.count = 0
        self.sum_seconds = 0.0
        self._counts = [0] * (len(BOUNDS) + 1)
        """At index i the durations above bound i - 1 and up to bound i; the last has no bound."""

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.count += 1
        self.sum_seconds += seconds
        self._counts[bisect_left(BOUNDS, seconds)] += 1

    def copy(self) -> Durations:
        """Return what was counted until now; any thread may ask."""
        found = Durations()
        found._counts = self._counts[:]
        found.count, found.sum_seconds = sum(found._counts), self.sum_seconds
        return found

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound and the number of durations up to it."""
        total = 0
        for bound, count in zip(BOUNDS, self._counts, strict=False):
            total += count
            yield bound, total


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One figure; its reading is None while it is unknown. `name` ends with its unit; a counter
    only grows while the process runs. `absent` says when the reading is None, for people."""

    name: str
    meaning: str
    value: Callable[[S], float | None]
    is_counter: bool = False
    absent: str = ""


class Label(NamedTuple):
    """A label of the samples of a family, and the bound of its values in words."""

    name: str
    bound: str


Sample: TypeAlias = "tuple[tuple[str, ...], float | Durations]"
"""The values of the labels, and the reading."""


@dataclass(frozen=True, slots=True)
class Family(Generic[S]):
    """Figures of one name that differ by their labels. Samples that nobody can confirm are left
    out; a histogram's readings are `Durations`."""

    name: str
    meaning: str
    kind: Kind
    labels: tuple[Label, ...]
    samples: Callable[[S], Iterable[Sample]]
    absent: str = ""


def gauge(
    name: str, meaning: str, value: Callable[[S], float | None], *, absent: str = ""
) -> Metric[S]:
    return Metric(name, meaning, value, absent=absent)


def counter(
    name: str, meaning: str, value: Callable[[S], float | None], *, absent: str = ""
) -> Metric[S]:
    return Metric(name, meaning, value, is_counter=True, absent=absent)
