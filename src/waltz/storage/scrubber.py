"""The pace of the scrubber: which records are read again next, and when.

Owns the order of partitions within a pass, the budget of bytes per second, and the pauses. Reads
nothing itself: `upkeep` asks whose turn it is, lets that partition check some slices, and reports.

In a pass partitions take turns, those with damage first and to their ends, and it ends where each
partition ended when the pass came to it: what is appended meanwhile is for the next one. A turn
waits while its partition is busy, but not for long, and ends after the slice during which something
else has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from waltz.storage.log.segments import ScrubStep
from waltz.types import PartitionId, TransactionId

SCRUB_SLICE_BYTES_MIN: Final = 64 * 1024
SCRUB_SLICE_BYTES_MAX: Final = 256 * 1024
SCRUB_SLICE_SECONDS_MAX: Final = 0.001
"""Read at a time: within these two as much as takes about so long, for appends that come meanwhile
wait for it, and small records take long."""

SCRUB_TURN_BYTES_MAX: Final = 1024 * 1024
"""Read in one turn of a partition as long as nothing waits for it: turns cost more than slices."""

SCRUB_SHARE_MAX: Final = 0.1
"""Of the time, however slow the records are to check."""

SCRUB_PATIENCE_SECONDS: Final = 0.05
"""How long a slice that is due waits for a partition that is not busy."""

SCRUB_LAG_SECONDS_MAX: Final = 1.0
"""So much of the budget that was not used can be made up for."""

SCRUB_LOOK_SECONDS: Final = 5.0
"""Between two looks for new damage while no pass is under way."""


class ScrubTarget(Protocol):
    """A partition as the scrubber sees it."""

    @property
    def next_transaction_id(self) -> TransactionId: ...

    @property
    def has_damage(self) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """Whether something of more importance waits or is under way."""
        ...


@dataclass(frozen=True, slots=True)
class ScrubTurn:
    """Read partition `partition_id` from `first` on, about `bytes_max` bytes in slices of about
    `slice_bytes`."""

    partition_id: PartitionId
    first: TransactionId
    bytes_max: int
    slice_bytes: int


@dataclass(slots=True)
class ScrubResult:
    """What came of a turn so far; `seconds` is the time it took."""

    next_transaction_id: TransactionId
    bytes_read: int = 0
    records: int = 0
    indexes_healed: int = 0
    slices: int = 0
    seconds: float = 0.0

    def add(self, step: ScrubStep, seconds: float) -> None:
        """Count one slice more."""
        self.next_transaction_id = step.next_transaction_id
        self.bytes_read += step.bytes_read
        self.records += step.records
        self.indexes_healed += step.indexes_healed
        self.slices += 1
        self.seconds += seconds


@dataclass(slots=True)
class ScrubCounters:
    """Since the node started."""

    bytes_read: int = 0
    records: int = 0
    ranges_damaged: int = 0
    """Found so far, mended since or not."""
    indexes_healed: int = 0
    passes: int = 0
    """Completed ones over all partitions."""
    last_pass_seconds: float | None = None


@dataclass(slots=True)
class _Position:
    """How far a pass is in one partition; `end` is unknown until it comes to it."""

    next_transaction_id: TransactionId
    end: TransactionId | None = None


class Scrubber:
    """Chooses slices. Times are the caller's clock, in seconds."""

    def __init__(
        self, *, bytes_per_second: int, interval_seconds: float, start_seconds: float, now: float
    ) -> None:
        """The first pass starts `start_seconds` from `now`."""
        assert bytes_per_second > 0
        self.counters = ScrubCounters()
        self.deadline = now + start_seconds
        """When to ask for a slice again after there was none."""
        self._bytes_per_second = bytes_per_second
        self._slice_bytes = SCRUB_SLICE_BYTES_MAX
        self._interval_seconds = interval_seconds
        self._due = self.deadline
        """When the budget allows the next slice."""
        self._next_pass_at = self.deadline
        self._pass_started_at: float | None = None
        """When the pass over all partitions that is under way began."""
        self._waiting: deque[PartitionId] = deque()
        self._positions: dict[PartitionId, _Position] = {}
        self._known_damage: set[PartitionId] = set()
        """Damaged partitions that were read to their end since they were."""

    def positions(self) -> Mapping[PartitionId, TransactionId]:
        """Per partition that the pass under way has not finished, the next record it reads."""
        return {
            partition_id: position.next_transaction_id
            for partition_id, position in self._positions.items()
        }

    def next_turn(self, now: float, targets: Mapping[PartitionId, ScrubTarget]) -> ScrubTurn | None:
        """Return what to read now; None: nothing before `deadline`."""
        if now < self._due:
            self.deadline = self._due
            return None
        if not self._waiting:
            self._begin(now, targets)
        is_patient = now < self._due + SCRUB_PATIENCE_SECONDS
        for partition_id in list(self._waiting):
            target = targets.get(partition_id)
            if target is None:
                # Given up in the middle of the pass.
                self._waiting.remove(partition_id)
                self._end(partition_id, now)
                continue
            if target.is_busy:
                if is_patient:
                    continue
                # Once for every patience: whoever is that busy is not to be caught up with.
                self._due = now
            self._waiting.remove(partition_id)
            position = self._positions[partition_id]
            if position.end is None:
                position.end = target.next_transaction_id
            size = SCRUB_SLICE_BYTES_MAX if target.is_busy else SCRUB_TURN_BYTES_MAX
            return ScrubTurn(partition_id, position.next_transaction_id, size, self._slice_bytes)
        if self._waiting:
            self.deadline = self._due + SCRUB_PATIENCE_SECONDS
        else:
            self.deadline = now + SCRUB_LOOK_SECONDS
            if self._next_pass_at > now:
                self.deadline = min(self.deadline, self._next_pass_at)
        return None

    def finish(self, done: ScrubTurn, result: ScrubResult, target: ScrubTarget, now: float) -> None:
        """The turn is over; it had one slice at least."""
        seconds = max(result.bytes_read / self._bytes_per_second, result.seconds / SCRUB_SHARE_MAX)
        self._pay(seconds, now)
        self._fit_slices(result.seconds / result.slices)
        self.counters.bytes_read += result.bytes_read
        self.counters.records += result.records
        self.counters.indexes_healed += result.indexes_healed
        position = self._positions[done.partition_id]
        assert position.end is not None
        if done.first < result.next_transaction_id < position.end:
            position.next_transaction_id = result.next_transaction_id
            if target.has_damage:
                self._waiting.appendleft(done.partition_id)
            else:
                self._waiting.append(done.partition_id)
            return
        if target.has_damage:
            self._known_damage.add(done.partition_id)
        self._end(done.partition_id, now)

    def give_up(self, failed: ScrubTurn, now: float) -> None:
        """Nothing could be read; the rest of the partition is left to the next pass."""
        self._pay(failed.bytes_max / self._bytes_per_second, now)
        self._end(failed.partition_id, now)

    def _pay(self, seconds: float, now: float) -> None:
        """Leave so long between the start of this slice and that of the next."""
        # What was missed while all were busy may be made up for, a little.
        self._due = max(self._due, now - SCRUB_LAG_SECONDS_MAX) + seconds

    def _fit_slices(self, seconds: float) -> None:
        """Make the next slice half as large or twice as large after one that took too long or
        would have had time for that."""
        if seconds > SCRUB_SLICE_SECONDS_MAX:
            self._slice_bytes = max(SCRUB_SLICE_BYTES_MIN, self._slice_bytes // 2)
        elif seconds < SCRUB_SLICE_SECONDS_MAX / 2:
            self._slice_bytes = min(SCRUB_SLICE_BYTES_MAX, self._slice_bytes * 2)

    def _end(self, partition_id: PartitionId, now: float) -> None:
        del self._positions[partition_id]
        if self._positions or self._pass_started_at is None:
            return
        self.counters.passes += 1
        self.counters.last_pass_seconds = now - self._pass_started_at
        self._pass_started_at = None
        self._next_pass_at = now + self._interval_seconds

    def _begin(self, now: float, targets: Mapping[PartitionId, ScrubTarget]) -> None:
        """Start a pass if it is time for one, or read what has been damaged lately."""
        damaged = {number for number, target in targets.items() if target.has_damage}
        self._known_damage &= damaged
        if now >= self._next_pass_at and targets:
            self._pass_started_at = now
            self._wait_for([*sorted(damaged), *sorted(targets.keys() - damaged)])
        else:
            self._wait_for(sorted(damaged - self._known_damage))

    def _wait_for(self, partition_ids: Iterable[PartitionId]) -> None:
        self._waiting.extend(partition_ids)
        self._positions = {number: _Position(TransactionId(0)) for number in self._waiting}
