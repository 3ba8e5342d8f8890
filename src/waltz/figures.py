"""What a figure of a process or of one of its partitions is: a name with its unit, and a reading.

The lists of figures are their owners'; whoever shows them (`/metrics`, JSON, `waltz status`) goes
through these lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One figure, None while it is not known. `name` ends with its unit; a counter only grows while
    the process runs."""

    name: str
    meaning: str
    value: Callable[[S], float | None]
    is_counter: bool = False


def gauge(name: str, meaning: str, value: Callable[[S], float | None]) -> Metric[S]:
    return Metric(name, meaning, value)


def counter(name: str, meaning: str, value: Callable[[S], float | None]) -> Metric[S]:
    return Metric(name, meaning, value, is_counter=True)
