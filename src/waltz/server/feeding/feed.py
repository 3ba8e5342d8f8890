"""The position of each client in a partition's log, and the order in which clients are fed.

A feed is pulled: a mount grants the transactions that the client misses, a feed request at least
the number that the server is set to, and when the grant is used up the client is told and asks
again. Clients near the head are served in every step; those further behind take turns, a bounded
number per step, so that a thousand of them cannot delay a commit's way to the rest. A client whose
connection is full is left out until it has room. Knows nothing of locks, appends or sockets.
Source: Client-Server Communication, "Feed Request"; Waltz Server, "Partition Object".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final, NamedTuple

from waltz.limits import FEED_FETCH_MIN, FEED_RUN_RECORDS_MAX, WRITE_BUFFER_BYTES_HIGH
from waltz.server.feeding.feed_cache import FeedCache, feed_of
from waltz.server.feeding.fetches import Fetches
from waltz.server.feeding.outbox import Outbox
from waltz.types import PartitionId, RequestId, TransactionId
from waltz.wire.client_protocol import (
    FeedRequest,
    FeedSuspended,
    MountResponse,
    MountState,
)
from waltz.wire.logical_link import Shared

FEED_RUNS_PER_STEP_MAX: Final = 16
"""Runs for clients far behind between two looks at what else has arrived."""


class FeedPlace(IntEnum):
    """The queue of a feed, by what the feed waits for."""

    IDLE = 0  # for the client to ask
    AT_HEAD = auto()  # for the next commit
    NEAR = auto()  # for this step
    FAR = auto()  # for its turn
    FETCHING = auto()  # for records from the store
    BLOCKED = auto()  # for its connection to take more
    REMOVED = auto()  # for nothing


@dataclass(slots=True, eq=False)
class Feed:
    """One client's position: `quota` transactions from `next_transaction_id` on are owed to it."""

    connection_id: int
    request_id: RequestId
    next_transaction_id: TransactionId
    quota: int
    is_mounting: bool
    place: FeedPlace = FeedPlace.IDLE
    next_request: FeedRequest | None = None
    """A feed request that came before the mount was answered."""
    replaced_count: int = 0
    """Requests that this one has replaced, and that are owed their word of the end as well."""


