"""Which replica answers a read: the one with the least expected work before it.

Owns one weight and one expected latency per replica of a session. Choosing a replica adds its
expected latency to its weight, so that reads spread in inverse proportion to latency: equal ones
share evenly, a slow one is mostly avoided and still probed. Source: the original's latency-weighted
router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.types import ReplicaId

FIRST_LATENCY_SECONDS: Final = 0.010
LATENCY_SECONDS_MIN: Final = 0.001
LATENCY_SECONDS_MAX: Final = 3.0


class ReadRouter:
    """Ties go to the replica named first."""

    def __init__(self) -> None:
        self._expected: dict[ReplicaId, float] = {}
        self._weights: dict[ReplicaId, float] = {}

    def choose(self, able: Sequence[ReplicaId]) -> ReplicaId | None:
        """Return one of the replicas `able` to answer and charge it; None if there are none.

        Those left out although they were next pay the maximum: they lag or have gone, and must not
        be flooded the moment they are able again. A new one starts level with the least loaded.
        """
        if not able:
            return None
        for replica_id in able:
            if replica_id not in self._weights:
                self._weights[replica_id] = min(self._weights.values(), default=0.0)
                self._expected[replica_id] = FIRST_LATENCY_SECONDS
        chosen = min(able, key=self._weights.__getitem__)
        bound = self._weights[chosen]
        for replica_id, weight in self._weights.items():
            if weight < bound and replica_id not in able:
                self._weights[replica_id] = weight + LATENCY_SECONDS_MAX
        self._weights[chosen] += self._expected[chosen]
        return chosen

    def answered(self, replica_id: ReplicaId, seconds: float) -> None:
        """Take one measured answer into the expectation."""
        measured = min(max(seconds, LATENCY_SECONDS_MIN), LATENCY_SECONDS_MAX)
        self._expected[replica_id] = (self._expected[replica_id] + measured) / 2

    def failed(self, replica_id: ReplicaId) -> None:
        self.answered(replica_id, LATENCY_SECONDS_MAX)
