"""The marks of named consumers that a server has to write into the coordinator, and when.

Owns what is not written yet. Must not know the coordinator. A name is written at most every
KEEP_SECONDS, and soon after a client of that name has left. Always: what is written was told by a
client of that name that had mounted the partition, and lies within the log; the names that wait are
bounded, and so is what waits for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from waltz.cluster.consumer_marks import CONSUMERS_MAX, KeptMark, KeptMarks, merged
from waltz.types import PartitionId, TransactionId

KEEP_SECONDS: Final = 30.0
"""Between two writes of one name, unless a client of that name leaves."""

LEFT_SECONDS: Final = 1.0
"""Between two writes of one name whose clients come and go."""


class MarksToWrite(NamedTuple):
    name: str
    marks: KeptMarks


class MarkKeeping:
    """See the module."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[str, dict[PartitionId, TransactionId]]] = {}
        """The name of each connection of a consumer, and the marks that it has told."""
        self._waiting: dict[str, dict[PartitionId, KeptMark]] = {}
        self._due: dict[str, float] = {}
        self._written_at: dict[str, float] = {}
        """The last write of each name, for KEEP_SECONDS."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def deadline(self) -> float | None:
        return min(self._due.values(), default=None)

    def note(
        self,
        connection_id: int,
        name: str,
        partition_id: PartitionId,
        mark: KeptMark,
        now: float,
    ) -> None:
        """A client has told how far it has applied a partition that it has mounted."""
        _, told = self._told.setdefault(connection_id, (name, {}))
        told[partition_id] = mark.transaction_id
        self._wait(name, {partition_id: mark}, now, KEEP_SECONDS)

    def leave(self, connection_id: int, wall_milliseconds: int, now: float) -> None:
        """A connection has ended: until now its client was seen with the marks that it has told."""
        name, told = self._told.pop(connection_id, ("", {}))
        if told:
            seen = {each: KeptMark(mark, wall_milliseconds) for each, mark in told.items()}
            self._wait(name, seen, now, LEFT_SECONDS)

    def put_back(self, name: str, marks: KeptMarks, now: float) -> None:
        """Marks that were taken could not be written."""
        self._wait(name, marks, now, KEEP_SECONDS)

    def take(self, now: float) -> MarksToWrite | None:
        """Return what is to be written now, of one name; None if nothing is."""
        self._written_at = {
            name: at for name, at in self._written_at.items() if now < at + KEEP_SECONDS
        }
        due = [name for name, at in self._due.items() if at <= now]
        return self._taken(min(due, key=self._due.__getitem__), now) if due else None

    def take_any(self, now: float) -> MarksToWrite | None:
        """Return what waits of one name, due or not; None if nothing waits."""
        return self._taken(next(iter(self._waiting)), now) if self._waiting else None

    def check_invariants(self) -> None:
        assert self._due.keys() == self._waiting.keys()
        assert len(self._waiting) <= CONSUMERS_MAX
        assert all(self._waiting.values())

    def _taken(self, name: str, now: float) -> MarksToWrite:
        del self._due[name]
        self._written_at[name] = now
        return MarksToWrite(name, self._waiting.pop(name))

    def _wait(
        self, name: str, marks: Mapping[PartitionId, KeptMark], now: float, pause: float
    ) -> None:
        if name not in self._waiting and len(self._waiting) >= CONSUMERS_MAX:
            return
        self._waiting[name] = merged(self._waiting.get(name, {}), marks)
        at = now
        if name in self._written_at:
            at = max(now, self._written_at[name] + pause)
        self._due[name] = min(at, self._due.get(name, at))