class Feeds:
    """All feeds of one partition, by connection."""

    def __init__(
        self,
        partition_id: PartitionId,
        cache: FeedCache,
        fetches: Fetches,
        fetch_min: int = FEED_FETCH_MIN,
    ) -> None:
        self._fetch_min = fetch_min
        self._partition_id = partition_id
        self._cache = cache
        self._fetches = fetches
        self._feeds: dict[int, Feed] = {}
        self._with_data: set[int] = set()
        """Connections that want the data along with the feed."""
        # A feed that has moved on stays in the queue it left; its place tells.
        self._queues: list[deque[Feed]] = [deque() for _ in FeedPlace]

    def __len__(self) -> int:
        return len(self._feeds)

    def expect_mount(self, connection_id: int, request_id: RequestId) -> None:
        """Feed the client nothing until it is known where its mount begins and ends."""
        self.remove(connection_id)
        self._feeds[connection_id] = Feed(connection_id, request_id, TransactionId(0), 0, True)

    def mount(self, connection_id: int, next_transaction_id: TransactionId, quota: int) -> None:
        """Owe the client exactly `quota` transactions and then the word that it is mounted.

        The mount was expected, and the connection has not mounted again since.
        """
        feed = self._feeds[connection_id]
        feed.next_transaction_id = next_transaction_id
        feed.quota = quota
        self._start(feed)

    def is_mounting(self, connection_id: int, request_id: RequestId) -> bool:
        """Whether that mount is the connection's last and has not been answered."""
        feed = self._feeds.get(connection_id)
        return feed is not None and feed.is_mounting and feed.request_id == request_id

    def request(
        self, connection_id: int, request: FeedRequest, high_water_mark: TransactionId
    ) -> None:
        """Owe the client all that it misses or the least that is granted, whichever is more.

        A request replaces the one before it, except that a mount is finished first. Each of them
        is answered by the word of its end: clients count how many of theirs are under way.
        """
        feed = self._feeds.get(connection_id)
        if feed is not None and feed.is_mounting:
            feed.replaced_count += feed.next_request is not None
            feed.next_request = request
            return
        replaced_count = 0 if feed is None else feed.replaced_count + bool(feed.quota)
        self.remove(connection_id)
        missed = high_water_mark - request.client_high_water_mark
        self._feeds[connection_id] = feed = Feed(
            connection_id,
            request.request_id,
            TransactionId(request.client_high_water_mark + 1),
            max(missed, self._fetch_min),
            False,
            replaced_count=replaced_count,
        )
        self._start(feed)

    def remove(self, connection_id: int) -> None:
        feed = self._feeds.pop(connection_id, None)
        if feed is not None:
            feed.place = FeedPlace.REMOVED

    def sent(self, connection_id: int) -> TransactionId | None:
        """Return the last transaction that the connection was sent, or has said it has; None if
        that is not known yet."""
        feed = self._feeds.get(connection_id)
        if feed is None or (feed.is_mounting and feed.place is FeedPlace.IDLE):
            return None
        return TransactionId(feed.next_transaction_id - 1)

    def send_data(self, connection_id: int) -> None:
        """From now on the connection is sent the data, too."""
        self._with_data.add(connection_id)

    def forget(self, connection_id: int) -> None:
        """The connection is gone."""
        self.remove(connection_id)
        self._with_data.discard(connection_id)

    def resume(self, connection_id: int) -> None:
        """The connection takes more."""
        feed = self._feeds.get(connection_id)
        if feed is not None and feed.place is FeedPlace.BLOCKED:
            self._enqueue(feed, FeedPlace.FAR)

    def wake_at_head(self) -> None:
        """There is a new commit."""
        self._move_all(FeedPlace.AT_HEAD, FeedPlace.NEAR)

    def wake_fetching(self) -> None:
        """A read has ended or may be started again."""
        self._move_all(FeedPlace.FETCHING, FeedPlace.FAR)

    def serve(
        self, high_water_mark: TransactionId, blocked: Set[int], outbox: Outbox, now: float
    ) -> bool:
        """Send all feeds near the head, and some of the others, what they are owed. Return whether
        a feed waits for its next turn and nothing else."""
        near, far = self._queues[FeedPlace.NEAR], self._queues[FeedPlace.FAR]
        if not near and not far:
            return False
        turn = _Turn(self._partition_id, self._cache, high_water_mark, blocked, outbox, now)
        waiting = [*near]
        near.clear()
        for feed in waiting:
            if feed.place is FeedPlace.NEAR:
                self._serve(feed, turn)
        for _ in range(min(len(far), FEED_RUNS_PER_STEP_MAX)):
            feed = far.popleft()
            if feed.place is not FeedPlace.FAR:
                continue
            if feed.connection_id in turn.with_data:
                far.append(feed)  # its data fill a connection in one step
            else:
                self._serve(feed, turn)
        if not near and not far:
            return False
        return any(feed.place is FeedPlace.NEAR for feed in near) or any(
            feed.place is FeedPlace.FAR for feed in far
        )

    def check_invariants(self, high_water_mark: TransactionId) -> None:
        for connection_id, feed in self._feeds.items():
            assert feed.connection_id == connection_id
            assert feed.place is not FeedPlace.REMOVED
            assert feed.place is not FeedPlace.IDLE or feed.quota == 0
            assert 0 <= feed.next_transaction_id <= high_water_mark + 1
            if feed.place not in (FeedPlace.IDLE, FeedPlace.BLOCKED):
                assert sum(queued is feed for queued in self._queues[feed.place]) == 1
            if feed.place is FeedPlace.AT_HEAD:
                assert feed.next_transaction_id == high_water_mark + 1
            if feed.is_mounting:
                assert feed.next_transaction_id + feed.quota <= high_water_mark + 1

    def _serve(self, feed: Feed, turn: _Turn) -> None:
        """Send one run to `feed` and put it where it waits next."""
        if feed.connection_id in turn.blocked:
            feed.place = FeedPlace.BLOCKED
            return
        with_data = feed.connection_id in self._with_data
        if feed.quota and feed.next_transaction_id <= turn.high_water_mark:
            run = turn.run(feed.next_transaction_id, feed.quota, with_data)
            if run is None:
                self._fetches.want(
                    feed.next_transaction_id, turn.high_water_mark, turn.now, with_data=with_data
                )
                self._enqueue(feed, FeedPlace.FETCHING)
                return
            parts, count = run
            for part in parts:
                turn.outbox.add(feed.connection_id, part)
            if with_data:
                turn.with_data.add(feed.connection_id)
            feed.next_transaction_id = TransactionId(feed.next_transaction_id + count)
            feed.quota -= count
        if not feed.quota:
            self._finish(feed, turn)
        elif feed.next_transaction_id > turn.high_water_mark:
            self._enqueue(feed, FeedPlace.AT_HEAD)
        else:
            self._fetches.go_on(
                feed.next_transaction_id, turn.high_water_mark, turn.now, with_data=with_data
            )
            self._enqueue(feed, FeedPlace.FAR)

    def _finish(self, feed: Feed, turn: _Turn) -> None:
        """Tell the client that it was sent all it was owed."""
        feed.place = FeedPlace.IDLE
        if not feed.is_mounting:
            for _ in range(1 + feed.replaced_count):
                turn.outbox.add(feed.connection_id, FeedSuspended(feed.request_id))
            feed.replaced_count = 0
            return
        feed.is_mounting = False
        turn.outbox.add(feed.connection_id, MountResponse(feed.request_id, MountState.READY))
        if feed.next_request is not None:
            request, feed.next_request = feed.next_request, None
            self.request(feed.connection_id, request, turn.high_water_mark)

    def _enqueue(self, feed: Feed, place: FeedPlace) -> None:
        feed.place = place
        self._queues[place].append(feed)

    def _start(self, feed: Feed) -> None:
        self._enqueue(feed, FeedPlace.NEAR if feed.quota <= FEED_RUN_RECORDS_MAX else FeedPlace.FAR)

    def _move_all(self, place: FeedPlace, target: FeedPlace) -> None:
        waiting = self._queues[place]
        if not waiting:
            return
        for feed in waiting:
            if feed.place is place:
                self._enqueue(feed, target)
        waiting.clear()


