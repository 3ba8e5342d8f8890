"""The pace of the scrubber: which records it reads again next, and when.

Owns the order of partitions within a pass, the budget of bytes per second, and the pauses. Reads
nothing itself: `upkeep` asks whose turn it is, lets that partition check some slices, and reports.

In a pass partitions take turns; those with damage come first and are read to their ends. A pass
reads each partition up to where it ended when its first turn came: later appends are left to the
next pass. A turn waits while its partition is busy, but not for long, and ends after the slice
during which another request has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from waltz.storage.log.checked_records import ScrubStep
from waltz.types import PartitionId, TransactionId

SCRUB_SLICE_BYTES_MIN: Final = 64 * 1024
"""The least that is read at a time."""

SCRUB_SLICE_BYTES_MAX: Final = 256 * 1024
"""The most that is read at a time."""

SCRUB_SLICE_SECONDS_MAX: Final = 0.001
"""Between these two a slice is sized so that reading it takes about this long, however small its
records are: appends wait behind it."""

SCRUB_TURN_BYTES_MAX: Final = 1024 * 1024
"""Bytes read in one turn of a partition while nothing waits for it: turns cost more than slices."""

SCRUB_SHARE_MAX: Final = 0.1
"""The most of the time that may be spent on scrubbing, however slow the records are to check."""

SCRUB_PATIENCE_SECONDS: Final = 0.05
"""A slice that is due waits at most this long for a partition that is not busy."""

SCRUB_LAG_SECONDS_MAX: Final = 1.0
"""Unused budget of at most this long can be made up for."""

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
        """Whether a more important request waits or is under way."""
        ...


@dataclass(frozen=True, slots=True)
class ScrubTurn:
    """An order to read about `bytes_max` bytes of partition `partition_id` from `first` on, in
    slices of about `slice_bytes`."""

    partition_id: PartitionId
    first: TransactionId
    bytes_max: int
    slice_bytes: int


@dataclass(slots=True)
class ScrubResult:
    """The result of a turn so far; `seconds` is the time it took."""

    next_transaction_id: TransactionId
    bytes_read: int = 0
    records: int = 0
    indexes_healed: int = 0
    slices: int = 0
    seconds: float = 0.0

    def add(self, step: ScrubStep, seconds: float) -> None:
        """Count one more slice."""
        self.next_transaction_id = step.next_transaction_id
        self.bytes_read += step.bytes_read
        self.records += step.records
        self.indexes_healed += step.indexes_healed
        self.slices += 1
        self.seconds += seconds


@dataclass(slots=True)
class ScrubCounters:
    """Counts since the node started."""

    bytes_read: int = 0
    records: int = 0
    ranges_damaged: int = 0
    """Ranges found so far, whether or not they were repaired since."""
    indexes_healed: int = 0
    passes: int = 0
    """Completed passes over all partitions; a pass in which a partition could not be read is
    none."""
    last_pass_seconds: float | None = None


@dataclass(slots=True)
class _Position:
    """The progress of a pass in one partition; `end` is unknown before its first turn."""

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
        """The time at which to ask for a turn again after there was none."""
        self._bytes_per_second = bytes_per_second
        self._slice_bytes = SCRUB_SLICE_BYTES_MAX
        self._interval_seconds = interval_seconds
        self._due = self.deadline
        """The time from which on the budget allows the next slice."""
        self._next_pass_at = self.deadline
        self._pass_started_at: float | None = None
        """The time at which the current pass over all partitions began."""
        self._is_incomplete = False
        """Whether a partition could not be read in the current pass."""
        self._waiting: deque[PartitionId] = deque()
        self._positions: dict[PartitionId, _Position] = {}
        self._known_damage: set[PartitionId] = set()
        """Damaged partitions that were read to their ends since the damage was found."""

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
                # The partition was unassigned in the middle of the pass.
                self._waiting.remove(partition_id)
                self._end(partition_id, now)
                continue
            if target.is_busy:
                if is_patient:
                    continue
                # One slice per patience: a lag behind a partition this busy is not made up for.
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
        """Note that a turn is over; it had at least one slice."""
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

    def give_up(self, failed: ScrubTurn, now: float, *, is_assigned: bool = True) -> None:
        """Note that nothing could be read; the rest of the partition is left to the next pass. A
        partition that is not assigned any more has nothing to be read."""
        self._is_incomplete |= is_assigned
        self._pay(failed.bytes_max / self._bytes_per_second, now)
        self._end(failed.partition_id, now)

    def _pay(self, seconds: float, now: float) -> None:
        """Leave `seconds` between the start of this turn and the start of the next."""
        # A little of the time lost while all partitions were busy may be made up for.
        self._due = max(self._due, now - SCRUB_LAG_SECONDS_MAX) + seconds

    def _fit_slices(self, seconds: float) -> None:
        """Halve the slice size after a slice that took too long, double it after one that took less
        than half of the time."""
        if seconds > SCRUB_SLICE_SECONDS_MAX:
            self._slice_bytes = max(SCRUB_SLICE_BYTES_MIN, self._slice_bytes // 2)
        elif seconds < SCRUB_SLICE_SECONDS_MAX / 2:
            self._slice_bytes = min(SCRUB_SLICE_BYTES_MAX, self._slice_bytes * 2)

    def _end(self, partition_id: PartitionId, now: float) -> None:
        del self._positions[partition_id]
        if self._positions or self._pass_started_at is None:
            return
        if not self._is_incomplete:
            self.counters.passes += 1
            self.counters.last_pass_seconds = now - self._pass_started_at
        self._pass_started_at = None
        self._next_pass_at = now + self._interval_seconds

    def _begin(self, now: float, targets: Mapping[PartitionId, ScrubTarget]) -> None:
        """Start a pass if it is time for one, or read the partitions that were damaged lately."""
        damaged = {number for number, target in targets.items() if target.has_damage}
        self._known_damage &= damaged
        if now >= self._next_pass_at and targets:
            self._pass_started_at = now
            self._is_incomplete = False
            self._wait_for([*sorted(damaged), *sorted(targets.keys() - damaged)])
        else:
            self._wait_for(sorted(damaged - self._known_damage))

    def _wait_for(self, partition_ids: Iterable[PartitionId]) -> None:
        self._waiting.extend(partition_ids)
        self._positions = {number: _Position(TransactionId(0)) for number in self._waiting}
