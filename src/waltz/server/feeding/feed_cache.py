"""Recent committed records of all partitions of one server, bounded in bytes.

Headers and bodies are kept together, as the batches in which they were committed or read, so one
cache serves the feed and the requests for transaction data; where only headers were read, these are
kept for the feed. What leaves first is what came first.
Entries are never invalidated: committed transactions do not change. Knows nothing of clients.
Source: Waltz Server, "Partition Object".
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from waltz.limits import FEED_CACHE_BYTES
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId
from waltz.wire.batch_protocol import FeedBatch
from waltz.wire.columns import feed_columns
from waltz.wire.header_columns import HeaderColumns
from waltz.wire.logical_link import Shared

BATCH_OVERHEAD_BYTES: Final = 512
"""Memory of a batch besides its records: objects, and its places in the cache."""

RECORD_OVERHEAD_BYTES: Final = 44
"""Memory of a record besides its bytes: an offset, and its feed as one version encodes it."""


B = TypeVar("B", bound=RecordBatch | HeaderColumns)


class CachedBatch(Generic[B]):
    """A batch, and its feed without data, once somebody was fed the whole batch."""

    __slots__ = ("batch", "byte_count", "feed")

    def __init__(self, batch: B) -> None:
        self.batch: B = batch
        size = len(batch.block) if isinstance(batch, RecordBatch) else batch.byte_count
        self.byte_count = BATCH_OVERHEAD_BYTES + size + RECORD_OVERHEAD_BYTES * len(batch)
        self.feed: Shared | None = None


CachedRecords: TypeAlias = CachedBatch[RecordBatch]
CachedHeaders: TypeAlias = CachedBatch[HeaderColumns]


class _Shelf(Generic[B]):
    """The batches of one kind of one partition, by first ID, and these first IDs in order."""

    __slots__ = ("batches", "first_ids")

    def __init__(self) -> None:
        self.batches: dict[TransactionId, CachedBatch[B]] = {}
        self.first_ids: list[TransactionId] = []

    def put(self, batch: B) -> CachedBatch[B]:
        first = batch.first_transaction_id
        if first not in self.batches:
            if self.first_ids and first < self.first_ids[-1]:
                insort(self.first_ids, first)
            else:
                self.first_ids.append(first)
        self.batches[first] = entry = CachedBatch(batch)
        return entry

    def find(self, transaction_id: TransactionId) -> CachedBatch[B] | None:
        place = bisect_right(self.first_ids, transaction_id)
        if place == 0:
            return None
        entry = self.batches[self.first_ids[place - 1]]
        return entry if transaction_id < entry.batch.next_transaction_id else None

    def next_first(self, transaction_id: TransactionId) -> TransactionId | None:
        place = bisect_right(self.first_ids, transaction_id)
        return self.first_ids[place] if place < len(self.first_ids) else None

    def tidy(self) -> None:
        """Some batches have been taken away."""
        self.first_ids = [first for first in self.first_ids if first in self.batches]

    @property
    def byte_count(self) -> int:
        return sum(entry.byte_count for entry in self.batches.values())


class _Shelves:
    """The batches of one partition."""

    __slots__ = ("headers", "records")

    def __init__(self) -> None:
        self.records: _Shelf[RecordBatch] = _Shelf()
        self.headers: _Shelf[HeaderColumns] = _Shelf()

    def of(self, *, with_data: bool) -> _Shelf[RecordBatch] | _Shelf[HeaderColumns]:
        return self.records if with_data else self.headers


class _Place(NamedTuple):
    partition_id: PartitionId
    with_data: bool
    first: TransactionId


class FeedCache:
    """Finds records, or their headers, by partition and transaction ID.

    The batch added last stays whatever its size, so that what was fetched can also be served.
    """

    def __init__(self, bytes_max: int = FEED_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._shelves: dict[PartitionId, _Shelves] = {}
        self._order: deque[_Place] = deque()
        self.byte_count = 0
        self.hits = 0
        """Looks for a transaction that have found it here."""
        self.misses = 0

    def add(self, partition_id: PartitionId, batch: RecordBatch | HeaderColumns) -> None:
        """Keep `batch`, which is committed; an empty one is nothing to keep."""
        count = len(batch)
        if not count:
            return
        shelves = self._shelves.get(partition_id)
        if shelves is None:
            self._shelves[partition_id] = shelves = _Shelves()
        first = batch.first_transaction_id
        place = _Place(partition_id, isinstance(batch, RecordBatch), first)
        known = shelves.of(with_data=place.with_data).batches.get(first)
        if known is None:
            self._order.append(place)
        elif len(known.batch) >= count:
            return
        else:
            self.byte_count -= known.byte_count
        if isinstance(batch, RecordBatch):
            self.byte_count += shelves.records.put(batch).byte_count
        else:
            self.byte_count += shelves.headers.put(batch).byte_count
        if self.byte_count > self._bytes_max:
            self._evict(keep=place)

    def find(
        self, partition_id: PartitionId, transaction_id: TransactionId
    ) -> CachedRecords | None:
        """Return the batch with `transaction_id`; a miss says nothing about whether it exists."""
        shelves = self._shelves.get(partition_id)
        found = None if shelves is None else shelves.records.find(transaction_id)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def find_headers(
        self, partition_id: PartitionId, transaction_id: TransactionId
    ) -> CachedRecords | CachedHeaders | None:
        """As `find`, for a feed without data."""
        shelves = self._shelves.get(partition_id)
        if shelves is not None:
            records = shelves.records.find(transaction_id)
            found = records or shelves.headers.find(transaction_id)
            if found is not None:
                self.hits += 1
                return found
        self.misses += 1
        return None

    def next_cached(
        self, partition_id: PartitionId, transaction_id: TransactionId, *, with_data: bool = True
    ) -> TransactionId | None:
        """Return the lowest ID above `transaction_id` with which a batch begins."""
        shelves = self._shelves.get(partition_id)
        if shelves is None:
            return None
        found = [shelves.records.next_first(transaction_id)]
        if not with_data:
            found.append(shelves.headers.next_first(transaction_id))
        return min((each for each in found if each is not None), default=None)

    def feed(
        self,
        partition_id: PartitionId,
        entry: CachedRecords | CachedHeaders,
        first: TransactionId,
        count: int,
    ) -> Shared:
        """Return the feed without data of `count` records of `entry` from `first` on."""
        batch = entry.batch
        if count < len(batch):
            return feed_of(partition_id, batch.slice(first, count))
        if entry.feed is None:
            entry.feed = feed_of(partition_id, batch)
        return entry.feed

    def drop(self, partition_id: PartitionId) -> None:
        """Forget the batches of a partition that this server has lost."""
        shelves = self._shelves.pop(partition_id, None)
        if shelves is not None:
            self.byte_count -= shelves.records.byte_count + shelves.headers.byte_count
            self._order = deque(place for place in self._order if place[0] != partition_id)

    def check_invariants(self) -> None:
        kept = []
        byte_count = 0
        for partition_id, shelves in self._shelves.items():
            for with_data in (True, False):
                shelf = shelves.of(with_data=with_data)
                assert shelf.first_ids == sorted(shelf.batches)
                kept += [_Place(partition_id, with_data, first) for first in shelf.first_ids]
                byte_count += shelf.byte_count
        assert sorted(kept) == sorted(self._order)
        assert self.byte_count == byte_count
        assert self.byte_count <= self._bytes_max or len(kept) == 1

    def _evict(self, keep: _Place) -> None:
        """Remove the oldest batches but `keep`, an eighth of the cache at a time."""
        bytes_target = self._bytes_max - self._bytes_max // 8
        touched: dict[tuple[PartitionId, bool], None] = {}
        kept: list[_Place] = []
        while self._order and self.byte_count > bytes_target:
            place = self._order.popleft()
            if place == keep:
                kept.append(place)
                continue
            touched[place.partition_id, place.with_data] = None
            shelf = self._shelves[place.partition_id].of(with_data=place.with_data)
            self.byte_count -= shelf.batches.pop(place.first).byte_count
        self._order.extendleft(kept)
        for partition_id, with_data in touched:
            self._shelves[partition_id].of(with_data=with_data).tidy()


def feed_of(
    partition_id: PartitionId, batch: RecordBatch | HeaderColumns, *, with_data: bool = False
) -> Shared:
    """Return the feed of `batch`, at least one record, for all who are fed it."""
    if isinstance(batch, RecordBatch):
        columns = feed_columns(batch, with_data=with_data)
    else:
        columns = batch.feed()
    return Shared(FeedBatch(partition_id, batch.first_transaction_id, columns))
