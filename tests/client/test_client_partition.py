"""The machine by value: events in, effects out. Rows of the specification are cited."""

from __future__ import annotations

from random import Random

import pytest

from tests.client.partition_world import ME, World, ahead, fed, ids, only, request, sent, submission
from waltz.client.partitions.client_partition_events import (
    AheadSuspected,
    Applied,
    ApplyTransactions,
    Effect,
    Event,
    HighWaterMarkLoaded,
    LoadHighWaterMark,
    MountChanged,
    PartitionClosed,
    Received,
    RetrySubmissions,
    SendMessages,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.mounting import PartitionPhase
from waltz.limits import (
    CLIENT_AHEAD_SECONDS,
    MOUNT_SECONDS_MAX,
    NOT_READY_SECONDS_MAX,
    NOT_READY_SECONDS_MIN,
)
from waltz.types import RequestId, TransactionId
from waltz.wire.client_protocol import (
    AppendRequest,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.message import Message

# Mounting


def test_a_new_stream_asks_the_application_for_its_mark_and_then_mounts() -> None:
    """PM-27, CI-04."""
    world = World()
    assert world.step(StreamOpened(4)) == [LoadHighWaterMark()]
    effects = world.step(HighWaterMarkLoaded(TransactionId(99)))
    assert effects == [SendMessages(4, [MountRequest(request(1), TransactionId(99), 4)])]


def test_a_ready_mount_asks_for_the_feed_in_the_mounts_name() -> None:
    """CI-26; section 6: the feed request carries the request ID of the mount."""
    world = World()
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(9)))
    effects = world.hear(fed(10), MountResponse(request(1), MountState.READY))
    assert MountChanged(MountState.READY) in effects
    assert sent(effects) == [FeedRequest(request(1), TransactionId(10))]


def test_a_server_that_is_not_ready_is_asked_again_with_a_new_request_id() -> None:
    """CI-25; same connection sequence. Soon at first: a partition that moves is open again soon."""
    world = World()
    world.step(StreamOpened(6), HighWaterMarkLoaded(TransactionId(-1)))
    pause, pauses = NOT_READY_SECONDS_MIN, []
    for attempt in range(1, 11):
        assert world.hear(MountResponse(request(attempt), MountState.NOT_READY), stream=6) == []
        assert world.machine.deadline == world.now + pause
        pauses.append(pause)
        effects = world.sleep(pause)
        assert sent(effects) == [MountRequest(request(attempt + 1), TransactionId(-1), 6)]
        pause = min(2 * pause, NOT_READY_SECONDS_MAX)
    assert pauses[-1] == NOT_READY_SECONDS_MAX
    world.step(StreamLost(6), StreamOpened(7), HighWaterMarkLoaded(TransactionId(-1)))
    world.hear(MountResponse(request(12), MountState.NOT_READY), stream=7)
    assert world.machine.deadline == world.now + NOT_READY_SECONDS_MIN


def test_an_answer_to_an_older_mount_is_ignored() -> None:
    world = World()
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(-1)))
    world.hear(MountResponse(request(1), MountState.NOT_READY))
    world.sleep(NOT_READY_SECONDS_MAX)
    assert world.hear(MountResponse(request(1), MountState.READY)) == []
    assert world.machine.mounting.phase is PartitionPhase.MOUNTING


def test_a_mount_that_is_never_answered_is_repeated() -> None:
    """Hazards H2, H3, H5."""
    world = World()
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(-1)))
    assert world.sleep(MOUNT_SECONDS_MAX / 2) == []
    world.hear(fed(0))
    world.step(Applied(TransactionId(0)))
    assert sent(world.sleep(MOUNT_SECONDS_MAX * 0.75)) == []
    effects = world.sleep(MOUNT_SECONDS_MAX / 2)
    assert sent(effects) == [MountRequest(request(2), TransactionId(0), 0)]


def test_a_mount_is_not_repeated_while_this_side_is_the_slow_one() -> None:
    world = World(apply_count_max=1)
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(-1)))
    world.hear(fed(0), fed(1))
    assert world.sleep(2 * MOUNT_SECONDS_MAX) == []
    world.step(Applied(TransactionId(0)))
    assert sent(world.sleep(MOUNT_SECONDS_MAX)) == [MountRequest(request(2), TransactionId(1), 0)]


