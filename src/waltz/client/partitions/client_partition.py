"""One partition as a client sees it: mount, appends, feed, verdicts, retries.

Owns the transaction monitor, what has been fed and not applied yet, and both marks: `fed` (the last
transaction that came in order) and `high_water_mark` (the last one applied). Must not know
connections, threads or callbacks: those are effects. Always: marks only grow, transactions are
handed over in order and one batch at a time, a submission is in one place only.
Source: Client-Server Communication; rows CI-10 to CI-27.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Final, assert_never

from waltz.client.appends.own_appends import OwnAppends
from waltz.client.appends.submission import Submission
from waltz.client.partitions.client_partition_events import (
    AheadSuspected,
    AppendRefused,
    AppendsHeld,
    AppendsSettled,
    Applied,
    ApplyTransactions,
    ClientIdRenewed,
    ClientIdRunsOut,
    Effect,
    Event,
    FailSubmission,
    FlushWanted,
    GenerationRaised,
    HighWaterMarkLoaded,
    LoadHighWaterMark,
    MountChanged,
    OutcomeWanted,
    PartitionClosed,
    Received,
    SendMessages,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.outcome_questions import OutcomeQuestions, OutcomeRefused
from waltz.errors import LocalProtocolError
from waltz.limits import (
    APPLY_TRANSACTIONS_MAX,
    CLIENT_AHEAD_SECONDS,
    LONG_WAIT_SECONDS,
    MOUNT_SECONDS_MAX,
    NOT_READY_SECONDS_MAX,
    NOT_READY_SECONDS_MIN,
)
from waltz.types import (
    NO_GENERATION,
    NOTHING,
    ClientId,
    PartitionId,
    RequestId,
    TransactionId,
)
from waltz.wire.batch_protocol import (
    AppendRejected,
    DataWanted,
    FeedBatch,
    OutcomeResponse,
)
from waltz.wire.client_protocol import (
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.fed import FedBuffer, FedRun, FedRuns, next_of
from waltz.wire.message import Message

FEED_BUFFER_TRANSACTIONS_MAX: Final = 10_000
"""Fed but not applied transactions per partition before a client asks for no more."""

FEED_BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Data that came along with these before a client reads no further."""


class PartitionPhase(Enum):
    DETACHED = "no stream"
    LOADING = "stream; the application's mark is asked for"
    MOUNTING = "mount request sent"
    NOT_READY = "the server was not ready; asked again soon"
    MOUNTED = "mounted"
    AHEAD = "the application has applied more than the log holds"
    CLOSED = "closed"


