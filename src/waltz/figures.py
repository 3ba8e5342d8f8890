"""A figure of a process or of one of its partitions: a name with its unit, and a reading.

Each owner of figures has a list of them; all views (`/metrics`, JSON, `waltz status`) are made from
these lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Metric(Generic[S]):
    """One figure; its reading is None while it is unknown. `name` ends with its unit; a counter
    only grows while the process runs."""

    name: str
    meaning: str
    value: Callable[[S], float | None]
    is_counter: bool = False


def gauge(name: str, meaning: str, value: Callable[[S], float | None]) -> Metric[S]:
    return Metric(name, meaning, value)


def counter(name: str, meaning: str, value: Callable[[S], float | None]) -> Metric[S]:
    return Metric(name, meaning, value, is_counter=True)