def test_a_client_that_is_ahead_says_so_for_good() -> None:
    """CI-12."""
    world = World()
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(1000)))
    assert ahead(world) == [
        AheadSuspected(TransactionId(1000)),
        MountChanged(MountState.CLIENT_AHEAD),
    ]
    assert world.now >= CLIENT_AHEAD_SECONDS
    assert world.step(StreamLost(0), StreamOpened(1)) == []
    assert world.machine.deadline is None


def test_a_server_that_has_lost_the_partition_does_not_make_a_client_ahead() -> None:
    """It says what it knows, which is old; the one that has the partition now knows better."""
    world = World()
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(1000)))
    world.hear(MountResponse(request(1), MountState.CLIENT_AHEAD))
    world.step(StreamLost(0), StreamOpened(1), HighWaterMarkLoaded(TransactionId(1000)))
    effects = world.hear(MountResponse(request(2), MountState.READY), stream=1)
    assert MountChanged(MountState.READY) in effects


def test_a_server_that_is_not_ready_in_between_is_not_believed_sooner() -> None:
    world = World(ahead_seconds_max=1.0)
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(1000)))
    said = [*world.hear(MountResponse(request(1), MountState.CLIENT_AHEAD))]
    world.sleep(0.9)
    said += world.hear(MountResponse(request(2), MountState.NOT_READY))
    world.sleep(0.9)
    said += world.hear(MountResponse(request(3), MountState.CLIENT_AHEAD))
    assert said == [AheadSuspected(TransactionId(1000))] * 2


def test_a_lost_stream_unmounts_and_the_next_one_mounts_where_the_feed_stopped() -> None:
    world = World().mounted()
    world.hear(fed(0), fed(1))
    assert world.step(StreamLost(0)) == [MountChanged(None)]
    effects = world.step(StreamOpened(3))
    assert sent(effects) == [MountRequest(request(2), TransactionId(1), 3)]


def test_an_idle_partition_asks_the_application_again_when_it_remounts() -> None:
    """PM-27: another process may have moved the shared mark on."""
    world = World().mounted()
    world.step(StreamLost(0))
    assert world.step(StreamOpened(1)) == [LoadHighWaterMark()]
    effects = world.step(HighWaterMarkLoaded(TransactionId(50)))
    assert sent(effects) == [MountRequest(request(2), TransactionId(50), 1)]


def test_a_mark_that_the_application_has_set_back_is_not_followed() -> None:
    world = World().mounted(mark=9)
    world.step(StreamLost(0), StreamOpened(1))
    effects = world.step(HighWaterMarkLoaded(TransactionId(-1)))
    assert sent(effects) == [MountRequest(request(2), TransactionId(9), 1)]


def test_a_partition_with_pending_appends_does_not_skip_ahead() -> None:
    """An own transaction may be among what would be skipped, and its verdict with it."""
    world = World().mounted()
    world.step(Submitted([submission()]))
    world.step(StreamLost(0))
    effects = world.step(StreamOpened(1))
    assert effects == [SendMessages(1, [MountRequest(request(3), TransactionId(-1), 1)])]


def test_messages_of_an_older_stream_are_ignored() -> None:
    world = World().mounted()
    world.step(StreamLost(0), StreamOpened(1))
    assert world.hear(fed(0), stream=0) == []


# Feeding and applying


def test_only_the_next_transaction_is_taken() -> None:
    """CI-13: neither repetitions nor what is ahead."""
    world = World().mounted(mark=4)
    effects = world.hear(fed(4), fed(6), fed(5), fed(5), fed(6))
    assert ids(effects) == [5, 6]


def test_batches_are_handed_over_one_at_a_time_and_bounded() -> None:
    """PM-28."""
    world = World(apply_count_max=3).mounted()
    assert ids(world.hear(*map(fed, range(5)))) == [0, 1, 2]
    assert ids(world.hear(fed(5))) == []
    assert ids(world.step(Applied(TransactionId(2)))) == [3, 4, 5]


def test_what_failed_is_handed_over_again_later_and_nothing_is_skipped() -> None:
    """PM-29, PM-38."""
    world = World().mounted()
    world.hear(fed(0), fed(1), fed(2))
    assert ids(world.step(Applied(TransactionId(0), retry_seconds=0.5))) == []
    assert world.machine.feed.high_water_mark == 0
    assert ids(world.sleep(0.4)) == []
    assert ids(world.sleep(0.2)) == [1, 2]
    world.step(Applied(TransactionId(0), retry_seconds=0.5))
    assert ids(world.sleep(0.5)) == [1, 2]
    world.step(Applied(TransactionId(2)))
    assert world.machine.feed.high_water_mark == 2


