"""The fetches of old records that one partition has under way to its store.

A feed or a request that misses a record says so; one fetch serves all that want a record it covers.
For a feed without data only headers are fetched. A failed fetch answers the requests that waited
for it and leaves only a pause behind, so a later request starts afresh: the original remembered
failures for ever. A record that no replica can give is put off alone: other records are read
meanwhile. Source: Waltz Server, "Partition Object".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from waltz.limits import RECORD_LIST_RECORDS_MAX, RETRY_SECONDS_MAX, RETRY_SECONDS_MIN
from waltz.server.feeding.feed_cache import FeedCache
from waltz.types import PartitionId, TransactionId

UNREADABLE_SECONDS: Final = 3.0
"""A server asks again for a record that no replica could give only after this long; longer than
READ_AVOID_SECONDS, so that all replicas are asked again."""

READ_AHEAD_RECORDS: Final = 512
READ_AHEAD_RECORDS_MAX: Final = 4_096
"""Records fetched from a replica when one old transaction is asked for. The number doubles each
time a reader asks for the following records, up to the maximum."""

READ_AHEAD_HEADERS_MAX: Final = 8_000
"""The maximum where no data is wanted: two runs of a feed."""

READ_AHEAD_READS: Final = 2
"""Fetches under way ahead of a sequential reader's position."""

READS_IN_FLIGHT_MAX: Final = 4
"""Fetches of old records that one partition of a server has under way."""


@dataclass(frozen=True, slots=True)
class FetchRecords:
    """Read up to `count_max` committed records, or their headers alone; answer with `RecordsRead`
    or `ReadFailed`."""

    first_transaction_id: TransactionId
    count_max: int
    with_data: bool = True


_SEQUELS_MAX: Final = 16
"""Readers that go through old records, each at its own place."""

_TURNS_MAX: Final = 16

UNREADABLE_MAX: Final = 1_000
"""Records that are put off at a time; more are asked for anew each time."""

SEQUELS_PROVE: Final = 2
"""Reads in a row after which a reader counts as sequential, and its next records are prefetched."""


@dataclass(slots=True)
class _Reads:
    """Reads of records, or of headers. under_way: how many were asked for. sequels: where the
    last reads end, and how many there were in a row."""

    under_way: dict[TransactionId, int] = field(default_factory=dict)
    sequels: dict[TransactionId, int] = field(default_factory=dict)

    def covers(self, transaction_id: TransactionId) -> bool:
        return any(
            first <= transaction_id < first + count for first, count in self.under_way.items()
        )

    def expect_sequel(self, end: TransactionId, turns: int) -> None:
        self.sequels[end] = min(turns, _TURNS_MAX)
        if len(self.sequels) > _SEQUELS_MAX:
            del self.sequels[next(iter(self.sequels))]


