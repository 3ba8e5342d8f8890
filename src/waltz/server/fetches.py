"""Which old records one partition is fetching from its store.

Whoever misses a record says so; one fetch serves all who want what it covers. A failed fetch
answers those who waited for it and leaves nothing behind but a pause, so a later request starts
afresh: the original remembered failures for ever. Source: Waltz Server, "Partition Object".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from waltz.limits import (
    READ_AHEAD_RECORDS,
    READ_AHEAD_RECORDS_MAX,
    READS_IN_FLIGHT_MAX,
    RETRY_SECONDS_MAX,
    RETRY_SECONDS_MIN,
)
from waltz.server.feed_cache import FeedCache
from waltz.types import PartitionId, TransactionId


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Read up to `count_max` committed records; answer with `RecordsRead` or `ReadFailed`."""

    first_transaction_id: TransactionId
    count_max: int


_SEQUELS_MAX: Final = 16
"""Readers that go through old records, each at its own place."""


class Fetches:
    """Turns misses into reads: ahead, shared, and at most `READS_IN_FLIGHT_MAX` at a time."""

    def __init__(self, partition_id: PartitionId, cache: FeedCache) -> None:
        self._partition_id = partition_id
        self._cache = cache
        self._under_way: dict[TransactionId, int] = {}
        self.started: list[ReadRecords] = []
        """The reads that have become necessary since `take_started`."""
        self._sequels: dict[TransactionId, int] = {}
        """Where the last reads end, and how much is read when somebody goes on there."""
        self._failures = 0
        self.retry_at: float | None = None
        """Until when no read is started, after a failed one."""

    def want(
        self, transaction_id: TransactionId, high_water_mark: TransactionId, now: float
    ) -> None:
        """Have the record fetched, and those after it, unless it is on its way or must wait.

        A wish is not remembered: whoever has it repeats it when a read has ended, or at `retry_at`.
        """
        assert 0 <= transaction_id <= high_water_mark
        if self.retry_at is not None:
            if now < self.retry_at:
                return
            self.retry_at = None
        if len(self._under_way) >= READS_IN_FLIGHT_MAX or self.covers(transaction_id):
            return
        ahead = self._sequels.pop(transaction_id, READ_AHEAD_RECORDS)
        count = min(ahead, high_water_mark - transaction_id + 1)
        following = self._cache.next_cached(self._partition_id, transaction_id)
        if following is not None:
            count = min(count, following - transaction_id)
        self._under_way[transaction_id] = count
        end = TransactionId(transaction_id + count)
        self._sequels[end] = min(2 * ahead, READ_AHEAD_RECORDS_MAX)
        if len(self._sequels) > _SEQUELS_MAX:
            del self._sequels[next(iter(self._sequels))]
        self.started.append(ReadRecords(transaction_id, count))

    def covers(self, transaction_id: TransactionId) -> bool:
        """Whether a read under way asked for the record."""
        return any(
            first <= transaction_id < first + count for first, count in self._under_way.items()
        )

    def take_started(self) -> list[ReadRecords]:
        """Return `started`, once."""
        started, self.started = self.started, []
        return started

    def end(self, first_transaction_id: TransactionId) -> range:
        """A read has come back; return the IDs that it was asked for."""
        count = self._under_way.pop(first_transaction_id)
        return range(first_transaction_id, first_transaction_id + count)

    def succeed(self) -> None:
        self._failures = 0
        self.retry_at = None

    def fail(self, now: float) -> None:
        """Start no read for a while, longer with each failure in a row."""
        delay_seconds = RETRY_SECONDS_MIN * 2 ** min(self._failures, 16)
        self.retry_at = now + min(delay_seconds, RETRY_SECONDS_MAX)
        self._failures += 1

    def check_invariants(self) -> None:
        assert len(self._under_way) <= READS_IN_FLIGHT_MAX
        assert all(0 < count <= READ_AHEAD_RECORDS_MAX for count in self._under_way.values())