def test_own_transactions_stay_own_when_a_batch_is_repeated() -> None:
    """CI-30."""
    world = World().mounted()
    world.step(Submitted([submission()]))
    (first,) = only(world.hear(fed(0, 2, ME)), ApplyTransactions)
    world.step(Applied(TransactionId(-1), retry_seconds=1.0))
    (again,) = only(world.sleep(1.0), ApplyTransactions)
    assert first == again


def test_a_suspended_feed_is_asked_for_again_at_once() -> None:
    """CI-27."""
    world = World().mounted()
    effects = world.hear(*map(fed, range(100)), FeedSuspended(request(1)))
    assert sent(effects) == [FeedRequest(request(1), TransactionId(99))]


def test_a_suspension_of_an_older_feed_is_ignored() -> None:
    assert World().mounted().hear(FeedSuspended(request(99))) == []


def test_no_more_is_asked_for_while_the_buffer_is_half_full() -> None:
    world = World(apply_count_max=2, buffer_count_max=10).mounted()
    effects = world.hear(*map(fed, range(9)), FeedSuspended(request(1)))
    assert sent(effects) == []
    effects = world.step(Applied(TransactionId(1)))
    assert sent(effects) == [FeedRequest(request(1), TransactionId(8))]


def test_a_full_buffer_has_no_room() -> None:
    world = World(apply_count_max=1, buffer_count_max=4).mounted()
    world.hear(*map(fed, range(5)))
    assert not world.machine.feed.has_room
    world.step(Applied(TransactionId(0)))
    assert world.machine.feed.has_room


def test_while_applying_fails_what_overflows_is_dropped_and_asked_for_again() -> None:
    """PM-38: other partitions of the connection must flow on."""
    world = World(apply_count_max=1, buffer_count_max=4).mounted()
    world.hear(*map(fed, range(5)))
    world.step(Applied(TransactionId(-1), retry_seconds=1.0))
    assert world.machine.feed.has_room
    world.hear(fed(5), fed(6))
    assert world.machine.feed.fed == 4
    assert sent(world.sleep(1.0)) == []
    world.step(Applied(TransactionId(0)))
    effects = world.step(Applied(TransactionId(1)))
    assert sent(effects) == [FeedRequest(request(1), TransactionId(4))]


def test_a_feed_that_ran_ahead_of_what_was_dropped_is_not_relied_on() -> None:
    world = World(apply_count_max=1, buffer_count_max=2).mounted()
    world.hear(*map(fed, range(3)))
    world.step(Applied(TransactionId(-1), retry_seconds=1.0))
    world.hear(fed(3))
    world.sleep(1.0)
    effects = world.step(Applied(TransactionId(0)))
    assert sent(effects) == [FeedRequest(request(1), TransactionId(2))]
    world.step(Applied(TransactionId(1)))
    world.step(Applied(TransactionId(2)))
    # The first feed goes on ahead, the second ends where the log ended: one more is needed.
    assert sent(world.hear(fed(4))) == []
    effects = world.hear(fed(3), FeedSuspended(request(1)))
    assert sent(effects) == [FeedRequest(request(1), TransactionId(3))]
    assert sent(world.hear(fed(4), FeedSuspended(request(1)))) == []


def test_a_closed_partition_is_done() -> None:
    """PM-44."""
    world = World().mounted()
    world.step(Submitted([submission()]))
    assert world.step(PartitionClosed()) == [MountChanged(None)]
    assert world.machine.closed
    assert world.machine.deadline is None


# Everything at once


