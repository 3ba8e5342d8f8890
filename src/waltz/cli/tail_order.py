"""The order in which transactions of several partitions are printed, by what is known of time.

Owns the order, and which lines may be out of it. IDs order the transactions of one partition; those
of two partitions only intervals of time can order, and two intervals may overlap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

P = TypeVar("P", bound=Hashable)

LONG_AGO: Final = -(1 << 63)
NEVER: Final = (1 << 63) - 1


@dataclass(slots=True)
class _Waiting:
    """The rows of one partition that are not printed yet: bounds of their times."""

    lows: Sequence[int] = ()
    highs: Sequence[int] = ()
    position: int = 0
    key: int = LONG_AGO
    """The time by which the next row is ordered: no row goes before an earlier one of its
    partition."""
    printed_high: int = LONG_AGO
    """The latest time that a printed row may have."""

    def advance_key(self) -> None:
        if self.position < len(self.highs) and self.highs[self.position] != NEVER:
            self.key = max(self.key, self.highs[self.position])


@dataclass(slots=True)
class TimeOrder(Generic[P]):
    """Puts the rows of partitions into one order. Every partition that has not ended must have rows
    before one is taken."""

    _partitions: dict[P, _Waiting] = field(default_factory=dict)

    def add(self, partition: P, lows: Sequence[int], highs: Sequence[int]) -> None:
        """Add the next rows of a partition, all earlier ones of which were taken; bounds that are
        not known are LONG_AGO and NEVER."""
        waiting = self._partitions.setdefault(partition, _Waiting())
        assert waiting.position >= len(waiting.lows), "earlier rows were taken"
        waiting.lows, waiting.highs, waiting.position = lows, highs, 0
        waiting.advance_key()

    def end(self, partition: P) -> None:
        """Note that a partition has no more rows; those that were printed still count."""
        waiting = self._partitions.setdefault(partition, _Waiting())
        waiting.lows, waiting.highs, waiting.position = (), (), 0

    def take(self) -> tuple[P, int, bool] | None:
        """Return the partition of the next row, its position in what was added last, and whether
        the rows of other partitions before it are known to be older; None if no row waits."""
        waiting = [
            (each.key, at, partition)
            for at, (partition, each) in enumerate(self._partitions.items())
            if each.position < len(each.lows)
        ]
        if not waiting:
            return None
        _, _, partition = min(waiting, key=lambda each: each[:2])
        chosen = self._partitions[partition]
        row = chosen.position
        others = [
            each.printed_high for other, each in self._partitions.items() if other != partition
        ]
        is_ordered = chosen.lows[row] >= max(others, default=LONG_AGO)
        chosen.printed_high = max(chosen.printed_high, chosen.highs[row])
        chosen.position += 1
        chosen.advance_key()
        return partition, row, is_ordered


@dataclass(slots=True)
class LeftOut(Generic[P]):
    """The rows that are left out before the last ones of the order, and how many of them may be
    newer than one of these: times that overlap have no order."""

    _highs: dict[P, list[int]] = field(default_factory=dict)
    """The latest time that each row that is left out may have."""
    _lows: dict[P, int] = field(default_factory=dict)
    """The earliest time that a row that is shown may have."""

    def leave(self, partition: P, high: int) -> None:
        self._highs.setdefault(partition, []).append(high)

    def show(self, partition: P, low: int) -> None:
        self._lows[partition] = min(low, self._lows.get(partition, NEVER))

    def newer_count(self) -> int:
        """Return the number of rows left out that may be newer than a shown one of another
        partition."""
        count = 0
        for partition, highs in self._highs.items():
            others = [low for other, low in self._lows.items() if other != partition]
            low = min(others, default=NEVER)
            count += sum(high > low for high in highs)
        return count
