"""One partition as a client sees it: mount, appends, feed, verdicts, retries.

Owns the mount, what waits to be sent, and when something is repeated; `PartitionFeed` owns what
comes, `OwnAppends` what was sent. Must not know connections, threads or callbacks: those are
effects. Always: a submission is in one place only.
Source: Client-Server Communication; rows CI-10 to CI-27.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import assert_never

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
from waltz.client.partitions.partition_feed import FEED_BUFFER_TRANSACTIONS_MAX, PartitionFeed
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
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.message import Message


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
        self.feed = PartitionFeed(apply_count_max, buffer_count_max)
        self.own = OwnAppends(client_id, partition_id, sequence_number)
        self._held = False
        """Whether nothing is sent, for the client ID is about to change."""
        self.is_settled = False
        """Whether nothing is undecided then."""
        self._asked_for_client_id = False
        self._long_wait_seconds = long_wait_seconds
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
        self._nudge_at: float | None = None
        self._effects: list[Effect] = []
        self._outbox: list[Message] = []

    @property
    def deadline(self) -> float | None:
        questions, apply_at, send_at = self._questions, self.feed.apply_at, self.own.rows.send_at
        if self._mount_at is apply_at is send_at is None and not questions.after:
            return self._nudge_at  # as nearly always
        times = [self._mount_at, apply_at, self._nudge_at]
        if self.phase is PartitionPhase.MOUNTED:
            times += (questions.deadline, send_at)
        return min((time for time in times if time is not None), default=None)

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        for event in events:
            self._take(event, now)
        own, feed = self.own, self.feed
        if not self.closed:
            if self._mount_at is not None or feed.apply_at is not None:
                self._catch_up_with_time(now)
            if self._nudge_at is not None and now >= self._nudge_at:
                self._nudge_at = None
                feed.nudge(is_behind=own.held.is_decided_beyond(feed.fed))
                self._flush(now)
            if feed.in_hand.runs or feed.buffer.count:
                self._hand_over()
            if feed.is_due and self.phase is PartitionPhase.MOUNTED:
                self._ask_for_more()
            if self._questions.after:
                self._ask_outcomes(now)
            if self._waiting:
                self._send_waiting(now)
            if own.rows.is_used:
                self._send_rows(now)
        if own.batches.runs:
            self._outbox += self.own.take_batches()
        if self._outbox:
            assert self._connection_sequence is not None, "what waits goes with its stream"
            self._effects.append(SendMessages(self._connection_sequence, self._outbox))
            self._outbox = []
        if own.released or own.retries:
            self._effects += own.take_effects()
        if self._held or own.numbers.last > own.numbers.renewal_after:
            self._see_to_client_id()
        return self._effects

    def check_invariants(self) -> None:
        self.own.check_invariants()
        self.feed.check_invariants()
        assert self.closed == (self.phase is PartitionPhase.CLOSED)
        committed = self.own.committed_through(self.feed.fed)
        assert all(self.feed.high_water_mark < each for each in committed)
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
        if self.mark_known and (len(self.own) or not self.feed.is_empty):
            # An own append may lie between our mark and one that another process has moved on;
            # skipping it would lose its verdict, so only an idle partition asks again (PM-27).
            self._mount(now)
        else:
            self.phase = PartitionPhase.LOADING
            self._effects.append(LoadHighWaterMark())

    def _load(self, high_water_mark: TransactionId, now: float) -> None:
        if self.phase is not PartitionPhase.LOADING:
            return
        self.feed.begin_after(high_water_mark)
        self.mark_known = True
        self._mount(now)

    def _mount(self, now: float) -> None:
        self.phase = PartitionPhase.MOUNTING
        self._mount_request_id = self.own.numbers.for_mount(self.generation)
        # Some mounts are never answered (hazards H2, H3, H5), so they are repeated.
        self._mount_at = now + MOUNT_SECONDS_MAX
        assert self._connection_sequence is not None
        if self._with_data:
            self._post(DataWanted(self._mount_request_id))
        self._post(MountRequest(self._mount_request_id, self.feed.fed, self._connection_sequence))

    def _lose_stream(self) -> None:
        if self.phase is PartitionPhase.MOUNTED:
            self._effects.append(MountChanged(None))
        self._connection_sequence = None
        self._mount_request_id = None
        self._mount_at = None
        self._not_ready_seconds = NOT_READY_SECONDS_MIN
        self._nudge_at = None
        self.feed.lose_stream()
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
                self.feed.is_due = True
            case MountState.NOT_READY:
                self._ahead_since = None
                self._mount_later(now)
            case MountState.CLIENT_AHEAD:
                # It may be a server that has lost the partition and does not know yet.
                if self._ahead_since is None:
                    self._ahead_since = now
                    self._effects.append(AheadSuspected(self.feed.high_water_mark))
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
        if len(submissions) > (left := self.own.numbers.left):
            submissions = [*submissions]
            self._waiting.extend(submissions[left:])
            submissions = submissions[:left]
        self.own.send(submissions, self.generation)
        self._nudge_at = now + self._long_wait_seconds

    def _send_waiting(self, now: float) -> None:
        if self._held or not self.own.numbers.left:
            return
        if self.phase is PartitionPhase.MOUNTED and self.own.has_room(len(self._waiting)):
            waiting, self._waiting = self._waiting, deque()
            self._submit(waiting, now)

    def _send_rows(self, now: float) -> None:
        if self.phase is not PartitionPhase.MOUNTED or self._held:
            return
        rows = self.own.take_rows(self.feed.high_water_mark, self.generation, now)
        if rows:
            self._outbox += self.own.take_batches()
            self._outbox += rows
            self._nudge_at = now + self._long_wait_seconds

    def _see_to_client_id(self) -> None:
        """Ask for the next client ID in time, and say when nothing is left of this one. A partition
        whose client is ahead of the log never learns what became of its appends, nor sends any."""
        numbers = self.own.numbers
        if not self._asked_for_client_id and numbers.last > numbers.renewal_after:
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
        self._outbox += self.own.take_batches()
        self._outbox.append(message)

    def _settle(self) -> None:
        self._effects += self.own.settle(self.feed.high_water_mark)
        if not len(self.own):
            self._nudge_at = None

    # Being fed

    def _receive(self, messages: Sequence[Message], now: float) -> None:
        fed = self.feed.fed
        for message in messages:
            if type(message) is FeedBatch:
                if (run := self.feed.take(message)) is not None:
                    self.own.decide(run)
            else:
                self._hear(message, now)
        if self.feed.fed > fed and self.phase is PartitionPhase.MOUNTING:
            self._mount_at = now + MOUNT_SECONDS_MAX

    def _hear(self, message: Message, now: float) -> None:
        match message:
            case MountResponse():
                self._answer_mount(message, now)
            case FeedSuspended():
                if message.request_id == self._mount_request_id:
                    self.feed.suspend()
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
        numbers = self.own.numbers
        is_own = request_id.client_id == numbers.client_id
        if is_own and request_id.sequence_number > numbers.last:
            # It could still be made: no answer would be final.
            error = LocalProtocolError(f"{request_id} was never sent")
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

    def _ask_for_more(self) -> None:
        assert self._mount_request_id is not None
        if (request := self.feed.ask(self._mount_request_id)) is not None:
            self._post(request)

    # Applying

    def _hand_over(self) -> None:
        if (batch := self.feed.hand_over()) is not None:
            own = self.own.committed_through(batch.last_transaction_id)
            bulks = self.own.rows.bulks if self.own.rows.is_used else []
            self._effects.append(ApplyTransactions(batch, own, bulks))

    def _finish_batch(self, event: Applied, now: float) -> None:
        seconds = event.retry_seconds
        self.feed.finish(event.last_transaction_id, None if seconds is None else now + seconds)
        self.own.forget_through(self.feed.high_water_mark)
        self._settle()

    # Time and the end

    def _catch_up_with_time(self, now: float) -> None:
        if self._mount_at is not None and now >= self._mount_at:
            if self.phase is PartitionPhase.MOUNTING and self.feed.buffer.count:
                # It is this side that is slow: the answer comes after what is not read yet.
                self._mount_at = now + MOUNT_SECONDS_MAX
            else:
                self._mount(now)
        if self.feed.apply_at is not None and now >= self.feed.apply_at:
            self.feed.retry()

    def _close(self) -> None:
        if self.phase is PartitionPhase.MOUNTED:
            self._effects.append(MountChanged(None))
        self.phase = PartitionPhase.CLOSED
        self.closed = True
        self._connection_sequence = None
        self._mount_request_id = None
        self._mount_at = self.feed.apply_at = self._nudge_at = None
        self._waiting.clear()
        self._outbox.clear()
        self.own.close()
