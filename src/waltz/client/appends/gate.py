"""The way in: a submit takes room in its partition, or waits until the partition has some.

Owns the room of one partition and the order of the submits that wait for it. Tasks and threads
enter alike; only how they sleep between two steps of an `Entry` is their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from waltz.errors import (
    OperationTimeoutError,
    PartitionNotReadyError,
    PermissionDeniedError,
)

EARLY_SECONDS: Final = 1e-6
"""A timer may be this early: clocks and timers round."""


class Gate:
    """Any thread may enter, handlers of signals included; the rest is for the loop.

    `why` returns what an error about a partition without a server says in addition.
    """

    def __init__(self, capacity: int) -> None:
        self.why: Callable[[], str] = str
        self.is_mounted = False
        self.error: Exception | None = None
        self.denied: PermissionDeniedError | None = None
        """Why the partition is not mounted for this client; None: it is, or may be soon."""
        self.waiting: deque[Entry] = deque()
        self._room: list[None] = [None] * capacity

    def enter(self, *, needs_room: bool) -> bool:
        """Take room, if a submit `needs_room`, and the partition is mounted and has some; return
        whether the submit may go on."""
        return self.is_mounted and self.error is None and (not needs_room or self.take_room())

    def take_room(self) -> bool:
        try:
            self._room.pop()
        except IndexError:
            return False
        return True

    def release(self, count: int) -> None:
        """Take back the room of `count` submissions."""
        for _ in range(count):
            self._room.append(None)
            self.wake_next()

    def set_mounted(self, mounted: bool) -> None:
        self.is_mounted = mounted
        if mounted:
            self.denied = None
        self._wake_all()

    def deny(self, error: PermissionDeniedError) -> None:
        """Raise `error` for each submit that waits or comes, until the partition is mounted."""
        self.denied = error
        self._wake_all()

    def fail(self, error: Exception) -> None:
        """Raise `error` for each submit that waits or comes from now on."""
        self.error = self.error or error
        self._wake_all()

    def wake_next(self) -> None:
        try:
            entry = self.waiting.popleft()
        except IndexError:
            return
        entry.is_waiting = False
        entry.wake()

    def _wake_all(self) -> None:
        for _ in range(len(self.waiting)):
            self.wake_next()


class Entry:
    """One submit that waits at a gate: `step` it until it returns None or raises, then `leave`.

    `wake` is called, on the loop, when the next step may bring more than the one before.
    """

    def __init__(
        self,
        gate: Gate,
        now: float,
        *,
        needs_room: bool,
        timeout_seconds: float | None,
        mount_seconds_max: float,
        registration_seconds_max: float,
        nudge: Callable[[], None],
    ) -> None:
        """`nudge` asks for verdicts, when there has been no room for `registration_seconds_max`."""
        self.wake: Callable[[], None]
        self.is_waiting = False
        """Whether the gate wakes this entry; any thread may ask."""
        self.waited_seconds = 0.0
        """The time from the submit to the last step."""
        self._gate = gate
        self._needs_room = needs_room
        self._came = now
        self._deadline = float("inf") if timeout_seconds is None else now + timeout_seconds
        self._mount_seconds_max = mount_seconds_max
        self._mount_deadline = now + mount_seconds_max
        self._was_mounted = False
        self._registration_seconds_max = registration_seconds_max
        self._nudge = nudge
        self._nudge_at: float | None = None

    def step(self, now: float) -> float | None:
        """Take room, if that is possible now; otherwise return how many seconds to wait at most.

        None: the submit has the room that it needs. Raises OperationTimeoutError: the context's
        time is up; PartitionNotReadyError: no server in time; and what the gate failed with.
        """
        gate = self._gate
        self.waited_seconds = now - self._came
        if not self.is_waiting:  # first: what changes from now on wakes this entry
            self.is_waiting = True
            gate.waiting.append(self)
        if gate.error is not None:
            raise gate.error
        if gate.denied is not None:
            raise gate.denied
        self._was_mounted = self._was_mounted or gate.is_mounted
        if self._was_mounted and (not self._needs_room or gate.take_room()):
            return None
        due = now + EARLY_SECONDS
        if due >= self._deadline:
            raise OperationTimeoutError("the context was not appended before its time limit")
        if not self._was_mounted:
            if due >= self._mount_deadline:
                raise PartitionNotReadyError(
                    "the context's partition had no usable server for"
                    f" {self._mount_seconds_max:g} s{gate.why()}"
                )
            return min(self._mount_deadline, self._deadline) - now
        if self._nudge_at is None or due >= self._nudge_at:
            if self._nudge_at is not None:
                self._nudge()
            self._nudge_at = now + self._registration_seconds_max
        return min(self._nudge_at, self._deadline) - now

    def leave(self) -> None:
        """Wait no longer; to be called once, however the waiting ended."""
        try:
            self._gate.waiting.remove(self)
        except ValueError:  # woken for room that it has not taken: that is the next one's
            self._gate.wake_next()
