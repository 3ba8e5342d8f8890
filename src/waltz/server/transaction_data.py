"""Requests for the data of single transactions, on their way to an answer.

Each is answered from the cache, after a fetch if need be. What is handed to one connection in one
step is bounded, and nothing more while the connection is full: the bodies that a small request asks
for may be large. Source: Client-Server Communication, "Transaction Data Request".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Set
from typing import NamedTuple

from waltz.limits import REQUEST_BYTES, WRITE_BUFFER_BYTES_HIGH
from waltz.record import RECORD_HEADER, RECORD_HEADER_BYTES
from waltz.server.backlog import Backlog
from waltz.server.feed_cache import CachedBatch, FeedCache
from waltz.server.fetches import Fetches
from waltz.server.outbox import Outbox
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_protocol import TransactionDataRequest, TransactionDataResponse


class _Asked(NamedTuple):
    connection_id: int
    request: TransactionDataRequest


class DataRequests:
    """The unanswered data requests of one partition."""

    def __init__(
        self, partition_id: PartitionId, cache: FeedCache, fetches: Fetches, backlog: Backlog
    ) -> None:
        self._partition_id = partition_id
        self._backlog = backlog
        self._cache = cache
        self._fetches = fetches
        self._ready: deque[_Asked] = deque()
        self._fetching: deque[_Asked] = deque()
        self._blocked: dict[int, deque[_Asked]] = {}

    def __len__(self) -> int:
        blocked = sum(map(len, self._blocked.values()))
        return len(self._ready) + len(self._fetching) + blocked

    @property
    def has_work(self) -> bool:
        return bool(self._ready)

    def ask(self, connection_id: int, request: TransactionDataRequest) -> None:
        self._ready.append(_Asked(connection_id, request))

    def resume(self, connection_id: int) -> None:
        """The connection takes more."""
        self._ready += self._blocked.pop(connection_id, ())

    def remove(self, connection_id: int) -> None:
        """The connection is gone; nobody waits for its answers."""
        count = len(self)
        self._blocked.pop(connection_id, None)
        self._ready = deque(a for a in self._ready if a.connection_id != connection_id)
        self._fetching = deque(a for a in self._fetching if a.connection_id != connection_id)
        if dropped := count - len(self):
            self._backlog.drop(connection_id, dropped * REQUEST_BYTES)

    def wake_fetching(self) -> None:
        """A read has ended or may be started again."""
        self._ready += self._fetching
        self._fetching.clear()

    def fail(self, transaction_ids: Container[int], reason: str, outbox: Outbox) -> None:
        """Answer those who wait for the records of a failed read; the next one starts afresh."""
        waiting, self._fetching = self._fetching, deque()
        for asked in waiting:
            if asked.request.transaction_id in transaction_ids:
                self._answer(asked.connection_id, failure(asked.request, reason), outbox)
            else:
                self._fetching.append(asked)

    def fail_all(self, reason: str, outbox: Outbox) -> None:
        """Answer everyone: the partition is leaving this server."""
        for queue in (self._ready, self._fetching, *self._blocked.values()):
            for asked in queue:
                self._answer(asked.connection_id, failure(asked.request, reason), outbox)
        self._ready.clear()
        self._fetching.clear()
        self._blocked.clear()

    def serve(
        self,
        high_water_mark: TransactionId | None,
        blocked: Set[int],
        outbox: Outbox,
        now: float,
    ) -> None:
        """Answer what can be answered now. A mark of None knows of no transaction yet."""
        if not self._ready:
            return
        handed: dict[int, int] = {}
        later: deque[_Asked] = deque()
        for asked in self._ready:
            connection_id, request = asked
            if connection_id in blocked:
                self._blocked.setdefault(connection_id, deque()).append(asked)
                continue
            if handed.get(connection_id, 0) >= WRITE_BUFFER_BYTES_HIGH:
                later.append(asked)
                continue
            transaction_id = request.transaction_id
            if high_water_mark is None or not 0 <= transaction_id <= high_water_mark:
                absent = failure(request, self._not_found(transaction_id))
                self._answer(connection_id, absent, outbox)
                continue
            entry = self._cache.find(self._partition_id, transaction_id)
            if entry is None:
                self._fetches.want(transaction_id, high_water_mark, now)
                self._fetching.append(asked)
                continue
            response = _response(request, entry)
            handed[connection_id] = handed.get(connection_id, 0) + len(response.data or b"")
            self._answer(connection_id, response, outbox)
        self._ready = later

    def _answer(
        self, connection_id: int, response: TransactionDataResponse, outbox: Outbox
    ) -> None:
        self._backlog.drop(connection_id, REQUEST_BYTES)
        outbox.add(connection_id, response)

    def _not_found(self, transaction_id: TransactionId) -> str:
        return f"not found: partition={self._partition_id} transactionId={transaction_id}"


def failure(request: TransactionDataRequest, reason: str) -> TransactionDataResponse:
    return TransactionDataResponse(request.request_id, request.transaction_id, None, 0, reason)


def _response(request: TransactionDataRequest, entry: CachedBatch) -> TransactionDataResponse:
    batch = entry.batch
    start = int(batch.offsets[request.transaction_id - batch.first_transaction_id])
    _, _, _, length, checksum = RECORD_HEADER.unpack_from(batch.block, start)
    start += RECORD_HEADER_BYTES
    return TransactionDataResponse(
        request.request_id,
        request.transaction_id,
        batch.block[start : start + length],
        checksum,
        None,
    )
