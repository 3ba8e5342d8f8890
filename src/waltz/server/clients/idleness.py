"""The times at which a server takes a client for gone, or has to send it a heartbeat.

Owns the times of one connection. Must not know what is said on it. A server that is not reading,
for the client has too much under way, hears no heartbeats: it does not count that as silence, and
sends some of its own, or the client would take it for dead. Source: IEP-83.
"""

from __future__ import annotations

from enum import Enum

from waltz.limits import HEARTBEATS_PER_IDLE_TIME


class IdlenessFinding(Enum):
    NOTHING = "all is well"
    BEAT = "say that this side lives"
    SILENT = "the client has said nothing for too long"


class Idleness:
    """The silence of one connection; it is not read before `begin_reading`."""

    def __init__(self, idle_seconds: float, now: float) -> None:
        self._idle_seconds = idle_seconds
        self._beat_seconds = idle_seconds / HEARTBEATS_PER_IDLE_TIME
        self._since = now
        self._is_reading = False

    @property
    def deadline(self) -> float:
        """Return the time of the next `step`."""
        return self._since + (self._idle_seconds if self._is_reading else self._beat_seconds)

    def begin_reading(self, now: float) -> None:
        self._is_reading = True
        self._since = now

    def hear(self, now: float) -> None:
        """Something has come, and is worked off before more is read."""
        self._is_reading = False
        self._since = now

    def step(self, now: float) -> IdlenessFinding:
        if now < self.deadline:
            return IdlenessFinding.NOTHING
        if self._is_reading:
            return IdlenessFinding.SILENT
        self._since = now
        return IdlenessFinding.BEAT