class Fetches:
    """Turns misses into reads: ahead, shared, and at most `READS_IN_FLIGHT_MAX` at a time."""

    def __init__(self, partition_id: PartitionId, cache: FeedCache) -> None:
        self._partition_id = partition_id
        self._cache = cache
        self._records = _Reads()
        self._headers = _Reads()
        self.started: list[FetchRecords] = []
        """The reads that have become necessary since `take_started`."""
        self._failures = 0
        self.retry_at: float | None = None
        """Until when no read is started, after a failed one."""
        self._put_off: dict[TransactionId, tuple[float, str]] = {}
        """Until when no read is started at a record that no replica can give, and why; the one put
        off first is the first."""

    def want(
        self,
        transaction_id: TransactionId,
        high_water_mark: TransactionId,
        now: float,
        *,
        with_data: bool = True,
        count: int | None = None,
    ) -> None:
        """Fetch the record and records after it, unless it is under way or must wait.

        `count`: how many, for a reader that does its own read-ahead; None: more of them the longer
        a reader is sequential. A wish is not remembered: its owner repeats it when a read has
        ended, or at `retry_at`.
        """
        assert 0 <= transaction_id <= high_water_mark
        if self.retry_at is not None:
            if now < self.retry_at:
                return
            self.retry_at = None
        if self.unreadable(transaction_id) is not None:
            return
        if self._is_full or self.covers(transaction_id, with_data=with_data):
            return
        reads = self._reads(with_data=with_data)
        turns = 0 if count is not None else reads.sequels.pop(transaction_id, 0)
        if count is None:
            most = READ_AHEAD_RECORDS_MAX if with_data else READ_AHEAD_HEADERS_MAX
            count = min(READ_AHEAD_RECORDS << turns, most)
        count = min(count, RECORD_LIST_RECORDS_MAX, high_water_mark - transaction_id + 1)
        following = self._cache.next_cached(self._partition_id, transaction_id, with_data=with_data)
        if following is not None:
            count = min(count, following - transaction_id)
        for each in self._put_off:
            if transaction_id < each:
                count = min(count, each - transaction_id)
        reads.under_way[transaction_id] = count
        reads.expect_sequel(TransactionId(transaction_id + count), turns + 1)
        self.started.append(FetchRecords(transaction_id, count, with_data))

    def go_on(
        self,
        position: TransactionId,
        high_water_mark: TransactionId,
        now: float,
        *,
        with_data: bool,
    ) -> None:
        """A reader of old records reached `position`; if it reads sequentially, prefetch what
        follows the cached part."""
        reads = self._reads(with_data=with_data)
        find = self._cache.find if with_data else self._cache.find_headers
        for _ in range(1 + READ_AHEAD_READS):
            if position > high_water_mark:
                return
            entry = find(self._partition_id, position)
            if entry is not None:
                position = entry.batch.next_transaction_id
                continue
            if position not in reads.under_way:
                if reads.sequels.get(position, 0) < SEQUELS_PROVE:
                    return
                self.want(position, high_water_mark, now, with_data=with_data)
                if position not in reads.under_way:
                    return
            position = TransactionId(position + reads.under_way[position])

    def covers(self, transaction_id: TransactionId, *, with_data: bool = True) -> bool:
        """Whether a read under way asked for the record."""
        return self._records.covers(transaction_id) or (
            not with_data and self._headers.covers(transaction_id)
        )

    def take_started(self) -> list[FetchRecords]:
        """Return `started`, once."""
        started, self.started = self.started, []
        return started

    def end(
        self, first_transaction_id: TransactionId, found: int = 0, *, with_data: bool = True
    ) -> range:
        """A read returned `found` records; return the IDs that it was asked for."""
        reads = self._reads(with_data=with_data)
        count = reads.under_way.pop(first_transaction_id)
        asked = range(first_transaction_id, first_transaction_id + count)
        if 0 < found < count:
            turns = reads.sequels.pop(TransactionId(asked.stop), 0)
            if turns:
                reads.expect_sequel(TransactionId(first_transaction_id + found), turns)
        return asked

    def succeed(self) -> None:
        self._failures = 0
        self.retry_at = None

    def fail(self, now: float) -> None:
        """Start no read for a while, longer with each failure in a row."""
        delay_seconds = RETRY_SECONDS_MIN * 2 ** min(self._failures, 16)
        self.retry_at = now + min(delay_seconds, RETRY_SECONDS_MAX)
        self._failures += 1

    def put_off(self, transaction_id: TransactionId, reason: str, now: float) -> None:
        """Start no read at a record that no replica can give, for a while."""
        self._put_off.pop(transaction_id, None)
        self._put_off[transaction_id] = now + UNREADABLE_SECONDS, reason
        if len(self._put_off) > UNREADABLE_MAX:
            del self._put_off[next(iter(self._put_off))]

    def unreadable(self, transaction_id: TransactionId) -> str | None:
        """Return why a record is put off; None if it is not."""
        found = self._put_off.get(transaction_id)
        return None if found is None else found[1]

    @property
    def unreadable_count(self) -> int:
        """The number of records that are put off."""
        return len(self._put_off)

    @property
    def resumes_at(self) -> float | None:
        """The time at which a read that waits may be started; None if no read waits."""
        if not self._put_off:  # as nearly always
            return self.retry_at
        times = [until for until, _ in self._put_off.values()][:1]
        if self.retry_at is not None:
            times.append(self.retry_at)
        return min(times, default=None)

    def resume(self, now: float) -> bool:
        """End the pauses that are over, also if nobody wants a record any more; return whether one
        was."""
        is_over = self.retry_at is not None and now >= self.retry_at
        if is_over:
            self.retry_at = None
        while self._put_off and now >= next(iter(self._put_off.values()))[0]:
            del self._put_off[next(iter(self._put_off))]
            is_over = True
        return is_over

    def check_invariants(self) -> None:
        assert len(self._put_off) <= UNREADABLE_MAX
        under_way = [*self._records.under_way.values(), *self._headers.under_way.values()]
        assert len(under_way) <= READS_IN_FLIGHT_MAX
        assert all(0 < count <= RECORD_LIST_RECORDS_MAX for count in under_way)
        for reads in (self._records, self._headers):
            assert len(reads.sequels) <= _SEQUELS_MAX

    def _reads(self, *, with_data: bool) -> _Reads:
        return self._records if with_data else self._headers

    @property
    def _is_full(self) -> bool:
        under_way = len(self._records.under_way) + len(self._headers.under_way)
        return under_way >= READS_IN_FLIGHT_MAX
