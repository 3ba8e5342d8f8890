"""Log lines that a peer can cause as often as it likes, and how many of them are written.

Owns the counts, one per event. Of each event so many lines are written in a period, which begins
with the first of them; when it is over a line says how many were left out. Who floods a process
with bad connections does not flood its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

PEER_LINES_MAX: Final = 20
PEER_LINES_SECONDS: Final = 60.0
"""Of log lines about peers that are refused, fall silent or break the protocol so many are written
per event and period; then one says how many were left out."""


class Timers(Protocol):
    """What an event loop has."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[str], object], event: str) -> object: ...


class PeerLog:
    """Writes to `log`. The first word of a line names its event: those are few."""

    def __init__(self, log: logging.Logger, timers: Callable[[], Timers]) -> None:
        """`timers` returns the loop that runs."""
        self._log = log
        self._timers = timers
        self._began: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def info(self, text: str, *arguments: object) -> None:
        self._write(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        self._write(logging.WARNING, text, arguments)

    def _write(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        event = text.partition(" ")[0]
        timers = self._timers()
        now = timers.time()
        count = self._counts.get(event, 0)
        if count <= PEER_LINES_MAX and now - self._began.get(event, now) >= PEER_LINES_SECONDS:
            count = 0
        if not count:
            self._began[event] = now
        self._counts[event] = count + 1
        if count < PEER_LINES_MAX:
            self._log.log(level, text, *arguments)
        elif count == PEER_LINES_MAX:
            left = self._began[event] + PEER_LINES_SECONDS - now
            timers.call_later(left, self._end_period, event)

    def _end_period(self, event: str) -> None:
        count = self._counts.pop(event) - PEER_LINES_MAX
        self._log.warning(
            "lines_left_out event=%s count=%d seconds=%g", event, count, PEER_LINES_SECONDS
        )
