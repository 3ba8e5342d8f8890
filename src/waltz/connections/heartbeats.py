"""Decides when a client sends a heartbeat, and when it takes its server for dead.

Owns the times of one connection. Must not know what is said on it. A server is dead if nothing
arrives within the timeout after a heartbeat while this side is reading; while it is not reading,
nothing can arrive. Source: IEP-83.
"""

from __future__ import annotations

from enum import Enum


class Duty(Enum):
    NOTHING = "not yet"
    BEAT = "send a heartbeat that wants an answer"
    GIVE_UP = "the server is dead"


class Heartbeats:
    """The heartbeats of one connection, from `now` on."""

    def __init__(self, interval_seconds: float, timeout_seconds: float, now: float) -> None:
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._beat_at = now + interval_seconds
        self._is_reading = False
        self.is_unanswered = False
        """Whether nothing has arrived since a heartbeat was sent."""
        self._waits_since: float | None = None

    @property
    def deadline(self) -> float:
        """Return the time of the next `step`."""
        if self._waits_since is None:
            return self._beat_at
        return min(self._beat_at, self._waits_since + self._timeout_seconds)

    def begin_reading(self, now: float | None) -> None:
        """Take note that this side reads; `now` is needed only if a heartbeat `is_unanswered`."""
        self._is_reading = True
        self._waits_since = now if self.is_unanswered else None

    def hear(self) -> None:
        """Take note that bytes have arrived; they are processed before more is read."""
        self._is_reading = self.is_unanswered = False
        self._waits_since = None

    def step(self, now: float) -> Duty:
        """Return what is due; a heartbeat is due once."""
        if self._waits_since is not None and now >= self._waits_since + self._timeout_seconds:
            return Duty.GIVE_UP
        if now < self._beat_at:
            return Duty.NOTHING
        self._beat_at = now + self._interval_seconds
        self.is_unanswered = True
        if self._is_reading and self._waits_since is None:
            self._waits_since = now
        return Duty.BEAT
