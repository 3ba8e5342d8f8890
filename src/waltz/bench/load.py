"""The content of a load: payloads, keys, locks, and when each transaction is due."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

import waltz
from waltz.bench.workload import Workload

PAYLOADS: Final = 64
"""Different ones; after that they repeat."""

DRAWN: Final = 65_536
"""Keys drawn at a time."""

LOCK_NAME: Final = "key"


def payloads(workload: Workload, random: np.random.Generator) -> list[bytes]:
    """Return data to write; the first half of each is random, the rest is not."""
    half = (workload.data_bytes + 1) // 2
    rest = bytes(workload.data_bytes - half)
    return [random.bytes(half) + rest for _ in range(PAYLOADS)]


class Keys:
    """Draws the keys of locks, all different within one transaction as far as possible."""

    def __init__(self, workload: Workload, client: int, random: np.random.Generator) -> None:
        """`client` keeps the keys of one client apart from those of another, if no two transactions
        are to meet."""
        self._per_transaction = workload.write_locks + workload.read_locks
        self._count = workload.keys
        self._next = client << 48
        self._random = random
        self._shares: NDArray[np.float64] | None = None
        if workload.keys is not None and workload.skew:
            shares = 1.0 / np.arange(1, workload.keys + 1, dtype=np.float64) ** workload.skew
            self._shares = np.cumsum(shares / shares.sum())
        self._drawn: list[int] = []

    def draw(self, transactions: int) -> NDArray[np.int64]:
        """Return the keys of `transactions` transactions, a row each."""
        count = transactions * self._per_transaction
        if self._count is None:
            first, self._next = self._next, self._next + count
            drawn = np.arange(first, first + count, dtype=np.int64)
        elif self._shares is None:
            drawn = self._random.integers(0, self._count, count, dtype=np.int64)
        else:
            drawn = np.searchsorted(self._shares, self._random.random(count)).astype(np.int64)
            drawn = np.minimum(drawn, self._count - 1)
        return drawn.reshape(transactions, self._per_transaction)

    def locks(self) -> list[waltz.PartitionLocalLock]:
        """Return the locks of the next transaction, those to write first."""
        if not self._per_transaction:
            return []
        if not self._drawn:
            drawn = self.draw(max(1, DRAWN // self._per_transaction))
            self._drawn = drawn.ravel()[::-1].tolist()
        drawn_now = self._drawn[: -self._per_transaction - 1 : -1]
        del self._drawn[-self._per_transaction :]
        return [waltz.PartitionLocalLock(LOCK_NAME, key) for key in dict.fromkeys(drawn_now)]


class Pace:
    """Yields when each call is due: at its intended time, however late the previous one was.

    So a pause cannot hide itself: a call that had to wait is late, and counts as late. Without a
    rate a call is due when the window has room, which is when it is asked for.
    """

    def __init__(self, start: int, end: int, rate: float | None) -> None:
        """`start`, `end` in nanoseconds of `time.monotonic_ns`; `rate` in calls a second."""
        self._start = start
        self._end = end
        self._interval = None if rate is None else 1e9 / rate
        self._number = 0

    def next(self) -> int | None:
        """Wait until the next call is due and return when it was; None once the time is over."""
        if self._interval is None:
            now = time.monotonic_ns()
            return now if now < self._end else None
        due = self._start + int(self._number * self._interval)
        if due >= self._end:
            return None
        self._number += 1
        ahead = due - time.monotonic_ns()
        if ahead > 0:
            time.sleep(ahead / 1e9)
        return due
