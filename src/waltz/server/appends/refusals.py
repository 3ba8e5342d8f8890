"""Remembers the appends of one partition that were refused for their locks.

Owns the newest refusals, in memory only, and the questions about them: by winner, by refused append
and by lock. Knows neither the slots of locks nor messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from waltz.types import NOTHING, RequestId, TransactionId

if TYPE_CHECKING:
    from numpy.typing import NDArray

REFUSALS_KEPT_MAX: Final = 10_000
"""Refusals that a partition remembers; each takes 37 bytes, from the first one on."""

_COLUMNS: Final = np.dtype(
    [
        ("request_id", np.int32, (4,)),
        ("lock_hash", np.int32),
        ("winner", np.int64),
        ("is_exact", np.bool_),
        ("refused_at", np.float64),
    ]
)


class RefusingLock(NamedTuple):
    """A lock for which an append was refused.

    `winner` is the transaction that wrote the lock if `is_exact`; otherwise an estimate: the lock
    was written by `winner` or by an earlier transaction, or by none at all.
    """

    lock_hash: int
    winner: TransactionId
    is_exact: bool


class Refusal(NamedTuple):
    """An append that was refused at `refused_at`, and the lock for which."""

    request_id: RequestId
    lock: RefusingLock
    refused_at: float


@dataclass(frozen=True, slots=True)
class LockRefusals:
    """The refusals for one lock: their number, the number of these whose winner is an estimate, and
    the newest winner and time."""

    lock_hash: int
    count: int
    estimated_count: int
    winner: TransactionId
    refused_at: float


class Refusals:
    """The newest refusals of one partition; `count` is the number of all since the partition was
    opened here."""

    def __init__(self, kept_max: int = REFUSALS_KEPT_MAX) -> None:
        self.count = 0
        self._kept_max = kept_max
        self._ring: NDArray[Any] = np.zeros(0, _COLUMNS)
        self._told_at = (0, 0)
        self._told: list[LockRefusals] = []
        """The answer of `by_lock` while `count` and its bound were these."""

    def add(
        self, request_ids: NDArray[np.int32], locks: Sequence[RefusingLock], now: float
    ) -> None:
        """Remember the refusal of appends with these request IDs, a row each, for `locks`."""
        if not self._ring.size:
            self._ring = np.zeros(self._kept_max, _COLUMNS)
        for request_id, lock in zip(request_ids, locks, strict=True):
            if lock.winner != NOTHING:  # otherwise it was refused for its mark alone
                self._ring[self.count % self._kept_max] = (request_id, *lock, now)
                self.count += 1

    @property
    def kept(self) -> int:
        """The number of refusals that are remembered."""
        return min(self.count, self._kept_max)

    @property
    def oldest_at(self) -> float | None:
        """The time of the oldest refusal that is remembered; None if there is none."""
        if not self.count:
            return None
        oldest = self.count % self._kept_max if self.count > self._kept_max else 0
        return float(self._ring["refused_at"][oldest])

    def _newest_places(self) -> NDArray[np.int64]:
        """The places of what is remembered, the newest first."""
        places: NDArray[np.int64] = (self.count - 1 - np.arange(self.kept)) % self._kept_max
        return places

    def latest(
        self,
        count_max: int,
        *,
        winner: TransactionId | None = None,
        loser: RequestId | None = None,
        lock_hash: int | None = None,
    ) -> list[Refusal]:
        """Return at most `count_max` refusals, the newest first: all, or those with this winner,
        this loser and this lock."""
        rows = self._ring[self._newest_places()]
        if winner is not None:
            rows = rows[rows["winner"] == winner]
        if loser is not None:
            rows = rows[(rows["request_id"] == np.array(loser, np.int32)).all(axis=1)]
        if lock_hash is not None:
            rows = rows[rows["lock_hash"] == lock_hash]
        return [
            Refusal(
                RequestId._make(request_id.tolist()),
                RefusingLock(lock, TransactionId(won), is_exact),
                refused_at,
            )
            for request_id, lock, won, is_exact, refused_at in rows[:count_max].tolist()
        ]

    def by_lock(self, count_max: int) -> list[LockRefusals]:
        """Return the locks with the most refusals that are remembered, at most `count_max`, the
        hottest first; of locks with as many refusals the one that was refused last comes first. The
        answer is kept until the next refusal."""
        if (self.count, count_max) != self._told_at:
            self._told_at = self.count, count_max
            self._told = self._hottest(count_max)
        return self._told

    def _hottest(self, count_max: int) -> list[LockRefusals]:
        places = self._newest_places()
        locks, newest, of_lock, counts = np.unique(
            self._ring["lock_hash"][places],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        is_estimated = ~self._ring["is_exact"][places]
        estimated = np.bincount(of_lock[is_estimated], minlength=len(locks))
        order = np.lexsort((newest, -counts))[:count_max]
        rows = self._ring[places[newest[order]]]
        return [
            LockRefusals(lock, count, estimated_count, TransactionId(winner), refused_at)
            for lock, count, estimated_count, winner, refused_at in zip(
                locks[order].tolist(),
                counts[order].tolist(),
                estimated[order].tolist(),
                rows["winner"].tolist(),
                rows["refused_at"].tolist(),
                strict=True,
            )
        ]
