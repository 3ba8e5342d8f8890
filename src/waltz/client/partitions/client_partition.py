"""One partition as a client sees it: mount, appends, feed, verdicts, retries.

Owns what waits to be sent, and when verdicts are asked for; `Mounting` owns the mount,
`PartitionFeed` what comes, `OwnAppends` what was sent. Must not know connections, threads or
callbacks: those are effects. Always: a submission is in one place only.
Source: Client-Server Communication; rows CI-10 to CI-27.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, assert_never

from waltz.client.appends.own_appends import OwnAppends
from waltz.client.appends.submission import Submission
from waltz.client.partitions.client_partition_events import (
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
    OutcomeWanted,
    PartitionClosed,
    Received,
    SendMessages,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.mounting import Mounting, PartitionPhase
from waltz.client.partitions.outcome_questions import OutcomeQuestions, OutcomeRefused
from waltz.client.partitions.partition_feed import FEED_BUFFER_TRANSACTIONS_MAX, PartitionFeed
from waltz.connections.denial_errors import as_kind, denial_error
from waltz.errors import LocalProtocolError, PermissionLostError
from waltz.limits import (
    APPLY_TRANSACTIONS_MAX,
    CLIENT_AHEAD_SECONDS,
    LONG_WAIT_SECONDS,
)
from waltz.types import (
    NO_GENERATION,
    NOTHING,
    ClientId,
    PartitionId,
    TransactionId,
)
from waltz.wire.batch_protocol import (
    AppendBatch,
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
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.message import Message

SENT_BEFORE: Final = (
    "what was sent before has no outcome yet, and may be in the log: ask for the outcome once the"
    " partition is granted again"
)


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
        """`with_data`: the feed is to bring the data along, if the server can do that."""
        self.mounting = Mounting(ahead_seconds_max)
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
        self._with_data = with_data
        self._questions = OutcomeQuestions()
        self.mark_known = False
        """Whether the application has said its mark."""
        self._told_mark = NOTHING
        """The last transaction of the log, as a server has said it in an answer."""
        self._waiting: deque[Submission] = deque()
        self._nudge_at: float | None = None
        self._effects: list[Effect] = []
        self._outbox: list[Message] = []

    @property
    def mounted_stream(self) -> int | None:
        """Return the stream that the partition is mounted on; None if it is not mounted."""
        is_mounted = self.mounting.phase is PartitionPhase.MOUNTED
        return self.mounting.stream if is_mounted else None

    @property
    def known_mark(self) -> TransactionId:
        """The last transaction that is known to be in the log: the feed or an answer has it."""
        return max(self.feed.fed, self._told_mark)

    @property
    def deadline(self) -> float | None:
        questions, apply_at, send_at = self._questions, self.feed.apply_at, self.own.rows.send_at
        if self.mounting.at is apply_at is send_at is None and not questions.after:
            return self._nudge_at  # as nearly always
        times = [self.mounting.at, apply_at, self._nudge_at]
        if self.mounting.phase is PartitionPhase.MOUNTED:
            times += (questions.deadline, send_at)
        return min((time for time in times if time is not None), default=None)

    def step(self, events: Sequence[Event], now: float) -> Sequence[Effect]:
        self._effects = []
        for event in events:
            self._take(event, now)
        own, feed = self.own, self.feed
        if not self.closed:
            if self.mounting.at is not None or feed.apply_at is not None:
                self._catch_up_with_time(now)
            if self._nudge_at is not None and now >= self._nudge_at:
                self._nudge_at = None
                feed.nudge(is_behind=own.held.is_decided_beyond(feed.fed))
                self._flush(now)
            if feed.in_hand.runs or feed.buffer.count:
                self._hand_over()
            if feed.is_due and self.mounting.phase is PartitionPhase.MOUNTED:
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
            assert self.mounting.stream is not None, "what waits goes with its stream"
            self._effects.append(SendMessages(self.mounting.stream, self._outbox))
            self._outbox = []
        if own.released or own.retries:
            self._effects += own.take_effects()
        if self._held or own.numbers.last > own.numbers.renewal_after:
            self._see_to_client_id()
        return self._effects

    def check_invariants(self) -> None:
        self.own.check_invariants()
        self.feed.check_invariants()
        self.mounting.check_invariants()
        assert self.closed == (self.mounting.phase is PartitionPhase.CLOSED)
        committed = self.own.committed.through(self.feed.fed)
        assert all(self.feed.high_water_mark < each for each in committed)

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Received():
                if event.connection_sequence == self.mounting.stream:
                    self._receive(event.messages, now)
            case Applied():
                self._finish_batch(event, now)
            case Submitted():
                self._submit(event.submissions, now)
            case StreamOpened():
                self._open_stream(event, now)
            case StreamLost():
                if event.connection_sequence == self.mounting.stream:
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
        if self.mounting.is_over:
            return
        if self.mounting.stream is not None:
            self._lose_stream()
        self.mounting.stream = event.connection_sequence
        self.own.knows_batches = event.knows_batches
        if self.mark_known and (len(self.own) or not self.feed.is_empty):
            # An own append may lie between our mark and one that another process has moved on;
            # skipping it would lose its verdict, so only an idle partition asks again (PM-27).
            self._mount(now)
        else:
            self.mounting.phase = PartitionPhase.LOADING
            self._effects.append(LoadHighWaterMark())

    def _load(self, high_water_mark: TransactionId, now: float) -> None:
        if self.mounting.phase is not PartitionPhase.LOADING:
            return
        self.feed.begin_after(high_water_mark)
        self.mark_known = True
        self._mount(now)

    def _mount(self, now: float) -> None:
        mounting, request_id = self.mounting, self.own.numbers.for_mount(self.generation)
        assert mounting.stream is not None
        mounting.begin(request_id, now)
        if self._with_data:
            self._post(DataWanted(request_id))
        self._post(MountRequest(request_id, self.feed.fed, mounting.stream))

    def _lose_stream(self) -> None:
        self._effects += self.mounting.lose_stream()
        self._nudge_at = None
        self.feed.lose_stream()
        self.own.lose_stream()
        self._outbox.clear()
        self._questions.reset()

    def _answer_mount(self, response: MountResponse, now: float) -> None:
        was, was_denied = self.mounting.phase, self.mounting.denied is not None
        self._effects += self.mounting.answer(response, self.feed.high_water_mark, now)
        if was is PartitionPhase.MOUNTING and self.mounting.phase is PartitionPhase.MOUNTED:
            if was_denied:
                self.feed.grant()
            # Whatever was sent on an earlier stream is decided now; the answer says up to which
            # transaction one has to look (CI-17).
            self._flush(now)
            self.feed.is_due = True

    # Appending

    def _submit(self, submissions: Sequence[Submission] | deque[Submission], now: float) -> None:
        if not submissions:
            return
        is_mounted = self.mounting.phase is PartitionPhase.MOUNTED
        must_wait = not is_mounted or self._waiting or self._held
        if must_wait or not self.own.has_room(len(submissions)):
            self._waiting.extend(submissions)
            if self.mounting.phase is PartitionPhase.DENIED:
                self._fail_waiting()
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
        if self.mounting.phase is PartitionPhase.MOUNTED and self.own.has_room(len(self._waiting)):
            waiting, self._waiting = self._waiting, deque()
            self._submit(waiting, now)

    def _send_rows(self, now: float) -> None:
        if self.mounting.phase is not PartitionPhase.MOUNTED or self._held:
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
            self.is_settled = self.mounting.is_over or not len(self.own)
            if self.is_settled:
                self._effects.append(AppendsSettled())

    def _renew(self, client_id: ClientId) -> None:
        assert self.is_settled, "what is undecided was sent under the client ID before"
        self._held = self.is_settled = self._asked_for_client_id = False
        if self.mounting.stream is not None:
            self._lose_stream()
        if not self.mounting.is_over:
            self.own.renew(client_id)

    def _flush(self, now: float) -> None:
        last = self.own.last_sent
        if last is None or self.mounting.phase is not PartitionPhase.MOUNTED:
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
        if self.feed.fed > fed and self.mounting.phase is PartitionPhase.MOUNTING:
            self.mounting.wait(now)

    def _hear(self, message: Message, now: float) -> None:
        match message:
            case MountResponse():
                self._answer_mount(message, now)
            case FeedSuspended():
                if message.request_id == self.mounting.request_id:
                    self.feed.suspend()
            case AppendRejected() | FlushResponse():
                if type(message) is FlushResponse:
                    self._told_mark = max(self._told_mark, message.transaction_id)
                self.own.hear(message, now)
                self._settle()
            case Denied():
                self._hear_denial(message, now)
            case OutcomeResponse():
                known = self._questions.receive(message, now)
                if known is not None:
                    self._effects.append(known)
            case _:
                raise AssertionError(f"{type(message).__name__} is for no partition of a client")

    def _hear_denial(self, message: Denied, now: float) -> None:
        """Give up the appends that were denied, or everything until the partition is granted."""
        error = denial_error(message)
        if message.request_code == AppendBatch.CODE:
            denied = self.own.deny(message.request_id, message.count)
        else:
            effects = self.mounting.deny(error, now)
            if not effects:
                return
            self._effects += effects
            self._nudge_at = None
            denied = self.own.give_up()
            self._fail_waiting()
        for submission, may_be_written in denied:
            failed = as_kind(PermissionLostError, error, SENT_BEFORE) if may_be_written else error
            self._effects.append(FailSubmission(submission, failed))
        self._settle()

    def _fail_waiting(self) -> None:
        """Fail what is not sent, for the partition is denied."""
        error = self.mounting.denied
        assert error is not None
        self._effects += [FailSubmission(each, error) for each in self._waiting]
        self._waiting.clear()

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
            error = LocalProtocolError(f"the append {request_id} was never sent")
            self._effects.append(OutcomeRefused(request_id, error))
        else:
            self._questions.want(request_id, event.after)

    def _ask_outcomes(self, now: float) -> None:
        """Ask behind the appends of this stream, on which the server does not decide them later."""
        if self.mounting.phase is not PartitionPhase.MOUNTED:
            return
        for question in self._questions.ask(now, knows_batches=self.own.knows_batches):
            if isinstance(question, OutcomeRefused):
                self._effects.append(question)
            else:
                self._post(question)

    def _ask_for_more(self) -> None:
        assert self.mounting.request_id is not None
        if (request := self.feed.ask(self.mounting.request_id)) is not None:
            self._post(request)

    # Applying

    def _hand_over(self) -> None:
        if (batch := self.feed.hand_over()) is not None:
            own = self.own.committed.through(batch.last_transaction_id)
            bulks = self.own.rows.bulks if self.own.rows.is_used else []
            self._effects.append(ApplyTransactions(batch, own, bulks))

    def _finish_batch(self, event: Applied, now: float) -> None:
        seconds = event.retry_seconds
        self.feed.finish(event.last_transaction_id, None if seconds is None else now + seconds)
        self.own.committed.forget_through(self.feed.high_water_mark)
        self._settle()

    # Time and the end

    def _catch_up_with_time(self, now: float) -> None:
        mounting = self.mounting
        if mounting.at is not None and now >= mounting.at:
            if mounting.phase is PartitionPhase.MOUNTING and self.feed.buffer.count:
                # It is this side that is slow: the answer comes after what is not read yet.
                mounting.wait(now)
            else:
                self._mount(now)
        if self.feed.apply_at is not None and now >= self.feed.apply_at:
            self.feed.retry()

    def _close(self) -> None:
        self._effects += self.mounting.close()
        self.closed = True
        self.feed.apply_at = self._nudge_at = None
        self._waiting.clear()
        self._outbox.clear()
        self.own.close()
