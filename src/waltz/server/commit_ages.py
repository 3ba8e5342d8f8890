"""The times at which the transactions of a partition were committed, for lag in seconds.

Owns the times of one partition on one server, by the server's own clock that never goes back: no
wall clock is asked, so none can be wrong. Must not know who lags. One entry stands for all
transactions from its first one to the next entry's, with the interval in which they were committed;
recent ones are told apart within RESOLUTION_SECONDS, old ones are joined. What was committed before
this server served the partition has no beginning. Always: the interval of a transaction contains
the time of its commit as this server saw it, and the entries are bounded.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import inf
from typing import Final, NamedTuple

from waltz.types import NOTHING, TransactionId

RESOLUTION_SECONDS: Final = 0.25
"""Commits closer together than this share an entry."""

COMMIT_AGES_MAX: Final = 4_096
"""Entries per partition, of 24 bytes; beyond that old ones are joined."""

JOINED_SECONDS: Final = 1.0
"""The widest interval of joined entries that are younger than FINE_SECONDS."""

FINE_SECONDS: Final = 1_200.0
"""The age up to which entries are joined within JOINED_SECONDS only."""

COARSE_SHARE: Final = 0.01
"""The widest interval of older joined entries, as a share of their age."""

KEPT_SHARE: Final = 0.75
"""The most of COMMIT_AGES_MAX that is left by joining; if more is, wider intervals are joined."""


class Lag(NamedTuple):
    """At least and at most this many seconds; `most` None where nobody knows."""

    least: float
    most: float | None


NO_LAG: Final = Lag(0.0, 0.0)


class CommitAges:
    """See the module."""

    def __init__(self, entries_max: int = COMMIT_AGES_MAX) -> None:
        self.next_at = -inf
        """The time from which on a commit is noted: compared once per batch."""
        self._entries_max = entries_max
        self._firsts = array("q")
        self._since = array("d")
        self._until = array("d")

    def __len__(self) -> int:
        return len(self._firsts)

    def note(self, first: TransactionId, now: float) -> None:
        """Note that transactions from `first` on are committed now; only from `next_at` on."""
        self._add(first, now, now + RESOLUTION_SECONDS)
        self.next_at = now + RESOLUTION_SECONDS

    def find(self, first: TransactionId, now: float) -> None:
        """Note that transactions from `first` on were found committed: at an unknown time after
        those before them."""
        self._add(first, self._since[-1] if self._since else -inf, now)
        self.next_at = -inf

    def lag_of(
        self, mark: TransactionId, high_water_mark: TransactionId | None, now: float
    ) -> Lag | None:
        """Return how long ago the first transaction after `mark` was committed: nothing if there is
        none. None: nobody can say, for the mark is none of this log as the server knows it."""
        if high_water_mark is None or not NOTHING <= mark <= high_water_mark:
            return None
        if mark == high_water_mark:
            return NO_LAG
        place = bisect_right(self._firsts, mark + 1) - 1
        if place < 0:
            return Lag(0.0, None)
        since = self._since[place]
        return Lag(max(0.0, now - self._until[place]), None if since == -inf else now - since)

    def check_invariants(self) -> None:
        count = len(self._firsts)
        assert count == len(self._since) == len(self._until) <= self._entries_max
        assert all(self._firsts[i] < self._firsts[i + 1] for i in range(count - 1))
        assert all(self._since[i] <= self._since[i + 1] for i in range(count - 1))
        assert all(self._since[i] <= self._until[i] for i in range(count))

    def _add(self, first: TransactionId, since: float, until: float) -> None:
        self._firsts.append(first)
        self._since.append(since)
        self._until.append(until)
        if len(self._firsts) > self._entries_max:
            factor = 1.0
            while len(self._firsts) > KEPT_SHARE * self._entries_max:
                self._join(until, factor)
                factor *= 2

    def _join(self, now: float, factor: float) -> None:
        """Join neighbours, the oldest first, whose common interval is not too wide for its age."""
        firsts, starts, ends = array("q"), array("d"), array("d")
        for first, since, until in zip(self._firsts, self._since, self._until, strict=True):
            if firsts:
                age = now - until
                share = COARSE_SHARE * age if age > FINE_SECONDS else 0.0
                if max(until, ends[-1]) - starts[-1] <= factor * max(JOINED_SECONDS, share):
                    ends[-1] = max(until, ends[-1])
                    continue
            firsts.append(first)
            starts.append(since)
            ends.append(until)
        self._firsts, self._since, self._until = firsts, starts, ends