class _Run(NamedTuple):
    parts: Sequence[Shared]
    size: int


class _Turn:
    """One round of serving. Runs are cut once in it for all feeds that are owed the same."""

    def __init__(
        self,
        partition_id: PartitionId,
        cache: FeedCache,
        high_water_mark: TransactionId,
        blocked: Set[int],
        outbox: Outbox,
        now: float,
    ) -> None:
        self.high_water_mark = high_water_mark
        self.blocked = blocked
        self.outbox = outbox
        self.now = now
        self.with_data: set[int] = set()
        """The connections that were sent a run with data in this round."""
        self._partition_id = partition_id
        self._cache = cache
        self._runs: dict[tuple[TransactionId, int, bool], _Run] = {}

    def run(self, first: TransactionId, quota: int, with_data: bool) -> _Run | None:
        """Return at most `quota` transactions from `first` on; None if there are none here.

        Feeds at the same position with the same claim share the same parts.
        """
        count_max = min(quota, self.high_water_mark - first + 1, FEED_RUN_RECORDS_MAX)
        key = (first, count_max, with_data)
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = self._cut_run(first, count_max, with_data)
        return run if run.parts else None

    def _cut_run(self, first: TransactionId, count_max: int, with_data: bool) -> _Run:
        """Return at most `count_max` transactions, which a connection can take at once: without
        data any, with data about `WRITE_BUFFER_BYTES_HIGH`."""
        parts: list[Shared] = []
        position, end = first, first + count_max
        size = 0
        while position < end and size < WRITE_BUFFER_BYTES_HIGH:
            if not with_data:
                entry = self._cache.find_headers(self._partition_id, position)
                if entry is None or (parts and end < entry.batch.next_transaction_id):
                    break  # a batch that is sent as a whole is encoded once
                count = min(end, entry.batch.next_transaction_id) - position
                parts.append(self._cache.feed(self._partition_id, entry, position, count))
            else:
                records = self._cache.find(self._partition_id, position)
                if records is None:
                    break
                count = min(end, records.batch.next_transaction_id) - position
                batch = records.batch.head(position, count, WRITE_BUFFER_BYTES_HIGH - size)
                if parts and size + len(batch.block) > WRITE_BUFFER_BYTES_HIGH:
                    break
                count = len(batch)
                parts.append(feed_of(self._partition_id, batch, with_data=True))
                size += len(batch.block)
            position = TransactionId(position + count)
        return _Run(parts, position - first)
