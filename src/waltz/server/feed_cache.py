"""Recent committed records of all partitions of one server, bounded in bytes.

Headers and bodies are kept together, as the batches in which they were committed or read, so one
cache serves the feed and the requests for transaction data. What leaves first is what came first.
Entries are never invalidated: committed transactions do not change. Knows nothing of clients.
Source: Waltz Server, "Partition Object".
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from waltz.limits import FEED_CACHE_BYTES
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_protocol import BATCHES_SINCE, encode_feed_batch, encode_feed_run

BATCH_OVERHEAD_BYTES: Final = 512
"""What a batch takes besides its records: objects, and its places in the cache."""

RECORD_OVERHEAD_BYTES: Final = 44
"""What a record takes besides its bytes: an offset, and its feed data in one protocol version."""


class CachedBatch:
    """A batch, and its feed data as encoded for each protocol version that asked so far."""

    __slots__ = ("batch", "byte_count", "frames")

    def __init__(self, batch: RecordBatch) -> None:
        self.batch = batch
        records = len(batch.block) + RECORD_OVERHEAD_BYTES * batch.count
        self.byte_count = BATCH_OVERHEAD_BYTES + records
        self.frames: dict[int, bytes] = {}


@dataclass(slots=True, eq=False)
class _Shelf:
    """The batches of one partition, by first ID, and these first IDs in order."""

    batches: dict[TransactionId, CachedBatch] = field(default_factory=dict)
    first_ids: list[TransactionId] = field(default_factory=list)


class FeedCache:
    """Finds records by partition and transaction ID.

    The batch added last stays whatever its size, so that what was fetched can also be served.
    """

    def __init__(self, bytes_max: int = FEED_CACHE_BYTES) -> None:
        self._bytes_max = bytes_max
        self._shelves: dict[PartitionId, _Shelf] = {}
        self._order: deque[tuple[PartitionId, TransactionId]] = deque()
        self.byte_count = 0

    def add(self, partition_id: PartitionId, batch: RecordBatch) -> None:
        """Keep `batch`, which is committed; an empty one is nothing to keep."""
        if not batch.count:
            return
        shelf = self._shelves.get(partition_id)
        if shelf is None:
            self._shelves[partition_id] = shelf = _Shelf()
        first = batch.first_transaction_id
        known = shelf.batches.get(first)
        if known is not None:
            if known.batch.count >= batch.count:
                return
            self.byte_count -= known.byte_count
        else:
            if shelf.first_ids and first < shelf.first_ids[-1]:
                insort(shelf.first_ids, first)
            else:
                shelf.first_ids.append(first)
            self._order.append((partition_id, first))
        entry = shelf.batches[first] = CachedBatch(batch)
        self.byte_count += entry.byte_count
        if self.byte_count > self._bytes_max:
            self._evict(keep=(partition_id, first))

    def find(self, partition_id: PartitionId, transaction_id: TransactionId) -> CachedBatch | None:
        """Return the batch with `transaction_id`; a miss says nothing about whether it exists."""
        shelf = self._shelves.get(partition_id)
        if shelf is None:
            return None
        place = bisect_right(shelf.first_ids, transaction_id)
        if place == 0:
            return None
        entry = shelf.batches[shelf.first_ids[place - 1]]
        return entry if transaction_id < entry.batch.next_transaction_id else None

    def next_cached(
        self, partition_id: PartitionId, transaction_id: TransactionId
    ) -> TransactionId | None:
        """Return the lowest ID above `transaction_id` with which a batch begins."""
        shelf = self._shelves.get(partition_id)
        if shelf is None:
            return None
        place = bisect_right(shelf.first_ids, transaction_id)
        return shelf.first_ids[place] if place < len(shelf.first_ids) else None

    def feed_frames(
        self,
        partition_id: PartitionId,
        entry: CachedBatch,
        version: int,
        first: TransactionId,
        count: int,
    ) -> bytes:
        """Return the feed data, or the feed batch, of `count` records of `entry` from `first` on.

        A batch is encoded once per version. Before version 5 all its frames have the same length,
        so a part of it is a slice.
        """
        batch = entry.batch
        if version >= BATCHES_SINCE and count < batch.count:
            part = batch.slice(first, count)
            return encode_feed_batch(partition_id, part, version, with_data=False)
        frames = entry.frames.get(version)
        if frames is None:
            if version >= BATCHES_SINCE:
                frames = encode_feed_batch(partition_id, batch, version, with_data=False)
            else:
                frames = encode_feed_run(
                    version, batch.first_transaction_id, batch.request_ids(), batch.headers()
                )
            entry.frames[version] = frames
        if count == batch.count:
            return frames
        frame_bytes = len(frames) // batch.count
        start = (first - batch.first_transaction_id) * frame_bytes
        return frames[start : start + count * frame_bytes]

    def drop(self, partition_id: PartitionId) -> None:
        """Forget the batches of a partition that this server has lost."""
        shelf = self._shelves.pop(partition_id, None)
        if shelf is not None:
            self.byte_count -= sum(entry.byte_count for entry in shelf.batches.values())
            self._order = deque(place for place in self._order if place[0] != partition_id)

    def check_invariants(self) -> None:
        kept = [
            (partition_id, first)
            for partition_id, shelf in self._shelves.items()
            for first in shelf.first_ids
        ]
        assert sorted(kept) == sorted(self._order)
        entries = [e for shelf in self._shelves.values() for e in shelf.batches.values()]
        assert len(entries) == len(kept)
        assert self.byte_count == sum(entry.byte_count for entry in entries)
        assert self.byte_count <= self._bytes_max or len(entries) == 1
        for shelf in self._shelves.values():
            assert shelf.first_ids == sorted(shelf.batches)

    def _evict(self, keep: tuple[PartitionId, TransactionId]) -> None:
        """Remove the oldest batches but `keep`, an eighth of the cache at a time."""
        bytes_target = self._bytes_max - self._bytes_max // 8
        touched: dict[PartitionId, _Shelf] = {}
        kept: list[tuple[PartitionId, TransactionId]] = []
        while self._order and self.byte_count > bytes_target:
            place = self._order.popleft()
            if place == keep:
                kept.append(place)
                continue
            partition_id, first = place
            touched[partition_id] = shelf = self._shelves[partition_id]
            self.byte_count -= shelf.batches.pop(first).byte_count
        self._order.extendleft(kept)
        for shelf in touched.values():
            shelf.first_ids = [first for first in shelf.first_ids if first in shelf.batches]