class Turmoil:
    """A client's partition beside a server that loses connections, drops and refuses appends.

    The truth is a plain list, `log`; once it is `calm` nothing goes wrong any more.
    """

    COUNT = 30

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(apply_count_max=3, buffer_count_max=8)
        self.calm = False
        self.log: list[RequestId] = []
        self.applied: list[int] = []
        self.committed: set[int] = set()
        self._waiting = [submission(number) for number in range(1, self.COUNT + 1)]
        self._loaded: list[Event] = []
        self._in_hand: list[int] = []
        self._stream = -1
        self._connected = False
        self._to_server: list[Message] = []
        self._to_client: list[Message] = []
        self._position = 0
        self._quota = 0
        self._mount: RequestId | None = None

    @property
    def done(self) -> bool:
        return len(self.committed) == self.COUNT and len(self.applied) == len(self.log)

    def advance(self) -> None:
        events, self._loaded = self._loaded, []
        choice = self.random.random()
        if not self._connected and (self.calm or choice < 0.3):
            events.append(self._connect())
        elif self._connected and not self.calm and choice < 0.03:
            self._connected = False
            events.append(StreamLost(self._stream))
        elif self._waiting and choice < 0.4:
            events.append(self._submit())
        elif self._to_server and choice < 0.7:
            self._serve(self._to_server.pop(0))
        elif self._in_hand and choice < 0.85:
            events.append(self._apply())
        else:
            events += self._deliver()
            self.world.now += self.random.choice((0.0, 0.05, 6.0))
        for effect in self.world.step(*events):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendMessages():
                assert effect.connection_sequence == self._stream
                self._to_server.extend(effect.messages)
            case LoadHighWaterMark():
                self._loaded.append(HighWaterMarkLoaded(TransactionId(-1)))
            case ApplyTransactions():
                assert not self._in_hand
                self._in_hand = [each.transaction_id for each in effect.transactions]
                self.committed.update(each.number for each in effect.own.values())
            case RetrySubmissions():
                for each in effect.submissions:
                    assert each.number not in self.committed
                    self._waiting.append(each)

    def _connect(self) -> Event:
        self._stream += 1
        self._connected = True
        self._to_server, self._to_client = [], []
        self._position, self._quota, self._mount = 0, 0, None
        return StreamOpened(self._stream)

    def _submit(self) -> Event:
        each = self._waiting.pop(0)
        each.execute(self.world.machine.feed.high_water_mark)
        return Submitted([each])

    def _apply(self) -> Event:
        count = len(self._in_hand) if self.calm else self.random.randrange(len(self._in_hand) + 1)
        self.applied += self._in_hand[:count]
        last = TransactionId(self._in_hand[0] + count - 1)
        retry_seconds = None if count == len(self._in_hand) else 0.1
        self._in_hand = []
        return Applied(last, retry_seconds)

    def _serve(self, message: Message) -> None:
        match message:
            case MountRequest():
                self._answer_mount(message)
            case AppendRequest():
                fate = 1.0 if self.calm else self.random.random()
                if fate < 0.2 and self.log:
                    winner = TransactionId(self.random.randrange(len(self.log)))
                    self._to_client.append(LockFailure(message.request_id, winner))
                elif fate > 0.4:
                    self.log.append(message.request_id)
            case FlushRequest():
                mark = TransactionId(len(self.log) - 1)
                self._to_client.append(FlushResponse(message.request_id, mark))
            case FeedRequest():
                assert message.request_id == self._mount
                self._position = message.client_high_water_mark + 1
                self._quota = max(len(self.log) - self._position, 5)

    def _answer_mount(self, message: MountRequest) -> None:
        state = MountState.READY
        if not self.calm and self.random.random() < 0.3:
            state = MountState.NOT_READY
        else:
            self._mount, self._position = message.request_id, message.client_high_water_mark + 1
            self._quota = len(self.log) - self._position
            while self._quota > 0:
                self._feed_one()
        self._to_client.append(MountResponse(message.request_id, state))

    def _feed_one(self) -> None:
        request_id = self.log[self._position]
        self._to_client.append(FeedData(request_id, TransactionId(self._position), 0))
        self._position += 1
        self._quota -= 1

    def _deliver(self) -> list[Event]:
        if self._quota and self._position < len(self.log):
            self._feed_one()
            if not self._quota and self._mount is not None:
                self._to_client.append(FeedSuspended(self._mount))
        if not (self._to_client and self._connected):
            return []
        count = self.random.randrange(1, len(self._to_client) + 1)
        messages, self._to_client = self._to_client[:count], self._to_client[count:]
        return [Received(self._stream, messages)]


@pytest.mark.parametrize("seed", range(150))
def test_every_submission_ends_once_and_the_log_is_applied_in_order(seed: int) -> None:
    """I4: applied in order without a gap. I5, I6: each context is in the log exactly once."""
    turmoil = Turmoil(seed)
    for _ in range(600):
        turmoil.advance()
    turmoil.calm = True
    for _ in range(20_000):
        if turmoil.done:
            break
        turmoil.advance()
    assert len(turmoil.committed) == Turmoil.COUNT
    assert turmoil.applied == list(range(len(turmoil.log)))
    assert len(turmoil.log) == Turmoil.COUNT == len(set(turmoil.log))
