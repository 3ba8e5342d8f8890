"""Writes down which faults have struck.

Owns the counts of a run's faults, and their lines in its trace.
"""

from __future__ import annotations

from collections import Counter

from waltz.sim.faults.kinds import Fault
from waltz.sim.sites import Sites


class StrikeRecord:
    """Counts the faults that have struck, and writes them into the run's trace."""

    def __init__(self, sites: Sites) -> None:
        self.counts: Counter[str] = Counter()
        """Injections that have struck, by kind."""
        self._sites = sites

    def struck(self, fault: Fault, *facts: object) -> None:
        kind = type(fault).__name__
        self.counts[kind] += 1
        self.note(kind, *facts)

    def note(self, what: str, *facts: object) -> None:
        self._sites.trace.note(self._sites.loop.time(), what, *facts)
