"""Bounds the log lines that a peer can cause at will.

Owns the counts, one per event. Of each event at most `PEER_LINES_MAX` lines are written in a
period, which begins with the first line; at its end one more line says how many were left out. So a
peer that floods a process with bad connections does not flood its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

PEER_LINES_MAX: Final = 20
"""Log lines written per event and period, about peers that are refused, fall silent or break the
protocol."""

PEER_LINES_SECONDS: Final = 60.0
"""Length of a period."""


class Timers(Protocol):
    """The clock and the timers of an event loop."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[str], object], event: str) -> object: ...


class PeerLog:
    """Writes to `log`. The first word of a line names its event; there are few events."""

    def __init__(self, log: logging.Logger, timers: Callable[[], Timers]) -> None:
        """`timers` returns the running loop."""
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
