"""Choose the replica that answers a read: the one with the least expected work before it.

Owns one weight and one expected latency per replica of a partition, and who lacked which record a
moment ago. Choosing a replica adds its expected latency to its weight, so that reads spread in
inverse proportion to latency: equal ones share evenly, a slow one is mostly avoided and still
probed. Source: the original's latency-weighted router. `routed_read.py` asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.types import ReplicaId, TransactionId

READ_HEDGE_FACTOR: Final = 4.0
"""After this many times a replica's smoothed latency without an answer, another replica is asked as
well."""

READ_HEDGE_SECONDS_MIN: Final = 0.02
"""The least time before another replica is asked as well."""

READ_HEDGE_SECONDS_MAX: Final = 1.0
"""The most time before another replica is asked as well."""

READ_AVOID_SECONDS: Final = 2.0
"""A replica that could not read a record is not asked for that record again for this time."""

READ_LACKS_MAX: Final = 1_000
"""At most this many records that a replica could not read are remembered per partition."""


FIRST_LATENCY_SECONDS: Final = 0.010
LATENCY_SECONDS_MIN: Final = 0.001
LATENCY_SECONDS_MAX: Final = 3.0


class ReadRouter:
    """Ties go to the replica named first."""

    def __init__(self) -> None:
        self._expected: dict[ReplicaId, float] = {}
        self._weights: dict[ReplicaId, float] = {}
        self._lacks: dict[tuple[ReplicaId, TransactionId], float] = {}
        """Until when a replica is not asked for what starts at a record, oldest first."""

    def choose(
        self, able: Sequence[ReplicaId], first: TransactionId, now: float
    ) -> ReplicaId | None:
        """Return one of the replicas `able` to answer what starts at `first` and charge it; None if
        there are none but such as have just failed to.

        Those left out although they were next pay the maximum: they lag or have gone, and must not
        be flooded the moment they are able again. A new one starts level with the least loaded.
        """
        able = [each for each in able if now >= self._lacks.get((each, first), now)]
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

    def patience(self, replica_id: ReplicaId) -> float:
        """Return for how many seconds to wait for a chosen one before another is asked as well."""
        usual = READ_HEDGE_FACTOR * self._expected[replica_id]
        return min(max(usual, READ_HEDGE_SECONDS_MIN), READ_HEDGE_SECONDS_MAX)

    def answered(self, replica_id: ReplicaId, seconds: float) -> None:
        """Take one measured answer, or a wait without one, into the expectation."""
        measured = min(max(seconds, LATENCY_SECONDS_MIN), LATENCY_SECONDS_MAX)
        self._expected[replica_id] = (self._expected[replica_id] + measured) / 2

    def failed(self, replica_id: ReplicaId, first: TransactionId, now: float) -> None:
        """It did not give what starts at `first`. That is forgotten after a while, for damage is
        repaired; and meanwhile it may answer everything else."""
        self._lacks.pop((replica_id, first), None)
        self._lacks[replica_id, first] = now + READ_AVOID_SECONDS
        for key, until in list(self._lacks.items()):
            if now < until and len(self._lacks) <= READ_LACKS_MAX:
                break
            del self._lacks[key]

    def check_invariants(self) -> None:
        assert self._expected.keys() == self._weights.keys()
        assert len(self._lacks) <= READ_LACKS_MAX
        for seconds in self._expected.values():
            assert LATENCY_SECONDS_MIN <= seconds <= LATENCY_SECONDS_MAX
