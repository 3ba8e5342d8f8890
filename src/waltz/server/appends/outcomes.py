"""The outcomes of single appends, looked up in the log once nothing can change any more.

Owns the questions whose barrier has been passed, and how far each has looked. The log is looked
through by columns, from behind the mark that the client gives, a bounded number of records at a
time. When "not committed" is final, see docs/decisions/0017-batch-protocol.md. Knows no mounts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from waltz.record import RecordBatch, request_id_bytes
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import Fetches
from waltz.types import NOTHING, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import Outcome, OutcomeRequest, OutcomeResponse

OUTCOME_RECORDS_PER_STEP_MAX: Final = 10_000
OUTCOME_RECORDS_MAX: Final = 100_000
"""Records that are looked through for one append: in one step of its partition, and for one answer.
A client without a definite answer asks again from there."""


@dataclass(slots=True)
class _Search:
    """`end` is the high-water mark when all appends that had arrived were decided."""

    connection_id: int
    request: OutcomeRequest
    position: TransactionId
    end: TransactionId
    is_final: bool
    looked_at: int = 0


class Outcomes:
    """The questions of one partition that are being looked up."""

    def __init__(self, partition_id: PartitionId, cache: FeedCache, fetches: Fetches) -> None:
        self._partition_id = partition_id
        self._cache = cache
        self._fetches = fetches
        self.ready: deque[_Search] = deque()
        """Searches that can go on as soon as `serve` is called."""
        self._fetching: deque[_Search] = deque()

    def __len__(self) -> int:
        return len(self.ready) + len(self._fetching)

    def ask(
        self, connection_id: int, request: OutcomeRequest, end: TransactionId, *, is_final: bool
    ) -> None:
        """Look for the append up to `end`. `is_final`: what is not there never will be."""
        first = TransactionId(max(request.after, NOTHING) + 1)
        self.ready.append(_Search(connection_id, request, first, end, is_final))

    def remove(self, connection_id: int) -> int:
        """The connection is gone; return how many questions went with it."""
        count = len(self)
        self.ready = deque(s for s in self.ready if s.connection_id != connection_id)
        self._fetching = deque(s for s in self._fetching if s.connection_id != connection_id)
        return count - len(self)

    def wake_fetching(self) -> None:
        """A read has ended or may be started again."""
        self.ready += self._fetching
        self._fetching.clear()

    def fail(self, transaction_ids: Container[int]) -> Iterator[tuple[int, OutcomeResponse]]:
        """Yield answers to the questions that wait for the records of a failed read: their clients
        may ask again."""
        waiting, self._fetching = self._fetching, deque()
        for search in waiting:
            if search.position in transaction_ids:
                yield search.connection_id, undecided(search.request)
            else:
                self._fetching.append(search)

    def take_all(self) -> Iterator[tuple[int, OutcomeResponse]]:
        """Yield answers to all: the partition is leaving this server."""
        self.wake_fetching()
        while self.ready:
            search = self.ready.popleft()
            yield search.connection_id, undecided(search.request)

    def serve(
        self, high_water_mark: TransactionId, now: float
    ) -> Iterator[tuple[int, OutcomeResponse]]:
        """Look a bounded way further; yield the answers found."""
        budget = OUTCOME_RECORDS_PER_STEP_MAX
        for _ in range(len(self.ready)):
            if budget <= 0:
                return
            search = self.ready.popleft()
            before = search.looked_at
            response = self._look(search, budget, high_water_mark, now)
            budget -= max(1, search.looked_at - before)
            if response is not None:
                yield search.connection_id, response

    def _look(
        self, search: _Search, budget: int, high_water_mark: TransactionId, now: float
    ) -> OutcomeResponse | None:
        request_id = search.request.request_id
        while search.position <= search.end:
            if search.looked_at >= OUTCOME_RECORDS_MAX:
                through = TransactionId(search.position - 1)
                return OutcomeResponse(request_id, Outcome.NOT_FOUND, through)
            if budget <= 0:
                self.ready.append(search)
                return None
            entry = self._cache.find(self._partition_id, search.position)
            if entry is None:
                self._fetches.want(search.position, high_water_mark, now)
                self._fetching.append(search)
                return None
            rest = search.end - search.position + 1
            batch = entry.batch.slice(search.position, min(budget, rest))
            found = place_of(batch, request_id)
            if found is not None:
                return OutcomeResponse(request_id, Outcome.COMMITTED, found)
            search.position = batch.next_transaction_id
            search.looked_at += len(batch)
            budget -= len(batch)
        if not search.is_final:
            return undecided(search.request)
        return OutcomeResponse(request_id, Outcome.NOT_COMMITTED, search.end)


def place_of(batch: RecordBatch, request_id: RequestId) -> TransactionId | None:
    """Return the ID of the record with that request ID; None if the batch has none."""
    wanted = np.frombuffer(request_id_bytes(request_id), np.uint8)
    places = np.flatnonzero((batch.request_ids() == wanted).all(axis=1))
    return TransactionId(batch.first_transaction_id + int(places[0])) if len(places) else None


def undecided(request: OutcomeRequest) -> OutcomeResponse:
    return OutcomeResponse(request.request_id, Outcome.UNDECIDED, NOTHING)
