"""One partition as its server sees it: which clients may append, in what order, and the feed.

Owns the lock table, the mounts, the positions of the feeds, and what waits for appends to be
decided. Takes the messages of clients and the outcomes of the store; knows neither sockets nor
replicas. One machine serves one generation, since others may write between two. What holds always:
an append reaches the store only under that generation and after its locks were checked; locks,
cache and feeds move together with a commit; every request that the protocol answers is answered
once what it waits for is decided, also across store sessions.
Source: Waltz Server, "Partition Object"; Client-Server Communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from math import inf
from typing import Final, assert_never

from waltz.limits import FEED_FETCH_MIN, LOCK_TABLE_SLOTS, REQUEST_BYTES
from waltz.record import RecordBatch, empty_batch
from waltz.server.appends.appends import Senders, refused_all, rejected
from waltz.server.appends.barriers import Barrier, Barriers
from waltz.server.appends.lock_table import LockTable
from waltz.server.appends.outcomes import Outcomes
from waltz.server.appends.refusals import Refusals
from waltz.server.appends.stage_seconds import StageSeconds
from waltz.server.appends.undecided import NOTHING_ADMITTED, Admitted, Undecided
from waltz.server.clients.client_connection import (
    PARTITION_NOT_READY,
    ClientPeer,
    MessagesReceived,
    Mounts,
    answer_without_partition,
)
from waltz.server.clients.early_requests import EarlyRequests
from waltz.server.clients.mounted_clients import PartitionFacts
from waltz.server.commit_ages import CommitAges, Lag
from waltz.server.feeding.backlog import Backlog, request_bytes
from waltz.server.feeding.feed import Feeds
from waltz.server.feeding.feed_cache import FeedCache
from waltz.server.feeding.fetches import Fetches
from waltz.server.feeding.outbox import Outbox
from waltz.server.feeding.transaction_data import DataRequests
from waltz.server.server_metrics import ServerPartitionCounters, ServerPartitionState
from waltz.server.server_partition_events import (
    AppendToStore,
    ClientMounted,
    CloseClientConnection,
    ConnectionDrained,
    ConnectionLost,
    MountWithdrawn,
    PartitionEffect,
    PartitionEvent,
    PartitionRevoked,
    RecordsRead,
    ReleaseRequested,
    RequestsDropped,
    StoreReadFailed,
)
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.types import NO_SESSION, NOTHING, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import (
    AppendBatch,
    DataWanted,
    HeadersRequest,
    OutcomeRequest,
    OutcomeResponse,
    ReadRequest,
    Reason,
)
from waltz.wire.client_protocol import (
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
from waltz.wire.clients_protocol import PartitionMark

RELEASE_SECONDS_MAX: Final = 5.0
"""A server that stops waits at most this long for its undecided appends."""

STALE_CONNECTION = "stale connection"
REPLACED = "a newer connection of its client has taken its place"
REPEATED = "it repeats what another connection has sent"
NO_SUCH_RECORD = "the store has no such record"
STALE_GENERATION = "stale generation"


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
        self.session_id = NO_SESSION
        """The store session that was opened last."""
        self._cache = cache
        self._fetches = Fetches(partition_id, cache)
        self._feeds = Feeds(partition_id, cache, self._fetches, feed_fetch_min)
        self._mounts = Mounts()
        self._locks = LockTable(NOTHING, lock_table_slots)
        self._full = full
        self._backlog = Backlog()
        self._data_requests = DataRequests(partition_id, cache, self._fetches, self._backlog)
        self._undecided = Undecided(self._locks, self._backlog)
        self._barriers = Barriers()
        self._outcomes = Outcomes(partition_id, cache, self._fetches)
        self._early = EarlyRequests()
        self._release_at: float | None = None
        self._outbox = Outbox()
        self._effects: list[PartitionEffect] = []
        self._commit_ages = CommitAges()
        self._counters = ServerPartitionCounters()
        self._reason = "it has had no store session yet"
        self.deadline: float | None = None

    def state(self, failures: int = 0) -> ServerPartitionState:
        return ServerPartitionState(
            partition_id=self.partition_id,
            generation=self.generation,
            reason=None if self.is_open else self._reason,
            high_water_mark=self.high_water_mark,
            mounts=len(self._mounts),
            feeds=len(self._feeds),
            pending_requests=self._backlog.count,
            pending_bytes=self._backlog.byte_count,
            data_requests=len(self._data_requests),
            unreadable=self._fetches.unreadable_count,
            failures=failures,
            is_full=self._backlog.is_full,
            append_seconds=self._undecided.seconds,
            counters=replace(self._counters),
        )

    def facts(self, now: float) -> PartitionFacts:
        """Return what operators are told of the partition's clients."""
        mark = PartitionMark(self.partition_id, self.generation, self.high_water_mark)
        mounts = self._mounts.facts(self._feeds.sent)
        return PartitionFacts(mark, mounts, lambda applied: self.lag_of(applied, now))

    def lag_of(self, mark: TransactionId, now: float) -> Lag | None:
        """Return how long ago the first transaction after `mark` was committed, if known."""
        return self._commit_ages.lag_of(mark, self.high_water_mark, now)

    @property
    def append_seconds(self) -> StageSeconds:
        """The durations so far; the shell adds those of the last stage."""
        return self._undecided.seconds

    @property
    def pending_count(self) -> int:
        """Appends, mounts and flushes that wait for the store."""
        return self._backlog.count

    @property
    def refusals(self) -> Refusals:
        """The appends that were refused for their locks."""
        return self._undecided.refusals

    @property
    def mounts(self) -> Mounts:
        """The clients that are mounted; once closed, those that were in the end."""
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

    def answers_at_hand(self, received: MessagesReceived) -> Sequence[ClientMessage]:
        """Return what a step with `received` would answer, if it asks for nothing but data that
        the cache has; empty: a step is needed. Changes nothing, and costs less than a step."""
        peer, mark = received.peer, self.high_water_mark
        if mark is None or self.closed or peer.connection_id in self._full:
            return ()
        if not self._mounts.is_valid(peer) and self._mounts.is_repeated(peer):
            return ()
        return self._data_requests.answers_at_hand(received.messages, mark)

    def check_invariants(self) -> None:
        self._locks.check_invariants()
        self._fetches.check_invariants()
        self._feeds.check_invariants(
            NOTHING if self.high_water_mark is None else self.high_water_mark
        )
        self._undecided.check_invariants()
        self._backlog.check_invariants()
        self._commit_ages.check_invariants()
        if not self.closed:
            small = len(self._barriers) + len(self._outcomes)
            undecided = self._undecided
            assert self._backlog.count == len(undecided) + small
            assert self._backlog.byte_count == undecided.byte_count + REQUEST_BYTES * small
        self._barriers.check_invariants(self._locks.decided)
        self._early.check_invariants(
            is_open=self.is_open or self.closed, knows_mark=self.high_water_mark is not None
        )

    # Events

    def _take(self, event: PartitionEvent, now: float) -> None:
        match event:
            case MessagesReceived(peer, messages):
                self._receive(peer, messages, now)
            case Committed(batch):
                self._commit(batch, now)
            case AppendsFailed(count):
                self._counters.appends_failed += count
                self._locks.fail(count)
                for _, failed in self._undecided.decide(count, now, is_committed=False):
                    self._tell(failed, Reason.NOT_COMMITTED)
            case StoreOpened(session_id, high_water_mark):
                self.session_id = session_id
                self._counters.store_sessions += 1
                self._open(high_water_mark, now)
            case StoreClosed(reason):
                self.is_open = False
                self._reason = reason
            case RecordsRead() | StoreReadFailed():
                self._end_read(event, now)
            case ConnectionDrained(connection_id):
                self._feeds.resume(connection_id)
                self._data_requests.resume(connection_id)
            case ConnectionLost(connection_id):
                self._lose(connection_id)
            case MountWithdrawn(connection_id):
                self._unmount(connection_id)
            case PartitionRevoked(comes_back):
                self._close()
                if comes_back:
                    self._cut_off_mounted()
            case ReleaseRequested():
                self._release_at = now + RELEASE_SECONDS_MAX
            case _:
                assert_never(event)

    def _receive(self, peer: ClientPeer, messages: Sequence[ClientMessage], now: float) -> None:
        is_valid = self._mounts.is_valid(peer)
        if not is_valid and self._mounts.is_repeated(peer):
            self._refuse_repeated(peer, messages)
            return
        connection_id = peer.connection_id
        unheard = stale = 0
        batches: list[AppendBatch] = []
        for message in messages:
            if type(message) is AppendBatch:
                reason = self._why_not(message, is_valid)
                if reason is None:
                    batches.append(message)
                    continue
                self._drop(connection_id, message)
                self._outbox.add(connection_id, refused_all(message, reason))
                if reason is Reason.STALE_GENERATION:
                    stale += len(message.appends)
                else:
                    unheard += len(message.appends)
                continue
            if batches:  # a flush and an outcome are about the appends before them
                self._undecided.take(batches, connection_id, now)
                batches = []
            unheard += not self._receive_other(peer, message, is_valid, now)
            if type(message) is MountRequest:
                is_valid = self._mounts.is_valid(peer)
        if batches:
            self._undecided.take(batches, connection_id, now)
            self._mounts.note_appends(connection_id, batches[-1], now)
        self._counters.requests_dropped += unheard + stale
        if unheard:
            self._effects.append(RequestsDropped(connection_id, STALE_CONNECTION, unheard))
        if stale:
            self._effects.append(RequestsDropped(connection_id, STALE_GENERATION, stale))

    def _refuse_repeated(self, peer: ClientPeer, messages: Sequence[ClientMessage]) -> None:
        """Take nothing, and end the connection. Nothing is said of the appends: they had their
        outcome on the other connection. If the second connection is the client's own, the client
        connects again with the next sequence number and asks."""
        for message in messages:
            self._drop(peer.connection_id, message)
        self._counters.requests_dropped += len(messages)
        self._effects.append(RequestsDropped(peer.connection_id, REPEATED, len(messages)))
        self._effects.append(CloseClientConnection(peer.connection_id, REPEATED))

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

    def _receive_other(
        self, peer: ClientPeer, message: ClientMessage, is_valid: bool, now: float
    ) -> bool:
        """Take a message that is no append; return False if it does not count."""
        mark, connection_id = self.high_water_mark, peer.connection_id
        match message:
            case MountRequest() if self._is_early(message):
                if self._early.add_mount(peer, message, now):
                    self._backlog.drop(connection_id, REQUEST_BYTES)
            case MountRequest() if self._mount(peer, message):
                self._wait_for_decisions(peer, message)
            case FlushRequest():
                self._wait_for_decisions(peer, message)
            case OutcomeRequest() if self._may_look(peer, message, is_valid):
                is_final = not self._may_still_come(peer, message)
                self._wait_for_decisions(peer, message, is_final=is_final)
            case TransactionDataRequest() | ReadRequest() | HeadersRequest() if mark is not None:
                self._data_requests.ask(connection_id, message)
            case HighWaterMarkRequest() if mark is None:
                self._early.add_question(connection_id, message)
            case _:
                self._drop(connection_id, message)
                return self._answer_at_once(peer, message, is_valid)
        return True

    def _answer_at_once(self, peer: ClientPeer, message: ClientMessage, is_valid: bool) -> bool:
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
            case TransactionDataRequest() | ReadRequest() | HeadersRequest() | OutcomeRequest():
                self._answer_absent(connection_id, message)
            case HighWaterMarkRequest():
                assert mark is not None
                self._outbox.add(connection_id, HighWaterMarkResponse(message.request_id, mark))
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a partition")
        return True

    def _may_look(self, peer: ClientPeer, request: OutcomeRequest, is_valid: bool) -> bool:
        """Whether the log here can say what became of an append: under this generation only if no
        older connection of the asking client can bring it any more."""
        client_id, generation, _, _ = request.request_id
        if self.high_water_mark is None or generation > self.generation:
            return False
        return generation < self.generation or is_valid or client_id != peer.client_id

    def _may_still_come(self, peer: ClientPeer, request: OutcomeRequest) -> bool:
        """Whether another client than the asking one could still be sending the append."""
        client_id, generation, _, _ = request.request_id
        is_own = client_id == peer.client_id
        return generation == self.generation and not is_own and self._mounts.has(client_id)

    def _wait_for_decisions(
        self,
        peer: ClientPeer,
        request: MountRequest | FlushRequest | OutcomeRequest,
        *,
        is_final: bool = False,
    ) -> None:
        self._backlog.add(peer.connection_id, REQUEST_BYTES)
        self._barriers.add(Barrier(self._undecided.arrival_count, peer, request, is_final))

    def _is_early(self, request: MountRequest) -> bool:
        """Whether a mount may be answered as soon as the store has a session."""
        is_ours = request.request_id.generation <= self.generation
        return not self.is_open and is_ours and self._release_at is None

    def _refuse_early_mounts(self, now: float) -> None:
        """Answer those that have waited long enough."""
        for peer, request, _ in self._early.take_overdue(now):
            self._backlog.drop(peer.connection_id, REQUEST_BYTES)
            self._answer_mount(peer, request.request_id, MountState.NOT_READY)

    def _mount(self, peer: ClientPeer, request: MountRequest) -> bool:
        """Register the connection; the feed starts when all earlier appends are decided. False: it
        has its answer already.

        A connection that a newer one outranks is told NOT_READY, where the original says nothing:
        a client whose newer connection is dead without anybody knowing asks again until it is.
        Source: Client-Server Communication, "Mounting a partition".
        """
        replaced = self._mounts.mount(peer, request.request_id.generation)
        if replaced is not None:
            self._feeds.remove(replaced)
            self._effects.append(CloseClientConnection(replaced, REPLACED))
        if not self._mounts.is_valid(peer):
            self._effects.append(RequestsDropped(peer.connection_id, STALE_CONNECTION, 1))
            self._answer_mount(peer, request.request_id, MountState.NOT_READY)
            return False
        # Whatever the answer is, the connection's appends count from here on.
        self._effects.append(ClientMounted(peer.connection_id, peer.client_id))
        if not self.is_open or request.request_id.generation > self.generation:
            # A client that knows of a later owner may have written there. From here it would learn
            # of an end of the log before that, and write again what is in the log already.
            self._answer_mount(peer, request.request_id, MountState.NOT_READY)
        elif request.client_high_water_mark < NOTHING:
            self._reject(peer, "mount", request.client_high_water_mark)
        else:
            self._feeds.expect_mount(peer.connection_id, request.request_id)
            return True
        return False

    def _feed(self, peer: ClientPeer, request: FeedRequest) -> None:
        mark = self.high_water_mark
        if mark is None or not NOTHING <= request.client_high_water_mark <= mark:
            self._reject(peer, "feed request", request.client_high_water_mark)
        else:
            self._feeds.request(peer.connection_id, request, mark)

    def _commit(self, batch: RecordBatch, now: float) -> None:
        """Locks, cache and feeds move together."""
        count = batch.count
        self._counters.commits += count
        self._locks.commit(batch.first_transaction_id, count)
        self._undecided.decide(count, now, is_committed=True)
        self._cache.add(self.partition_id, batch)
        assert self.high_water_mark is not None, "a commit before the first store session"
        if now >= self._commit_ages.next_at:
            self._commit_ages.note(batch.first_transaction_id, now)
        if batch.last_transaction_id > self.high_water_mark:
            self.high_water_mark = batch.last_transaction_id
            self._feeds.wake_at_head()

    def _open(self, high_water_mark: TransactionId, now: float) -> None:
        self.is_open = True
        self._fetches.succeed()
        if self.high_water_mark is None or high_water_mark > self.high_water_mark:
            # Written by an earlier owner, with locks that nobody here has seen (SV-10).
            self._locks.raise_marks(high_water_mark)
            known = NOTHING if self.high_water_mark is None else self.high_water_mark
            if high_water_mark > known:
                self._commit_ages.find(TransactionId(known + 1), now)
            self.high_water_mark = high_water_mark
            self._feeds.wake_at_head()
        for connection_id, request in self._early.take_questions():
            self._backlog.drop(connection_id, REQUEST_BYTES)
            mark = HighWaterMarkResponse(request.request_id, self.high_water_mark)
            self._outbox.add(connection_id, mark)
        for peer, mount, _ in self._early.take_mounts():
            if self._mount(peer, mount):
                self._wait_for_decisions(peer, mount)
            else:
                self._drop(peer.connection_id, mount)
        self._wake_fetching()

    def _end_read(self, answer: RecordsRead | StoreReadFailed, now: float) -> None:
        first, with_data = answer.first_transaction_id, answer.with_data
        batch = answer.batch if isinstance(answer, RecordsRead) else empty_batch(first)
        asked = self._fetches.end(first, len(batch), with_data=with_data)
        if len(batch):
            assert batch.first_transaction_id == first
            self._cache.add(self.partition_id, batch)
            self._fetches.succeed()
        else:
            reason = answer.reason if isinstance(answer, StoreReadFailed) else NO_SUCH_RECORD
            if isinstance(answer, StoreReadFailed) and answer.is_unreadable:
                # The records after it may be well: requests for them are read by themselves.
                self._fetches.put_off(first, reason, now)
                asked = range(first, first + 1)
            else:
                self._fetches.fail(now)
            self._data_requests.fail(asked, reason, self._outbox, with_data=with_data)
            if with_data:
                self._answer_outcomes(self._outcomes.fail(asked))
        self._wake_fetching()

    def _lose(self, connection_id: int) -> None:
        self._unmount(connection_id)
        self._undecided.forget(connection_id)
        self._data_requests.remove(connection_id)
        if forgotten := self._outcomes.remove(connection_id):
            self._backlog.settle(connection_id, forgotten * REQUEST_BYTES, forgotten)

    def _unmount(self, connection_id: int) -> None:
        self._mounts.remove(connection_id)
        if dropped := self._early.forget(connection_id):
            self._backlog.drop(connection_id, dropped * REQUEST_BYTES)
        self._feeds.forget(connection_id)

    def _close(self) -> None:
        self.closed = True
        self._refuse_early_mounts(inf)
        for connection_id, response in self._outcomes.take_all():
            self._outbox.add(connection_id, response)
        for barrier in self._barriers:
            self._answer_absent(barrier.peer.connection_id, barrier.request)
        # What the store has not seen is not in the log; what it has, its next owner decides.
        for senders in self._undecided.abandon():
            self._tell(senders, Reason.NOT_HERE)
        self._data_requests.fail_all(PARTITION_NOT_READY, self._outbox)
        self._cache.drop(self.partition_id)

    def _cut_off_mounted(self) -> None:
        reason = f"partition {self.partition_id} has left generation {self.generation}"
        for connection_id in self._mounts.connection_ids():
            self._effects.append(CloseClientConnection(connection_id, reason))

    # What the events make possible

    def _advance(self, now: float) -> None:
        admitted = self._undecided.admit(now)
        if admitted is not NOTHING_ADMITTED:
            self._hand_over(admitted)
        if self._barriers.behind or self._barriers.ahead:
            self._pass_barriers()
        early_until = self._early.deadline
        if early_until is not None and early_until <= now:
            self._refuse_early_mounts(now)
            early_until = self._early.deadline
        fetches, release_at, mark = self._fetches, self._release_at, self.high_water_mark
        if fetches.resume(now):
            self._wake_fetching()
        has_work = mark is not None and self._feeds.serve(mark, self._full, self._outbox, now)
        if self._data_requests.ready:
            self._data_requests.serve(mark, self._full, self._outbox, now)
        if mark is not None and self._outcomes.ready:
            self._answer_outcomes(self._outcomes.serve(mark, now))
        if fetches.started:
            self._effects += fetches.take_started()
        if release_at is not None and (now >= release_at or not self._undecided):
            self._close()
        elif has_work or self._data_requests.ready or self._outcomes.ready:
            self.deadline = now
        else:
            deadline = self._undecided.deadline
            for at in (early_until, fetches.resumes_at, release_at):
                if at is not None and (deadline is None or at < deadline):
                    deadline = at
            self.deadline = deadline

    def _hand_over(self, admitted: Admitted) -> None:
        """Hand to the store what passes its locks, and tell what does not."""
        self._counters.lock_failures += admitted.refused_count
        for connection_id, message in admitted.answers:
            self._outbox.add(connection_id, message)
        if admitted.records is not None:
            self._counters.appends += len(admitted.records.data)
            self._counters.appended_bytes += sum(map(len, admitted.records.data))
            self._effects.append(AppendToStore(admitted.records))

    def _tell(self, senders: Senders, reason: Reason) -> None:
        for connection_id, rejection in rejected(senders, reason):
            self._outbox.add(connection_id, rejection)

    def _pass_barriers(self) -> None:
        """Answer the mounts and flushes before which nothing is undecided any more."""
        if self.high_water_mark is None:
            return
        oldest, locks = self._undecided.oldest_waiting, self._locks
        for barrier in self._barriers.take_passed(oldest, locks.issued, locks.decided):
            peer, request = barrier.peer, barrier.request
            connection_id = peer.connection_id
            if isinstance(request, OutcomeRequest):
                self._outcomes.ask(
                    connection_id, request, self.high_water_mark, is_final=barrier.is_final
                )
                continue
            self._backlog.settle(connection_id, REQUEST_BYTES)
            if isinstance(request, FlushRequest):
                response = FlushResponse(request.request_id, self.high_water_mark)
                self._outbox.add(connection_id, response)
            else:
                self._start_feed(peer, request, self.high_water_mark)

    def _answer_outcomes(self, answers: Iterable[tuple[int, OutcomeResponse]]) -> None:
        for connection_id, response in answers:
            self._backlog.settle(connection_id, REQUEST_BYTES)
            self._outbox.add(connection_id, response)

    def _start_feed(
        self, peer: ClientPeer, request: MountRequest, high_water_mark: TransactionId
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
        self._outcomes.wake_fetching()

    def _drop(self, connection_id: int, message: ClientMessage) -> None:
        self._backlog.drop(connection_id, request_bytes(message))

    # Answers

    def _answer_mount(self, peer: ClientPeer, request_id: RequestId, state: MountState) -> None:
        self._outbox.add(peer.connection_id, MountResponse(request_id, state))

    def _answer_absent(self, connection_id: int, request: ClientMessage) -> None:
        if (answer := answer_without_partition(request)) is not None:
            self._outbox.add(connection_id, answer)

    def _reject(self, peer: ClientPeer, what: str, client_high_water_mark: TransactionId) -> None:
        reason = (
            f"{what} of client {peer.client_id} from {client_high_water_mark}; expected"
            f" {NOTHING} to {self.high_water_mark} in partition {self.partition_id}"
        )
        self._effects.append(CloseClientConnection(peer.connection_id, reason))
