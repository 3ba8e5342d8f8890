"""Whether appends that have arrived go to the store now, or wait for others to share a batch with.

A batch has a price in five processes, whatever the batch holds. Clients that were told of one
commit come back soon after each other, and a server that hands on each message by itself pays that
price for each of them. Small appends therefore wait

- while the store has more appends under way than wait here: the wait ends with a decision;
- while a connection is expected that was told of its last append and has come back in time lately:
  the wait ends after the duration of `PATIENCE_BATCHES` batches at the latest, and no append waits
  for a connection that was late until the connection has been in time `RETURNS_MIN` times in a row.

The appends of a single client never wait for others. Knows neither locks nor records.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from waltz.figures import Durations

PATIENCE_BATCHES: Final = 2
"""Appends wait for connections that are expected for at most the duration of this many batches."""

PATIENCE_SECONDS_MAX: Final = 0.02
"""The same in seconds, however long a batch takes."""

RETURNS_MIN: Final = 3
"""Times in a row that a connection has to come back in time before others wait for it."""

GATHERED_BYTES_MAX: Final = 128 * 1024
"""Appends of this size go on at once: their own price is above that of a batch."""

_BATCH_WEIGHT: Final = 1 / 8
"""The share of the last batch in the mean duration."""


class _Round:
    """The connections that were told of all their appends between two arrivals."""

    __slots__ = ("followed_at",)

    def __init__(self) -> None:
        self.followed_at: float | None = None
        """The next arrival, of whatever connection; None: there was none yet."""


class Gathering:
    """The appends of one partition that have arrived and have not gone to the store."""

    def __init__(self) -> None:
        self.count = 0
        """Appends that wait here."""
        self.deadline: float | None = None
        """The time until which they wait for connections that are expected; None: they do not."""
        self._bytes = 0
        self._since = 0.0
        """The arrival of the oldest append that waits here."""
        self._stored = 0
        """Appends that the store has and has not decided."""
        self._batches: deque[tuple[int, float]] = deque()
        """Appends that the store has, and when it was given them."""
        self._batch_seconds = 0.0
        """The mean time from there to the decision."""
        self._undecided: dict[int, int] = {}
        """Per connection the appends that have no outcome."""
        self._told: dict[int, _Round] = {}
        """The connections that were told of all their appends and have not come back."""
        self._round: _Round | None = None
        """The round of those told since the last arrival; None: nobody was."""
        self._expected_at = 0.0
        """The time at which a connection that is expected was told last."""
        self._returns: dict[int, int] = {}
        """Per connection how many times in a row it has come back in time; at most
        `RETURNS_MIN`."""
        self._expected: dict[int, None] = {}
        """The connections that others wait for."""

    def arrive(self, connection_id: int, count: int, byte_count: int, now: float) -> None:
        """Take note of `count` appends of one connection."""
        told = self._told.pop(connection_id, None)
        if told is not None:
            self._expected.pop(connection_id, None)
            returns = self._returns.get(connection_id, 0) + 1 if self._is_in_time(told, now) else 0
            self._returns[connection_id] = min(returns, RETURNS_MIN)
        if self._round is not None:
            self._round.followed_at = now
            self._round = None
        if not self.count:
            self._since = now
        self.count += count
        self._bytes += byte_count
        self._undecided[connection_id] = self._undecided.get(connection_id, 0) + count

    def _is_in_time(self, told: _Round, now: float) -> bool:
        """Whether a connection comes back before all others, or soon after the first of them, or
        while appends wait that could share its batch."""
        first = told.followed_at
        if first is None:
            return True
        return now <= (max(first, self._since) if self.count else first) + self._patience

    def waits(self, now: float) -> bool:
        """Whether what has arrived waits for more; if for a time, then until `deadline`."""
        self.deadline = None
        if not self.count or self._bytes >= GATHERED_BYTES_MAX:
            return False
        if self.count < self._stored:
            return True
        if self._expected:
            until = max(self._since, self._expected_at) + self._patience
            if now < until:
                self.deadline = until
                return True
            for connection_id in self._expected:
                self._returns[connection_id] = 0
            self._expected.clear()
        return False

    def release(self) -> None:
        """All that has arrived leaves for the lock table."""
        self.count = self._bytes = 0
        self.deadline = None

    def store(self, count: int, now: float) -> None:
        """The store was given `count` appends."""
        self._stored += count
        self._batches.append((count, now))

    def decide(self, count: int, now: float, seconds: Durations | None = None) -> None:
        """The `count` oldest appends of the store are decided; `seconds` is to have the durations
        of the batches that are decided with them."""
        self._stored -= count
        while count:
            batch_count, at = self._batches.popleft()
            if batch_count > count:
                self._batches.appendleft((batch_count - count, at))
                return
            count -= batch_count
            if seconds is not None:
                seconds.add(now - at)
            taken = min(now - at, PATIENCE_SECONDS_MAX)
            self._batch_seconds += (taken - self._batch_seconds) * _BATCH_WEIGHT

    def tell(self, connection_id: int, count: int, now: float) -> None:
        """The connection is told the outcome of `count` of its appends."""
        undecided = self._undecided.get(connection_id)
        if undecided is None:
            return  # it is gone
        if undecided > count:
            self._undecided[connection_id] = undecided - count
            return
        del self._undecided[connection_id]
        if self._round is None:
            self._round = _Round()
        self._told[connection_id] = self._round
        if self._returns.get(connection_id) == RETURNS_MIN:
            self._expected[connection_id] = None
            self._expected_at = now

    def forget(self, connection_id: int) -> None:
        """The connection is gone: it is not expected, and is told nothing."""
        for known in (self._undecided, self._told, self._returns, self._expected):
            known.pop(connection_id, None)

    @property
    def _patience(self) -> float:
        return min(PATIENCE_BATCHES * self._batch_seconds, PATIENCE_SECONDS_MAX)

    def check_invariants(self) -> None:
        assert self._stored == sum(count for count, _ in self._batches)
        assert all(count > 0 for count, _ in self._batches)
        assert not self._undecided.keys() & self._told.keys()
        assert self._expected.keys() <= self._told.keys()
        assert all(0 <= returns <= RETURNS_MIN for returns in self._returns.values())
        assert self.deadline is None or (self.count and self._expected)
