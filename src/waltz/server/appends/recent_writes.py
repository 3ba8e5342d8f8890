"""The locks that the newest transactions have written, to tell who has won against a refusal.

Owns them, as they were claimed: a commit adds one entry, and copies nothing. The lock table itself
knows a lock's winner as an estimate only; one that is among these is exact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from waltz.server.appends.claims import Claimed

COMMITS_KEPT_MAX: Final = 4_096
"""Commits whose locks a partition remembers; an older winner is told as an estimate."""

LOCKS_KEPT_MAX: Final = 65_536
"""Locks of these commits; beyond that the oldest commits are forgotten, but for the last one."""


class _Written(NamedTuple):
    """Locks that were committed together. `shift` is the difference between a transaction's ID and
    its ticket; the tickets ascend."""

    last: int
    shift: int
    tickets: Sequence[int] | NDArray[np.int64]
    locks: Sequence[int] | NDArray[np.int64]


class RecentWrites:
    """See the module."""

    def __init__(
        self, commits_max: int = COMMITS_KEPT_MAX, locks_max: int = LOCKS_KEPT_MAX
    ) -> None:
        self._commits_max = commits_max
        self._locks_max = locks_max
        self._written: deque[_Written] = deque()
        self._lock_count = 0

    def add(self, claimed: Claimed, shift: int) -> None:
        """Take what was committed: `shift` more than a ticket is its transaction's ID."""
        tickets, written = claimed.tickets, self._written
        written.append(_Written(int(tickets[-1]) + shift, shift, tickets, claimed.locks))
        self._lock_count += len(tickets)
        while len(written) > 1 and (
            self._lock_count > self._locks_max or len(written) > self._commits_max
        ):
            self._lock_count -= len(written.popleft().tickets)

    def has(self, transaction_id: int, lock: int) -> bool:
        """Return whether the transaction is known to have written the lock."""
        place = bisect_left(self._written, transaction_id, key=_last)
        if place == len(self._written):
            return False
        found = self._written[place]
        ticket = transaction_id - found.shift
        start = bisect_left(found.tickets, ticket)
        end = bisect_right(found.tickets, ticket, lo=start)
        return lock in found.locks[start:end]


def _last(written: _Written) -> int:
    return written.last