class ClientPartition:
    """See the module."""

    def __init__(
        self,
        client_id: ClientId,
        partition_id: PartitionId,
        *,
        long_wait_seconds: float = LONG_WAIT_SECONDS,
        ahead_seconds_max: float = CLIENT_AHEAD_SECONDS,
        apply_count_max: int = APPLY_TRANSACTIONS_MAX,
        buffer_count_max: int = FEED_BUFFER_TRANSACTIONS_MAX,
        sequence_number: int = 0,
        with_data: bool = False,
    ) -> None:
        """`with_data`: the feed is to bring the data along, if the server can do that.
        `ahead_seconds_max`: how long a server that says AHEAD is asked again before it is believed.
        """
        self.phase = PartitionPhase.DETACHED
        self.closed = False
        self.generation = NO_GENERATION
        self.high_water_mark = NOTHING
        self.fed = NOTHING
        self.own = OwnAppends(client_id, partition_id, sequence_number)
        self._held = False
        """Whether nothing is sent, for the client ID is about to change."""
        self.is_settled = False
        """Whether nothing is undecided then."""
        self._asked_for_client_id = False
        self._partition_id = partition_id
        self._long_wait_seconds = long_wait_seconds
        self._apply_count_max = apply_count_max
        self._buffer_count_max = buffer_count_max
        self._connection_sequence: int | None = None
        self._with_data = with_data
        self._questions = OutcomeQuestions()
        self.mark_known = False
        self._mount_request_id: RequestId | None = None
        self._mount_at: float | None = None
        self._not_ready_seconds = NOT_READY_SECONDS_MIN
        self._ahead_seconds_max = ahead_seconds_max
        self._ahead_since: float | None = None
        self._waiting: deque[Submission] = deque()
        self._buffer = FedBuffer()
        self._in_hand = FedRuns()
        self._apply_at: float | None = None
        self._applying = False
        self._feed_due = False
        self._feeds = 0
        self._gap_seen = False
        self._nudge_at: float | None = None
        self._fed_at_nudge: TransactionId | None = None
        self._effects: list[Effect] = []
        self._outbox: list[Message] = []

    @property
    def deadline(self) -> float | None:
        questions, send_at = self._questions, self.own.rows.send_at
        if self._mount_at is self._apply_at is send_at is None and not questions.after:
            return self._nudge_at  # as nearly always
        times = [self._mount_at, self._apply_at, self._nudge_at]
        if self.phase is PartitionPhase.MOUNTED:
            times += (questions.deadline, send_at)
        return min((time for time in times if time is not None), default=None)

    @property
    def has_room(self) -> bool:
        """Whether more of the feed may be taken from the connection.

        While the application's callback fails there is room: what comes is dropped and asked for
        again later, so that the other partitions of the connection flow on (PM-38).
        """
        return self._apply_at is not None or (
            self._buffer.count < self._buffer_count_max
            and self._buffer.byte_count < FEED_BUFFER_BYTES_MAX
        )

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        for event in events:
            self._take(event, now)
        own = self.own
        if not self.closed:
            if self._mount_at is not None or self._apply_at is not None:
                self._catch_up_with_time(now)
            if self._nudge_at is not None and now >= self._nudge_at:
                self._nudge_at = None
                self._ask_for_what_is_missed()
                self._flush(now)
            if self._in_hand.runs or self._buffer.count:
                self._hand_over()
            if self._feed_due:
                self._ask_for_more()
            if self._questions.after:
                self._ask_outcomes(now)
            if self._waiting:
                self._send_waiting(now)
            if own.rows.is_used:
                self._send_rows(now)
        if own.batches.runs:
            self._post_appends()
        if self._outbox:
            assert self._connection_sequence is not None, "what waits goes with its stream"
            self._effects.append(SendMessages(self._connection_sequence, self._outbox))
            self._outbox = []
        if own.released or own.retries:
            self._effects += own.take_effects()
        if self._held or (own.runs_out and not self._asked_for_client_id):
            self._see_to_client_id()
        return self._effects

    def check_invariants(self) -> None:
        self.own.check_invariants()
        assert self.high_water_mark <= self.fed
        assert self.fed - self.high_water_mark == self._buffer.count + len(self._in_hand)
        ids = [data.transaction_id for data in (*self._in_hand, *self._buffer)]
        assert ids == list(range(self.high_water_mark + 1, self.fed + 1))
        assert not self._applying or self._in_hand.runs
        assert self.closed == (self.phase is PartitionPhase.CLOSED)
        committed = self.own.committed_through(self.fed)
        assert all(self.high_water_mark < each for each in committed)
        if self.phase is not PartitionPhase.AHEAD:
            mounting = self.phase in (
                PartitionPhase.MOUNTING,
                PartitionPhase.NOT_READY,
                PartitionPhase.MOUNTED,
            )
            assert mounting == (self._mount_request_id is not None)

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Received():
                if event.connection_sequence == self._connection_sequence:
                    self._receive(event.messages, now)
            case Applied():
                self._finish_batch(event, now)
            case Submitted():
                self._submit(event.submissions, now)
            case StreamOpened():
                self._open_stream(event, now)
            case StreamLost():
                if event.connection_sequence == self._connection_sequence:
                    self._lose_stream()
            case HighWaterMarkLoaded():
                self._load(event.high_water_mark, now)
            case GenerationRaised():
                self.generation = max(self.generation, event.generation)
            case FlushWanted():
                self._flush(now)
            case OutcomeWanted():
                self._want_outcome(event)
            case AppendRefused():
                self._fail(event)
            case AppendsHeld() | ClientIdRenewed() | PartitionClosed():
                self._take_change(event, now)
            case _:
                assert_never(event)

    def _take_change(
        self, event: AppendsHeld | ClientIdRenewed | PartitionClosed, now: float
    ) -> None:
        match event:
            case AppendsHeld():
                self._held = True
                self._flush(now)
            case ClientIdRenewed():
                self._renew(event.client_id)
            case PartitionClosed():
                self._close()
            case _:
                assert_never(event)

    # Mounting

    def _open_stream(self, event: StreamOpened, now: float) -> None:
        if self.phase in (PartitionPhase.AHEAD, PartitionPhase.CLOSED):
            return
        if self._connection_sequence is not None:
            self._lose_stream()
        self._connection_sequence = event.connection_sequence
        self.own.knows_batches = event.knows_batches
        is_idle = not (len(self.own) or self._in_hand.runs or self._buffer.count)
        if self.mark_known and not is_idle:
            # An own append may lie between our mark and one that another process has moved on;
            # skipping it would lose its verdict, so only an idle partition asks again (PM-27).
            self._mount(now)
        else:
            self.phase = PartitionPhase.LOADING
            self._effects.append(LoadHighWaterMark())

    def _load(self, high_water_mark: TransactionId, now: float) -> None:
        if self.phase is not PartitionPhase.LOADING:
            return
        if high_water_mark > self.high_water_mark and not (
            self._in_hand.runs or self._buffer.count
        ):
            self.high_water_mark = self.fed = high_water_mark
        self.mark_known = True
        self._mount(now)

    def _mount(self, now: float) -> None:
        self.phase = PartitionPhase.MOUNTING
        self._mount_request_id = self.own.mount_request_id(self.generation)
        # Some mounts are never answered (hazards H2, H3, H5), so they are repeated.
        self._mount_at = now + MOUNT_SECONDS_MAX
        assert self._connection_sequence is not None
        if self._with_data:
            self._post(DataWanted(self._mount_request_id))
        self._post(MountRequest(self._mount_request_id, self.fed, self._connection_sequence))

    def _lose_stream(self) -> None:
        if self.phase is PartitionPhase.MOUNTED:
            self._effects.append(MountChanged(None))
        self._connection_sequence = None
        self._mount_request_id = None
        self._mount_at = None
        self._not_ready_seconds = NOT_READY_SECONDS_MIN
        self._nudge_at = None
        self._feed_due = self._gap_seen = False
        self._feeds = 0
        self.own.lose_stream()
        self._outbox.clear()
        self._questions.reset()
        if self.phase is not PartitionPhase.AHEAD:
            self.phase = PartitionPhase.DETACHED

    def _answer_mount(self, response: MountResponse, now: float) -> None:
        if (
            response.request_id != self._mount_request_id
            or self.phase is not PartitionPhase.MOUNTING
        ):
            return
        match response.state:
            case MountState.READY:
                self.phase = PartitionPhase.MOUNTED
                self._mount_at = self._ahead_since = None
                self._effects.append(MountChanged(MountState.READY))
                # Whatever was sent on an earlier stream is decided now; the answer says up to
                # which transaction one has to look (CI-17).
                self._flush(now)
                self._feed_due = True
            case MountState.NOT_READY:
                self._ahead_since = None
                self._mount_later(now)
            case MountState.CLIENT_AHEAD:
                # It may be a server that has lost the partition and does not know yet.
                if self._ahead_since is None:
                    self._ahead_since = now
                    self._effects.append(AheadSuspected(self.high_water_mark))
                if now - self._ahead_since < self._ahead_seconds_max:
                    self._mount_later(now)
                    return
                self.phase = PartitionPhase.AHEAD
                self._mount_at = None
                self._effects.append(MountChanged(MountState.CLIENT_AHEAD))
            case _:
                assert_never(response.state)

    def _mount_later(self, now: float) -> None:
        self.phase = PartitionPhase.NOT_READY
        self._mount_at = now + self._not_ready_seconds
        self._not_ready_seconds = min(2 * self._not_ready_seconds, NOT_READY_SECONDS_MAX)

    # Appending

    def _submit(self, submissions: Sequence[Submission] | deque[Submission], now: float) -> None:
        if not submissions:
            return
        has_stream = self.phase is PartitionPhase.MOUNTED and not (self._waiting or self._held)
        if not (has_stream and self.own.has_room(len(submissions))):
            self._waiting.extend(submissions)
            return
        if len(submissions) > (left := self.own.numbers_left):
            submissions = [*submissions]
            self._waiting.extend(submissions[left:])
            submissions = submissions[:left]
        self.own.send(submissions, self.generation)
        self._nudge_at = now + self._long_wait_seconds

    def _send_waiting(self, now: float) -> None:
        if self._held or not self.own.numbers_left:
            return
        if self.phase is PartitionPhase.MOUNTED and self.own.has_room(len(self._waiting)):
            waiting, self._waiting = self._waiting, deque()
            self._submit(waiting, now)

    def _send_rows(self, now: float) -> None:
        if self.phase is not PartitionPhase.MOUNTED or self._held:
            return
        rows = self.own.take_rows(self.high_water_mark, self.generation, now)
        if rows:
            self._post_appends()
            self._outbox += rows
            self._nudge_at = now + self._long_wait_seconds

    def _see_to_client_id(self) -> None:
        """Ask for the next client ID in time, and say when nothing is left of this one. A partition
        whose client is ahead of the log never learns what became of its appends, nor sends any."""
        if not self._asked_for_client_id and self.own.runs_out:
            self._asked_for_client_id = True
            self._effects.append(ClientIdRunsOut())
        if self._held and not self.is_settled:
            is_over = self.phase in (PartitionPhase.AHEAD, PartitionPhase.CLOSED)
            self.is_settled = is_over or not len(self.own)
            if self.is_settled:
                self._effects.append(AppendsSettled())

    def _renew(self, client_id: ClientId) -> None:
        assert self.is_settled, "what is undecided was sent under the client ID before"
        self._held = self.is_settled = self._asked_for_client_id = False
        if self._connection_sequence is not None:
            self._lose_stream()
        if self.phase not in (PartitionPhase.AHEAD, PartitionPhase.CLOSED):
            self.own.renew(client_id)

    def _flush(self, now: float) -> None:
        last = self.own.last_sent
        if last is None or self.phase is not PartitionPhase.MOUNTED:
            return
        self._post(FlushRequest(last))
        self._nudge_at = now + self._long_wait_seconds

    def _post(self, message: Message) -> None:
        """Send `message` after the appends that wait: a flush is about those before it."""
        self._post_appends()
        self._outbox.append(message)

    def _post_appends(self) -> None:
        self._outbox += self.own.take_batches()

    def _settle(self) -> None:
        self._effects += self.own.settle(self.high_water_mark)
        if not len(self.own):
            self._nudge_at = None

    # Being fed

    def _receive(self, messages: Sequence[Message], now: float) -> None:
        # While the application fails, a full buffer drops; otherwise the shell stops reading, and
        # what was read already is kept.
        limit = self._buffer_count_max if self._apply_at is not None else 1 << 62
        expected = self.fed + 1
        for message in messages:
            if type(message) is FeedBatch:
                # Repetitions, and transactions after a dropped one, are not the next (CI-13).
                room = limit - self._buffer.count
                if (run := next_of(message, TransactionId(expected), room)) is not None:
                    self._keep(run)
                    expected = run.next_transaction_id
                self._gap_seen |= (
                    message.first_transaction_id + len(message.feed.headers) > expected
                )
                continue
            self.fed = TransactionId(expected - 1)
            self._hear(message, now)
        if self.fed < expected - 1:
            self.fed = TransactionId(expected - 1)
            if self.phase is PartitionPhase.MOUNTING:
                self._mount_at = now + MOUNT_SECONDS_MAX

    def _keep(self, run: FedRun) -> None:
        """Keep `run`, which comes next, for the application; it decides what was sent from here."""
        self.own.decide(run)
        self._buffer.add(run)

    def _hear(self, message: Message, now: float) -> None:
        match message:
            case MountResponse():
                self._answer_mount(message, now)
            case FeedSuspended():
                if message.request_id == self._mount_request_id:
                    self._feeds -= 1
                    # Two feeds may be under way after a gap; one that is ahead is of no use.
                    self._feed_due |= self._feeds <= 0 or self._gap_seen
            case AppendRejected() | FlushResponse():
                self.own.hear(message, now)
                self._settle()
            case OutcomeResponse():
                known = self._questions.receive(message, now)
                if known is not None:
                    self._effects.append(known)
            case _:
                raise AssertionError(f"{type(message).__name__} is for no partition of a client")

    def _fail(self, event: AppendRefused) -> None:
        refused = self.own.refuse(event.request_id)
        if refused is not None:
            self._effects.append(FailSubmission(refused, event.error))

    def _want_outcome(self, event: OutcomeWanted) -> None:
        request_id = event.request_id
        is_own = request_id.client_id == self.own.client_id
        if is_own and request_id.sequence_number > self.own.sequence_number:
            # It could still be made: no answer would be final.
            error = LocalProtocolError(f"the append {request_id} was never sent")
            self._effects.append(OutcomeRefused(request_id, error))
        else:
            self._questions.want(request_id, event.after)

    def _ask_outcomes(self, now: float) -> None:
        """Ask behind the appends of this stream, on which the server does not decide them later."""
        if self.phase is not PartitionPhase.MOUNTED:
            return
        for question in self._questions.ask(now, knows_batches=self.own.knows_batches):
            if isinstance(question, OutcomeRefused):
                self._effects.append(question)
            else:
                self._post(question)

    def _ask_for_what_is_missed(self) -> None:
        """Ask again if nothing has come since the last nudge, although the server has answered that
        there is more: servers of earlier releases do not say that a request was replaced."""
        if self.own.is_decided_beyond(self.fed) and self.fed == self._fed_at_nudge:
            self._feed_due, self._feeds = True, 0
        self._fed_at_nudge = self.fed

    def _ask_for_more(self) -> None:
        """Ask for more of the feed once half of the buffer is free."""
        if (
            self.phase is PartitionPhase.MOUNTED
            and self._buffer.count <= self._buffer_count_max // 2
        ):
            assert self._mount_request_id is not None
            self._post(FeedRequest(self._mount_request_id, self.fed))
            self._feed_due = self._gap_seen = False
            self._feeds += 1

    # Applying

    def _hand_over(self) -> None:
        if self._applying or self._apply_at is not None:
            return
        if not self._in_hand.runs:
            self._in_hand = self._buffer.take(self._apply_count_max)
        self._applying = True
        own = self.own.committed_through(self._in_hand.last_transaction_id)
        self._effects.append(ApplyTransactions(self._in_hand, own, self.own.bulks))

    def _finish_batch(self, event: Applied, now: float) -> None:
        assert self._applying, "nothing was handed over"
        self._applying = False
        if event.last_transaction_id > self.high_water_mark:
            self.high_water_mark = event.last_transaction_id
            self.own.forget_through(self.high_water_mark)
            self._in_hand = self._in_hand.after(self.high_water_mark)
        if self._in_hand.runs:
            assert event.retry_seconds is not None
            self._apply_at = now + event.retry_seconds
        self._settle()

    # Time and the end

    def _catch_up_with_time(self, now: float) -> None:
        if self._mount_at is not None and now >= self._mount_at:
            if self.phase is PartitionPhase.MOUNTING and self._buffer.count:
                # It is this side that is slow: the answer comes after what is not read yet.
                self._mount_at = now + MOUNT_SECONDS_MAX
            else:
                self._mount(now)
        if self._apply_at is not None and now >= self._apply_at:
            self._apply_at = None
            self._feed_due |= self._gap_seen

    def _close(self) -> None:
        if self.phase is PartitionPhase.MOUNTED:
            self._effects.append(MountChanged(None))
        self.phase = PartitionPhase.CLOSED
        self.closed = True
        self._connection_sequence = None
        self._mount_request_id = None
        self._mount_at = self._apply_at = self._nudge_at = None
        self._waiting.clear()
        self._outbox.clear()
        self.own.close()
