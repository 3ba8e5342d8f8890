"""One partition as its server sees it: who may append, in what order, and who hears of it.

Owns the lock table, the mounts, the positions of the feeds, and what waits for appends to be
decided. Takes the messages of clients and the outcomes of the store; knows neither sockets nor
replicas. One machine serves one generation, since others may write between two. What holds always:
an append reaches the store only under that generation and after its locks were checked; locks,
cache and feeds move together with a commit; every request that the protocol answers is answered
once what it waits for is decided, also across store sessions.
Source: Waltz Server, "Partition Object"; Client-Server Communication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, assert_never

import numpy as np

from waltz.limits import FEED_FETCH_MIN, LOCK_TABLE_SLOTS, RELEASE_SECONDS_MAX, REQUEST_BYTES
from waltz.record import RecordBatch
from waltz.server.appends import (
    Appends,
    InFlight,
    Senders,
    join_appends,
    locked_out,
    of_batch,
    of_requests,
    refused_all,
    rejected,
)
from waltz.server.backlog import Backlog, request_bytes
from waltz.server.connection import (
    PARTITION_NOT_READY,
    MessagesReceived,
    Mounts,
    Peer,
    answer_without_partition,
)
from waltz.server.feed import Feeds
from waltz.server.feed_cache import FeedCache
from waltz.server.fetches import Fetches
from waltz.server.lock_table import LockTable
from waltz.server.metrics import PartitionCounters, PartitionState
from waltz.server.outbox import Outbox
from waltz.server.partition_events import (
    AppendRecords,
    CloseConnection,
    ConnectionDrained,
    ConnectionLost,
    PartitionEffect,
    PartitionEvent,
    PartitionRevoked,
    ReadFailed,
    RecordsRead,
    ReleaseRequested,
    RequestsDropped,
)
from waltz.server.transaction_data import DataRequests
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.types import NOTHING, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch, DataWanted, ReadRequest, Reason
from waltz.wire.client_protocol import (
    AppendRequest,
    ClientMessage,
    FeedRequest,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    MountRequest,
    MountResponse,
    MountState,
    TransactionDataRequest,
)

STALE_CONNECTION = "stale connection"
STALE_GENERATION = "stale generation"


class _Barrier(NamedTuple):
    """A request that is answered once all appends up to `arrival` are decided."""

    arrival: int
    peer: Peer
    request: MountRequest | FlushRequest


class ServerPartition:
    """The machine of one partition on one server."""

    def __init__(
        self,
        partition_id: PartitionId,
        generation: Generation,
        cache: FeedCache,
        full: Set[int] = frozenset(),
        *,
        feed_fetch_min: int = FEED_FETCH_MIN,
        lock_table_slots: int = LOCK_TABLE_SLOTS,
    ) -> None:
        """`cache` and `full` are those of the whole server. `full` holds, at every moment, the
        connections that have more unsent bytes than they should: they are handed nothing that can
        wait, and `ConnectionDrained` follows. Told by events, each partition would hand over once
        more before it heard."""
        self.partition_id = partition_id
        self.generation = generation
        self.closed = False
        self.is_open = False
        """Whether the store has a session: the partition's health."""
        self.high_water_mark: TransactionId | None = None
        """The highest ID known to be committed; None until the store has opened once."""
        self._cache = cache
        self._fetches = Fetches(partition_id, cache)
        self._feeds = Feeds(partition_id, cache, self._fetches, feed_fetch_min)
        self._mounts = Mounts()
        self._locks = LockTable(NOTHING, lock_table_slots)
        self._full = full
        self._backlog = Backlog()
        self._data_requests = DataRequests(partition_id, cache, self._fetches, self._backlog)
        self._arrivals: list[Appends] = []
        self._arrival_count = 0
        self._waiting: Appends | None = None
        self._waiting_until = 0
        self._in_flight = InFlight()
        self._barriers_behind: deque[_Barrier] = deque()
        self._barriers: deque[tuple[int, _Barrier]] = deque()
        self._early_questions: list[tuple[int, HighWaterMarkRequest]] = []
        self._release_at: float | None = None
        self._outbox = Outbox()
        self._effects: list[PartitionEffect] = []
        self._counters = PartitionCounters()
        self._reason = "it has had no store session yet"
        self.deadline: float | None = None

    def state(self, failures: int = 0) -> PartitionState:
        return PartitionState(
            partition_id=self.partition_id,
            generation=self.generation,
            reason=None if self.is_open else self._reason,
            high_water_mark=self.high_water_mark,
            mounts=len(self._mounts),
            feeds=len(self._feeds),
            pending_requests=self._backlog.count,
            pending_bytes=self._backlog.byte_count,
            data_requests=len(self._data_requests),
            failures=failures,
            counters=replace(self._counters),
        )

    @property
    def pending_count(self) -> int:
        """Appends, mounts and flushes that wait for the store."""
        return self._backlog.count

    @property
    def pending_bytes(self) -> int:
        return self._backlog.byte_count

    @property
    def mounts(self) -> Mounts:
        """Who is mounted; once this has closed, who was in the end."""
        return self._mounts

    def step(self, events: Sequence[PartitionEvent], now: float) -> Sequence[PartitionEffect]:
        """Take `events` in order; what they make possible is done once, at the end."""
        for event in events:
            self._take(event, now)
            if self.closed:
                break
        else:
            self._advance(now)
        effects, self._effects = self._effects, []
        effects += self._outbox.take()
        effects += self._backlog.take_effects()
        return effects

    def check_invariants(self) -> None:
        self._locks.check_invariants()
        self._fetches.check_invariants()
        self._feeds.check_invariants(
            NOTHING if self.high_water_mark is None else self.high_water_mark
        )
        assert not self._arrivals
        assert len(self._in_flight) == self._locks.issued - self._locks.decided
        self._backlog.check_invariants()
        waiting = self._waiting
        if not self.closed:
            small = len(self._barriers) + len(self._barriers_behind)
            waiting_bytes = 0 if waiting is None else int(waiting.senders.byte_counts.sum())
            waiting_count = 0 if waiting is None else len(waiting)
            assert self._backlog.count == len(self._in_flight) + waiting_count + small
            assert self._backlog.byte_count == (
                waiting_bytes + self._in_flight.byte_count + REQUEST_BYTES * small
            )
        if waiting is not None:
            assert len(waiting)
            assert np.all(np.diff(waiting.arrivals) > 0)
            assert self._waiting_until > self._locks.decided
        assert all(ticket > self._locks.decided for ticket, _ in self._barriers)
        assert not self._early_questions or self.high_water_mark is None

    # Events

    def _take(self, event: PartitionEvent, now: float) -> None:
        match event:
            case MessagesReceived(peer, messages):
                self._receive(peer, messages)
            case Committed(batch):
                self._commit(batch)
            case AppendsFailed(count):
                self._counters.appends_failed += count
                self._locks.fail(count)
                for _, failed in self._decide(count):
                    self._tell(failed, Reason.NOT_COMMITTED)
            case StoreOpened(_, high_water_mark):
                self._open(high_water_mark)
            case StoreClosed(reason):
                self.is_open = False
                self._reason = reason
            case RecordsRead(first_transaction_id, batch):
                self._end_read(first_transaction_id, batch, "the store has no such record", now)
            case ReadFailed(first_transaction_id, reason):
                self._end_read(first_transaction_id, None, reason, now)
            case ConnectionDrained(connection_id):
                self._feeds.resume(connection_id)
                self._data_requests.resume(connection_id)
            case ConnectionLost(connection_id):
                self._lose(connection_id)
            case PartitionRevoked(comes_back):
                self._close()
                if comes_back:
                    self._cut_off_mounted()
            case ReleaseRequested():
                self._release_at = now + RELEASE_SECONDS_MAX
            case _:
                assert_never(event)

    def _receive(self, peer: Peer, messages: Sequence[ClientMessage]) -> None:
        is_valid = self._mounts.is_valid(peer)
        connection_id = peer.connection_id
        unheard = stale = 0
        requests: list[AppendRequest] = []
        for message in messages:
            if isinstance(message, AppendRequest | AppendBatch):
                reason = self._why_not(message, is_valid)
                if reason is None and isinstance(message, AppendRequest):
                    requests.append(message)
                    continue
            self._arrive(requests, connection_id)
            requests = []
            if not isinstance(message, AppendRequest | AppendBatch):
                unheard += not self._receive_other(peer, message, is_valid)
                is_valid = self._mounts.is_valid(peer)
            elif reason is not None:
                count = self._refuse_unseen(connection_id, message, reason)
                stale += count if reason is Reason.STALE_GENERATION else 0
                unheard += 0 if reason is Reason.STALE_GENERATION else count
            elif isinstance(message, AppendBatch):
                self._arrive_together(of_batch(message, connection_id, self._arrival_count + 1))
        self._arrive(requests, connection_id)
        self._counters.requests_dropped += unheard + stale
        if unheard:
            self._effects.append(RequestsDropped(connection_id, STALE_CONNECTION, unheard))
        if stale:
            self._effects.append(RequestsDropped(connection_id, STALE_GENERATION, stale))

    def _why_not(self, message: ClientMessage, is_valid: bool) -> Reason | None:
        """Return why appends are not even looked at; None if they are.

        The generation is checked before any lock: what is stale must not hold up or inform anybody.
        Source: Client-Server Communication, "Generation Number".
        """
        if not is_valid:
            return Reason.NOT_MOUNTED
        if self._release_at is not None:
            return Reason.STOPPING
        if message.request_id.generation != self.generation:
            return Reason.STALE_GENERATION
        return None

    def _refuse_unseen(
        self, connection_id: int, message: AppendRequest | AppendBatch, reason: Reason
    ) -> int:
        """Drop appends, and tell so if the client's version has a word for it; return how many."""
        self._drop(connection_id, message)
        if isinstance(message, AppendRequest):
            return 1
        self._outbox.add(connection_id, refused_all(message, reason))
        return len(message.appends)

    def _arrive(self, requests: Sequence[AppendRequest], connection_id: int) -> None:
        if requests:
            self._arrive_together(of_requests(requests, connection_id, self._arrival_count + 1))

    def _arrive_together(self, appends: Appends) -> None:
        """Take appends of one connection."""
        self._arrival_count += len(appends)
        self._arrivals.append(appends)
        senders = appends.senders
        byte_count = int(senders.byte_counts.sum())
        self._backlog.add(int(senders.connection_ids[0]), byte_count, len(appends))

    def _receive_other(self, peer: Peer, message: ClientMessage, is_valid: bool) -> bool:
        """Take a message that is no append; return False if it does not count."""
        mark, connection_id = self.high_water_mark, peer.connection_id
        match message:
            case MountRequest() if self._mount(peer, message):
                self._wait_for_decisions(peer, message)
            case FlushRequest():
                self._wait_for_decisions(peer, message)
            case TransactionDataRequest() | ReadRequest() if mark is not None:
                self._data_requests.ask(connection_id, message)
            case HighWaterMarkRequest() if mark is None:
                self._early_questions.append((connection_id, message))
            case _:
                self._drop(connection_id, message)
                return self._answer_at_once(peer, message, is_valid)
        return True

    def _answer_at_once(self, peer: Peer, message: ClientMessage, is_valid: bool) -> bool:
        mark, connection_id = self.high_water_mark, peer.connection_id
        match message:
            case MountRequest():
                pass  # told why not
            case FeedRequest():
                if not is_valid:
                    return False
                self._feed(peer, message)
            case DataWanted():
                self._feeds.send_data(connection_id)
            case TransactionDataRequest() | ReadRequest():
                self._answer_absent(connection_id, message)
            case HighWaterMarkRequest():
                assert mark is not None
                self._answer_mark(connection_id, message, mark)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a partition")
        return True

    def _wait_for_decisions(self, peer: Peer, request: MountRequest | FlushRequest) -> None:
        self._backlog.add(peer.connection_id, REQUEST_BYTES)
        self._barriers_behind.append(_Barrier(self._arrival_count, peer, request))

    def _mount(self, peer: Peer, request: MountRequest) -> bool:
        """Register the connection; the feed starts when all earlier appends are decided. False: it
        has its answer already.

        A connection that a newer one outranks is told NOT_READY, where the original says nothing:
        a client whose newer connection is dead without anybody knowing asks again until it is.
        Source: Client-Server Communication, "Mounting a partition".
        """
        replaced = self._mounts.mount(peer, request.request_id.generation)
        if replaced is not None:
            self._feeds.remove(replaced)
        if not self._mounts.is_valid(peer):
            self._effects.append(RequestsDropped(peer.connection_id, STALE_CONNECTION, 1))
            self._answer_mount(peer, request.request_id, MountState.NOT_READY)
        elif not self.is_open or request.request_id.generation > self.generation:
            # A client that knows of a later owner may have written there. From here it would learn
            # of an end of the log before that, and write again what is in the log already.
            self._answer_mount(peer, request.request_id, MountState.NOT_READY)
        elif request.client_high_water_mark < NOTHING:
            self._reject(peer, "mount", request.client_high_water_mark)
        else:
            self._feeds.expect_mount(peer, request.request_id)
            return True
        return False

    def _feed(self, peer: Peer, request: FeedRequest) -> None:
        mark = self.high_water_mark
        if mark is None or not NOTHING <= request.client_high_water_mark <= mark:
            self._reject(peer, "feed request", request.client_high_water_mark)
        else:
            self._feeds.request(peer, request, mark)

    def _commit(self, batch: RecordBatch) -> None:
        """Locks, cache and feeds move together."""
        count = len(batch)
        self._counters.commits += count
        self._locks.commit(batch.first_transaction_id, count)
        self._decide(count)
        self._cache.add(self.partition_id, batch)
        assert self.high_water_mark is not None, "a commit before the first store session"
        if batch.last_transaction_id > self.high_water_mark:
            self.high_water_mark = batch.last_transaction_id
            self._feeds.wake_at_head()

    def _open(self, high_water_mark: TransactionId) -> None:
        self.is_open = True
        self._fetches.succeed()
        if self.high_water_mark is None or high_water_mark > self.high_water_mark:
            # Written by an earlier owner, with locks that nobody here has seen (SV-10).
            self._locks.raise_marks(high_water_mark)
            self.high_water_mark = high_water_mark
            self._feeds.wake_at_head()
        questions, self._early_questions = self._early_questions, []
        for connection_id, request in questions:
            self._backlog.drop(connection_id, REQUEST_BYTES)
            self._answer_mark(connection_id, request, self.high_water_mark)
        self._wake_fetching()

    def _end_read(
        self,
        first_transaction_id: TransactionId,
        batch: RecordBatch | None,
        reason: str,
        now: float,
    ) -> None:
        asked = self._fetches.end(first_transaction_id)
        if batch is not None and len(batch):
            assert batch.first_transaction_id == first_transaction_id
            self._cache.add(self.partition_id, batch)
            self._fetches.succeed()
        else:
            self._fetches.fail(now)
            self._data_requests.fail(asked, reason, self._outbox)
        self._wake_fetching()

    def _lose(self, connection_id: int) -> None:
        self._mounts.remove(connection_id)
        self._feeds.forget(connection_id)
        self._data_requests.remove(connection_id)
        others = [q for q in self._early_questions if q[0] != connection_id]
        if dropped := len(self._early_questions) - len(others):
            self._backlog.drop(connection_id, dropped * REQUEST_BYTES)
            self._early_questions = others

    def _close(self) -> None:
        self.closed = True
        for barrier in (*(barrier for _, barrier in self._barriers), *self._barriers_behind):
            self._answer_absent(barrier.peer.connection_id, barrier.request)
        # What the store has not seen is not in the log; what it has, its next owner decides.
        for appends in (*([] if self._waiting is None else [self._waiting]), *self._arrivals):
            self._tell(appends.senders, Reason.NOT_HERE)
        self._arrivals.clear()
        self._data_requests.fail_all(PARTITION_NOT_READY, self._outbox)
        self._cache.drop(self.partition_id)

    def _cut_off_mounted(self) -> None:
        for connection_id in self._mounts.connection_ids():
            self._effects.append(
                CloseConnection(
                    connection_id,
                    f"partition {self.partition_id} has left generation {self.generation}",
                )
            )

    # What the events make possible

    def _advance(self, now: float) -> None:
        self._admit()
        self._pass_barriers()
        if self._fetches.retry_at is not None and now >= self._fetches.retry_at:
            # Over also if nobody wants a record any more, or this would be stepped without end.
            self._fetches.retry_at = None
            self._wake_fetching()
        if self.high_water_mark is not None:
            self._feeds.serve(self.high_water_mark, self._full, self._outbox, now)
            self._data_requests.serve(self.high_water_mark, self._full, self._outbox, now)
        self._effects += self._fetches.take_started()
        is_at_rest = not self._in_flight and self._waiting is None
        if self._release_at is not None and (is_at_rest or now >= self._release_at):
            self._close()
            return
        has_work = self._feeds.has_work or self._data_requests.has_work
        deadlines = (self._fetches.retry_at, self._release_at, now if has_work else None)
        self.deadline = min((d for d in deadlines if d is not None), default=None)

    def _admit(self) -> None:
        """Check the locks of what has arrived and of what need not wait any longer."""
        arrived, self._arrivals = self._arrivals, []
        if self._waiting is not None and self._locks.decided >= self._waiting_until:
            self._locks.forget_reservations()
            arrived = [self._waiting, *arrived]
            self._waiting = None
        if not arrived:
            return
        candidates = join_appends(arrived)
        admission = self._locks.admit(candidates.locks)
        if admission.waiting or admission.refused:
            is_waiting = np.zeros(len(candidates), np.bool_)
            is_waiting[list(admission.waiting)] = True
            is_refused = np.zeros(len(candidates), np.bool_)
            is_refused[list(admission.refused)] = True
            if admission.waiting:
                self._wait(candidates.pick(is_waiting), min(admission.waiting.values()))
            if admission.refused:
                self._refuse(candidates, admission.refused)
            candidates = candidates.pick(~(is_waiting | is_refused))
        if len(candidates):
            self._in_flight.add(candidates.senders)
            self._counters.appends += len(candidates)
            self._counters.appended_bytes += sum(map(len, candidates.records.data))
            self._effects.append(AppendRecords(candidates.records))

    def _wait(self, appends: Appends, until: int) -> None:
        """Check these again once the ticket `until` is decided, those that wait already first."""
        if self._waiting is None:
            self._waiting, self._waiting_until = appends, until
        else:
            self._waiting = join_appends([self._waiting, appends])
            self._waiting_until = min(self._waiting_until, until)

    def _refuse(self, appends: Appends, refused: Mapping[int, TransactionId]) -> None:
        """Tell whose locks are newer, in order: what has come in batches together."""
        self._counters.lock_failures += len(refused)
        senders = appends.senders
        locked = {}
        for index, transaction_id in refused.items():
            self._backlog.settle(
                int(senders.connection_ids[index]), int(senders.byte_counts[index])
            )
            is_told = bool(senders.is_told[index])
            lock = self._locks.refusing_lock(appends.locks, index) if is_told else 0
            locked[index] = transaction_id, lock
        for connection_id, message in locked_out(senders, locked):
            self._outbox.add(connection_id, message)

    def _tell(self, senders: Senders, reason: Reason) -> None:
        for connection_id, rejection in rejected(senders, reason):
            self._outbox.add(connection_id, rejection)

    def _pass_barriers(self) -> None:
        """Answer the mounts and flushes before which nothing is undecided any more."""
        if self.high_water_mark is None:
            return
        behind = self._barriers_behind
        waiting = self._waiting
        oldest_waiting = self._arrival_count + 1 if waiting is None else int(waiting.arrivals[0])
        while behind and behind[0].arrival < oldest_waiting:
            # All earlier appends have gone to the store: the newest ticket decides.
            self._barriers.append((self._locks.issued, behind.popleft()))
        while self._barriers and self._barriers[0][0] <= self._locks.decided:
            _, (_, peer, request) = self._barriers.popleft()
            self._backlog.settle(peer.connection_id, REQUEST_BYTES)
            if isinstance(request, FlushRequest):
                response = FlushResponse(request.request_id, self.high_water_mark)
                self._outbox.add(peer.connection_id, response)
            else:
                self._start_feed(peer, request, self.high_water_mark)

    def _start_feed(
        self, peer: Peer, request: MountRequest, high_water_mark: TransactionId
    ) -> None:
        missed = high_water_mark - request.client_high_water_mark
        if not self._feeds.is_mounting(peer.connection_id, request.request_id):
            self._answer_mount(peer, request.request_id, MountState.NOT_READY)
        elif missed < 0:
            self._feeds.remove(peer.connection_id)
            self._answer_mount(peer, request.request_id, MountState.CLIENT_AHEAD)
        else:
            next_transaction_id = TransactionId(request.client_high_water_mark + 1)
            self._feeds.mount(peer.connection_id, next_transaction_id, missed)

    def _wake_fetching(self) -> None:
        self._feeds.wake_fetching()
        self._data_requests.wake_fetching()

    def _decide(self, count: int) -> list[tuple[int, Senders]]:
        """So many of the oldest appends that the store has are decided; return whose they are."""
        decided = self._in_flight.decide(count)
        for connection_id, senders in decided:
            self._backlog.settle(connection_id, int(senders.byte_counts.sum()), len(senders))
        return decided

    def _drop(self, connection_id: int, message: ClientMessage) -> None:
        self._backlog.drop(connection_id, request_bytes(message))

    # Answers

    def _answer_mount(self, peer: Peer, request_id: RequestId, state: MountState) -> None:
        self._outbox.add(peer.connection_id, MountResponse(request_id, state))

    def _answer_mark(
        self, connection_id: int, request: HighWaterMarkRequest, mark: TransactionId
    ) -> None:
        self._outbox.add(connection_id, HighWaterMarkResponse(request.request_id, mark))

    def _answer_absent(self, connection_id: int, request: ClientMessage) -> None:
        answer = answer_without_partition(request)
        if answer is not None:
            self._outbox.add(connection_id, answer)

    def _reject(self, peer: Peer, what: str, client_high_water_mark: TransactionId) -> None:
        self._effects.append(
            CloseConnection(
                peer.connection_id,
                f"{what} of client {peer.client_id} from {client_high_water_mark}; expected"
                f" {NOTHING} to {self.high_water_mark} in partition {self.partition_id}",
            )
        )
