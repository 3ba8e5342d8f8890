"""The batches of one open store session: sent to its live replicas, committed by a quorum of them.

Owns the marks of the session and the batches in flight. The replicas are the session's, which hands
them to each call. Must not know recovery, repair or where batches come from. Transaction IDs are
dense; commits come in their order. A replica that lags a little is sent what is remembered; a
replica that lags more reads from another one first (`catch_up.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from waltz.limits import BATCHES_IN_FLIGHT_MAX
from waltz.record import RecordBatch
from waltz.store.catch_up import RecentBatches, choose_source
from waltz.store.events import Committed
from waltz.store.quorum import commit_mark
from waltz.store.replica_session import ReplicaPhase, ReplicaSession
from waltz.store.requests import AppendToReplica, SendRequest
from waltz.types import TransactionId

RECENT_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Committed batches that a store session remembers for replicas that lag a little; those in flight
come on top."""


class QuorumAppends:
    """The appends of a session from the moment in which a majority was admitted."""

    def __init__(self, mark: TransactionId, quorum: int) -> None:
        """mark    what recovery has resolved; every admitted replica holds all up to it.
        quorum  the number of replicas that have to acknowledge what is committed."""
        self.low_water_mark = mark
        """The mark the session started from."""
        self.high_water_mark = mark
        """The last commit."""
        self.next_transaction_id = TransactionId(mark + 1)
        """The first of the next batch."""
        self.in_flight: deque[RecordBatch] = deque()
        """Packed and not committed, in order."""
        self.is_fed = False
        """Whether every live replica was sent all there is."""
        self._quorum = quorum
        self._recent = RecentBatches(RECENT_BATCH_BYTES_MAX)

    @property
    def has_room(self) -> bool:
        return len(self.in_flight) < BATCHES_IN_FLIGHT_MAX

    def append(self, batch: RecordBatch, replicas: Collection[ReplicaSession]) -> list[SendRequest]:
        """Take `batch` into flight, and send it to every live replica that lacks nothing else."""
        assert batch.first_transaction_id == self.next_transaction_id
        self.in_flight.append(batch)
        self._recent.add(batch)
        self._recent.forget(self.high_water_mark)
        self.next_transaction_id = self._recent.end
        request = AppendToReplica(batch)
        effects: list[SendRequest] = []
        for replica in replicas:
            if replica.phase is ReplicaPhase.LIVE:
                if (sent := replica.append(request)) is not None:
                    effects.append(sent)
                else:
                    self.is_fed = False
        return effects if self.is_fed else effects + self.feed(replicas)

    def commit(self, replicas: Collection[ReplicaSession]) -> list[Committed]:
        """Return the batches in flight that a quorum holds by now."""
        mark = commit_mark(
            [
                replica.acknowledged_through
                for replica in replicas
                if replica.acknowledged_through is not None
            ],
            self._quorum,
        )
        committed: list[Committed] = []
        if mark is None or mark <= self.high_water_mark:
            return committed
        while self.in_flight and (last := self.in_flight[0].last_transaction_id) <= mark:
            committed.append(Committed(self.in_flight.popleft()))
            self.high_water_mark = last
        self._recent.forget(self.high_water_mark)
        return committed

    def feed(self, replicas: Collection[ReplicaSession]) -> list[SendRequest]:
        """Send every live replica what it lacks, as far as it has room."""
        self.is_fed = True
        effects: list[SendRequest] = []
        for replica in replicas:
            if replica.phase is not ReplicaPhase.LIVE:
                continue
            effects += replica.feed(self._recent)
            lacks = replica.lacks
            if lacks < self.next_transaction_id:
                self.is_fed = False
                if lacks <= self.high_water_mark and replica.has_room:
                    effects += self._catch_up(replica, replicas)
        return effects

    def _catch_up(
        self, replica: ReplicaSession, replicas: Collection[ReplicaSession]
    ) -> list[SendRequest]:
        """Have a replica that lags beyond what is remembered read from another one."""
        held = {
            source.replica_id: (source, source.acknowledged_through)
            for source in replicas
            if source.phase is ReplicaPhase.LIVE and source.acknowledged_through is not None
        }
        holdings = ((replica_id, through) for replica_id, (_, through) in held.items())
        source_id = choose_source(replica.lacks, holdings, replica.reads.failures)
        if source_id is None or source_id == replica.replica_id:
            return []
        source, through = held[source_id]
        through = min(self.high_water_mark, through)
        return [replica.reads.ask(replica.link, source.link, replica.lacks, through)]

    def check_invariants(self, replicas: Collection[ReplicaSession]) -> None:
        self._recent.check_invariants()
        assert len(self.in_flight) <= BATCHES_IN_FLIGHT_MAX
        assert self.low_water_mark <= self.high_water_mark
        assert self.next_transaction_id == self.high_water_mark + 1 + sum(
            len(batch) for batch in self.in_flight
        )
        if self.in_flight:
            assert self.in_flight[0].first_transaction_id == self.high_water_mark + 1
        # Nobody acknowledges a part of a batch in flight (decision 0032).
        ends = {batch.last_transaction_id for batch in self.in_flight}
        for mark in (each.acknowledged_through for each in replicas):
            assert mark is None or mark <= self.high_water_mark or mark in ends
        if self.is_fed:
            for replica in replicas:
                assert (
                    replica.phase is not ReplicaPhase.LIVE
                    or replica.lacks >= self.next_transaction_id
                )
