"""Requests for data of single transactions, for records or for headers, on their way to an answer.

Each is answered from the cache, after a fetch if need be. What is handed to one connection in one
step is bounded, and nothing more while the connection is full: the bodies that a small request asks
for may be large. Source: Client-Server Communication, "Transaction Data Request".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence, Set
from typing import Final, NamedTuple, TypeAlias, assert_never

from waltz.limits import (
    RECORD_LIST_BYTES_MAX,
    RECORD_LIST_RECORDS_MAX,
    REQUEST_BYTES,
    WRITE_BUFFER_BYTES_HIGH,
)
from waltz.record import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RecordBatch,
    empty_batch,
    join_batches,
)
from waltz.server.feeding.backlog import Backlog
from waltz.server.feeding.feed_cache import CachedHeaders, CachedRecords, FeedCache
from waltz.server.feeding.fetches import Fetches
from waltz.server.feeding.outbox import Outbox
from waltz.types import NOTHING, PartitionId, TransactionId
from waltz.wire.batch_protocol import HeaderBlock, HeadersRequest, ReadRequest, RecordBlock
from waltz.wire.client_message import ClientMessage
from waltz.wire.client_protocol import TransactionDataRequest, TransactionDataResponse
from waltz.wire.header_columns import HeaderColumns, header_columns, join_headers, no_headers

HEADER_PARTS_MAX: Final = 256
"""At most this many cached batches are joined into one answer with headers, which then has fewer
than were asked for: each batch costs about 10 us, and some are of one transaction."""

Question: TypeAlias = TransactionDataRequest | ReadRequest | HeadersRequest
Answer: TypeAlias = TransactionDataResponse | RecordBlock | HeaderBlock


class _Asked(NamedTuple):
    connection_id: int
    request: Question

    @property
    def transaction_id(self) -> TransactionId:
        """The first that is wanted."""
        if isinstance(self.request, TransactionDataRequest):
            return self.request.transaction_id
        return self.request.first_transaction_id

    @property
    def with_data(self) -> bool:
        """Whether headers are not enough."""
        return not isinstance(self.request, HeadersRequest)


class DataRequests:
    """The unanswered data requests of one partition."""

    def __init__(
        self, partition_id: PartitionId, cache: FeedCache, fetches: Fetches, backlog: Backlog
    ) -> None:
        self._partition_id = partition_id
        self._backlog = backlog
        self._cache = cache
        self._fetches = fetches
        self.ready: deque[_Asked] = deque()
        """Requests that can be answered as soon as `serve` is called."""
        self._fetching: deque[_Asked] = deque()
        self._blocked: dict[int, deque[_Asked]] = {}

    def __len__(self) -> int:
        blocked = sum(map(len, self._blocked.values()))
        return len(self.ready) + len(self._fetching) + blocked

    def ask(self, connection_id: int, request: Question) -> None:
        self.ready.append(_Asked(connection_id, request))

    def answers_at_hand(
        self, requests: Sequence[ClientMessage], high_water_mark: TransactionId
    ) -> Sequence[TransactionDataResponse]:
        """Return the answers to `requests` if the cache has all of them and one step may hand them
        over, or else nothing."""
        answers: list[TransactionDataResponse] = []
        size = 0
        for request in requests:
            if (
                type(request) is not TransactionDataRequest
                or not 0 <= request.transaction_id <= high_water_mark
                or size >= WRITE_BUFFER_BYTES_HIGH
            ):
                return ()
            entry = self._cache.find(self._partition_id, request.transaction_id)
            if entry is None:
                return ()
            answer = _response(request, entry.batch)
            size += len(answer.data or b"")
            answers.append(answer)
        return answers

    def resume(self, connection_id: int) -> None:
        """The connection takes more."""
        self.ready += self._blocked.pop(connection_id, ())

    def remove(self, connection_id: int) -> None:
        """The connection is gone; nobody waits for its answers."""
        count = len(self)
        self._blocked.pop(connection_id, None)
        self.ready = deque(a for a in self.ready if a.connection_id != connection_id)
        self._fetching = deque(a for a in self._fetching if a.connection_id != connection_id)
        if dropped := count - len(self):
            self._backlog.drop(connection_id, dropped * REQUEST_BYTES)

    def wake_fetching(self) -> None:
        """A read has ended or may be started again."""
        self.ready += self._fetching
        self._fetching.clear()

    def fail(
        self, transaction_ids: Container[int], reason: str, outbox: Outbox, *, with_data: bool
    ) -> None:
        """Answer the requests that wait for the records of a failed read, or for their headers;
        the next read starts afresh. Without `with_data` headers were read, for which requests for
        data do not wait."""
        waiting, self._fetching = self._fetching, deque()
        for asked in waiting:
            if asked.transaction_id in transaction_ids and (with_data or not asked.with_data):
                self._answer(asked.connection_id, failure(asked.request, reason), outbox)
            else:
                self._fetching.append(asked)

    def fail_all(self, reason: str, outbox: Outbox) -> None:
        """Answer everyone: the partition is leaving this server."""
        for queue in (self.ready, self._fetching, *self._blocked.values()):
            for asked in queue:
                self._answer(asked.connection_id, failure(asked.request, reason), outbox)
        self.ready.clear()
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
        handed: dict[int, int] = {}
        later: deque[_Asked] = deque()
        for asked in self.ready:
            connection_id, request = asked
            if connection_id in blocked:
                self._blocked.setdefault(connection_id, deque()).append(asked)
                continue
            if handed.get(connection_id, 0) >= WRITE_BUFFER_BYTES_HIGH:
                later.append(asked)
                continue
            transaction_id = asked.transaction_id
            if high_water_mark is None or not 0 <= transaction_id <= high_water_mark:
                self._answer(connection_id, self._absent(asked, high_water_mark), outbox)
                continue
            with_data = asked.with_data
            find = self._cache.find if with_data else self._cache.find_headers
            entry = find(self._partition_id, transaction_id)
            if entry is None:
                if (reason := self._fetches.unreadable(transaction_id)) is not None:
                    self._answer(connection_id, failure(request, reason), outbox)
                    continue
                # Range readers do their own read-ahead: fetch exactly the range asked for.
                count = None
                if not isinstance(request, TransactionDataRequest):
                    count = max(1, request.count_max)
                self._fetches.want(
                    transaction_id, high_water_mark, now, with_data=with_data, count=count
                )
                self._fetching.append(asked)
                continue
            answer: Answer
            if isinstance(request, HeadersRequest):
                headers = self._headers(request, entry)
                answer = HeaderBlock(request.request_id, high_water_mark, None, headers)
                size = headers.byte_count
            else:
                assert isinstance(entry.batch, RecordBatch)
                if isinstance(request, ReadRequest):
                    records = self._records(request, entry.batch)
                    answer = RecordBlock(request.request_id, high_water_mark, None, records)
                    size = len(records.block)
                else:
                    answer = _response(request, entry.batch)
                    size = len(answer.data or b"")
            self._answer(connection_id, answer, outbox)
            handed[connection_id] = handed.get(connection_id, 0) + size
        self.ready = later

    def _headers(
        self, request: HeadersRequest, entry: CachedRecords | CachedHeaders
    ) -> HeaderColumns:
        """Return what is at hand of the headers asked for: within the bounds, at least one."""
        left = max(1, min(request.count_max, RECORD_LIST_RECORDS_MAX))
        position = request.first_transaction_id
        found: list[HeaderColumns] = []
        following: CachedRecords | CachedHeaders | None = entry
        while following is not None and left and len(found) < HEADER_PARTS_MAX:
            part = following.batch.slice(position, left)
            found.append(header_columns(part) if isinstance(part, RecordBatch) else part)
            position = part.next_transaction_id
            left -= len(part)
            following = self._cache.find_headers(self._partition_id, position)
        return join_headers(found)

    def _records(self, request: ReadRequest, batch: RecordBatch) -> RecordBatch:
        """Return what is at hand of the records asked for: within the bounds, at least one."""
        count_max = min(request.count_max, RECORD_LIST_RECORDS_MAX)
        bytes_max = min(request.bytes_max, RECORD_LIST_BYTES_MAX)
        first = request.first_transaction_id
        found = [batch.head(first, count_max, bytes_max)]
        count, size = len(found[0]), len(found[0].block)
        while found[-1].next_transaction_id == batch.next_transaction_id:
            position = found[-1].next_transaction_id
            following = self._cache.find(self._partition_id, position)
            if following is None or count >= count_max:
                break
            part = following.batch.head(position, count_max - count, bytes_max - size)
            if size + len(part.block) > bytes_max:
                break
            found.append(part)
            batch = following.batch
            count, size = count + len(part), size + len(part.block)
        return join_batches(found)

    def _absent(self, asked: _Asked, high_water_mark: TransactionId | None) -> Answer:
        """Return the answer for what is not in the log. The end of the log is no failure of a
        range."""
        transaction_id, request = asked.transaction_id, asked.request
        is_range = not isinstance(request, TransactionDataRequest)
        if is_range and high_water_mark is not None and transaction_id > high_water_mark:
            return _nothing(request, high_water_mark, None)
        return failure(request, self._not_found(transaction_id))

    def _answer(self, connection_id: int, response: Answer, outbox: Outbox) -> None:
        self._backlog.drop(connection_id, REQUEST_BYTES)
        outbox.add(connection_id, response)

    def _not_found(self, transaction_id: TransactionId) -> str:
        return f"not found: partition={self._partition_id} transactionId={transaction_id}"


def failure(request: Question, reason: str) -> Answer:
    """Return the answer that says why there is nothing else."""
    return _nothing(request, NOTHING, reason)


def _nothing(request: Question, high_water_mark: TransactionId, reason: str | None) -> Answer:
    match request:
        case TransactionDataRequest(request_id, transaction_id):
            return TransactionDataResponse(request_id, transaction_id, None, 0, reason)
        case ReadRequest(request_id, first):
            return RecordBlock(request_id, high_water_mark, reason, empty_batch(first))
        case HeadersRequest(request_id, first):
            return HeaderBlock(request_id, high_water_mark, reason, no_headers(first))
        case _:
            assert_never(request)


def _response(request: TransactionDataRequest, batch: RecordBatch) -> TransactionDataResponse:
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
