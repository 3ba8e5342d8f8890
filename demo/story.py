"""The story of a run: each phase is told in one line when it ends, and kept for the report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

PHASE_WIDTH: Final = 9


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the story; `at_seconds` counts from the start of the run."""

    at_seconds: float
    phase: str
    text: str


class Story:
    """The moments of one run, in order."""

    def __init__(
        self, show: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`show` gets each line at once; `clock` counts seconds."""
        self._show = show
        self._clock = clock
        self._started = clock()
        self.moments: list[Moment] = []

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._started

    def tell(self, phase: str, text: str) -> None:
        """Keep a moment of the run, and show it."""
        moment = Moment(self.seconds, phase, text)
        self.moments.append(moment)
        self._show(line_of(moment))

    def mention(self, phase: str, text: str) -> None:
        """Show how a phase gets on; the report does not need it."""
        self._show(line_of(Moment(self.seconds, phase, text)))


def line_of(moment: Moment) -> str:
    """Return `moment` as one line of text, its time in seconds first."""
    return f"{moment.at_seconds:6.1f} s  {moment.phase:<{PHASE_WIDTH}} {moment.text}"
