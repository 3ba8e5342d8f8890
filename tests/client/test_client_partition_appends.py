"""Appends of a client's partition: sent, decided by the feed, flushed, and given new numbers."""

from __future__ import annotations

from tests.client.partition_world import (
    ME,
    OTHER,
    World,
    ahead,
    fed,
    only,
    request,
    retried,
    sent,
    submission,
)
from waltz.client.appends.request_numbers import SEQUENCE_NUMBERS_PER_CLIENT_ID
from waltz.client.partitions.client_partition_events import (
    AppendRefused,
    AppendsHeld,
    AppendsSettled,
    Applied,
    ApplyTransactions,
    ClientIdRenewed,
    ClientIdRunsOut,
    FailSubmission,
    FlushWanted,
    GenerationRaised,
    HighWaterMarkLoaded,
    MountChanged,
    ReleaseRoom,
    SendMessages,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.mounting import PartitionPhase
from waltz.errors import LocalProtocolError
from waltz.limits import LONG_WAIT_SECONDS
from waltz.types import Generation, TransactionId
from waltz.wire.client_protocol import (
    AppendRequest,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
)
from waltz.wire.fed import Fed

# Appending


def test_an_append_carries_the_present_generation_and_the_sampled_mark() -> None:
    """PM-20..23; the request ID is made when it is registered."""
    world = World().mounted(mark=41)
    world.step(GenerationRaised(Generation(5)), GenerationRaised(Generation(4)))
    effects = world.step(Submitted([submission(1, mark=40)]))
    expected = AppendRequest(
        request(2, generation=5), TransactionId(40), (), (), (), 1, b"hello", 0x3610A686
    )
    assert effects == [SendMessages(0, [expected])]


def test_submits_wait_for_the_mount_and_go_in_order() -> None:
    """CI-17: appends are blocked until the mount is done."""
    world = World()
    assert world.step(Submitted([submission(1), submission(2)])) == []
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(-1)))
    effects = world.hear(MountResponse(request(1), MountState.READY))
    headers = [message.header for message in sent(effects) if isinstance(message, AppendRequest)]
    assert headers == [1, 2]


def test_the_feed_decides_own_appends_and_fails_older_ones() -> None:
    """CI-15: 4 comes back in the feed, so 2 and 3 are not in the log."""
    world = World().mounted()
    world.step(Submitted([submission(number) for number in (1, 2, 3)]))
    effects = world.hear(fed(0, 4, ME))
    assert retried(effects) == [1, 2]
    assert ReleaseRoom(1) in effects
    (apply,) = only(effects, ApplyTransactions)
    assert isinstance(apply, ApplyTransactions)
    assert [each.number for each in apply.own.values()] == [3]
    assert apply.own[TransactionId(0)].transaction_id == 0


def test_what_has_ended_before_it_was_sent_is_not_sent() -> None:
    world = World().mounted()
    expired = submission()
    assert expired.claim_verdict()
    assert world.step(Submitted([expired])) == []


def test_an_append_that_expired_in_flight_is_as_somebody_elses() -> None:
    world = World().mounted()
    expired = submission()
    world.step(Submitted([expired]))
    assert expired.claim_verdict()
    effects = world.hear(fed(0, 2, ME))
    assert only(effects, ReleaseRoom) == []
    (apply,) = only(effects, ApplyTransactions)
    assert isinstance(apply, ApplyTransactions)
    assert list(apply.transactions) == [Fed(request(2), TransactionId(0), 0)]
    assert apply.own == {}


def test_a_lock_failure_is_held_back_until_the_winner_is_applied() -> None:
    """CI-20: refused because of 50 while the client is at 48; the retry's execute sees 50."""
    world = World().mounted(mark=48)
    mine = submission()
    world.step(Submitted([mine]))
    assert world.hear(LockFailure(request(2), TransactionId(50))) == []
    assert mine.lock_failure == 50
    world.hear(fed(49))
    assert retried(world.step(Applied(TransactionId(49)))) == []
    world.hear(fed(50))
    assert retried(world.step(Applied(TransactionId(50)))) == [1]


def test_a_lock_failure_of_the_past_takes_effect_at_once() -> None:
    world = World().mounted(mark=50)
    world.step(Submitted([submission()]))
    assert retried(world.hear(LockFailure(request(2), TransactionId(50)))) == [1]


def test_a_refused_append_waits_for_its_winner_even_if_a_younger_one_commits() -> None:
    world = World().mounted()
    world.step(Submitted([submission(1), submission(2)]))
    effects = world.hear(LockFailure(request(2), TransactionId(1)), fed(0, 3, ME))
    assert retried(effects) == []
    world.step(Applied(TransactionId(0)))
    world.hear(fed(1))
    assert retried(world.step(Applied(TransactionId(1)))) == [1]


def test_a_lock_failure_of_an_unknown_append_changes_nothing() -> None:
    world = World().mounted()
    assert world.hear(LockFailure(request(77), TransactionId(0))) == []


def test_an_append_that_the_link_cannot_carry_is_given_up() -> None:
    """Hazard H11: the original repeats it for ever."""
    world = World().mounted()
    mine = submission()
    world.step(Submitted([mine]))
    error = LocalProtocolError("upgrade servers")
    assert world.step(AppendRefused(request(2), error)) == [FailSubmission(mine, error)]
    assert world.step(AppendRefused(request(2), error)) == []


# Flushing


def test_after_a_remount_a_flush_decides_what_was_sent_before() -> None:
    """CI-17: five pending, two of them stored: two true, three false."""
    world = World().mounted()
    world.step(Submitted([submission(number) for number in range(1, 6)]))
    world.step(StreamLost(0), StreamOpened(1))
    effects = world.hear(
        fed(0, 2, ME), fed(1, 3, ME), MountResponse(request(7), MountState.READY), stream=1
    )
    assert sent(effects) == [
        FlushRequest(request(6)), FeedRequest(request(7), TransactionId(1))
    ]  # fmt: skip
    assert retried(world.hear(FlushResponse(request(6), TransactionId(1)), stream=1)) == []
    assert retried(world.step(Applied(TransactionId(1)))) == [3, 4, 5]


def test_a_flush_answer_is_held_back_until_its_mark_is_applied() -> None:
    """CI-21."""
    world = World().mounted()
    world.step(Submitted([submission()]))
    effects = world.step(FlushWanted())
    assert sent(effects) == [FlushRequest(request(2))]
    assert retried(world.hear(FlushResponse(request(2), TransactionId(0)))) == []
    world.hear(fed(0))
    assert retried(world.step(Applied(TransactionId(0)))) == [1]


def test_a_flush_with_nothing_pending_sends_nothing() -> None:
    """Section 9.5."""
    assert World().mounted().step(FlushWanted()) == []


def test_a_lost_append_on_a_quiet_partition_is_noticed() -> None:
    """PM-43: the newest append waits too long, so its outcome is asked for."""
    world = World().mounted()
    world.step(Submitted([submission()]))
    assert world.machine.deadline == world.now + LONG_WAIT_SECONDS
    world.sleep(LONG_WAIT_SECONDS / 2)
    world.step(Submitted([submission(2)]))
    assert world.sleep(LONG_WAIT_SECONDS * 0.75) == []
    assert sent(world.sleep(LONG_WAIT_SECONDS / 4)) == [FlushRequest(request(3))]
    assert retried(world.hear(FlushResponse(request(3), TransactionId(-1)))) == [1, 2]
    assert world.machine.deadline is None


def test_a_nudge_that_is_not_answered_is_repeated() -> None:
    world = World().mounted()
    world.step(Submitted([submission()]))
    assert sent(world.sleep(LONG_WAIT_SECONDS)) == [FlushRequest(request(2))]
    assert sent(world.sleep(LONG_WAIT_SECONDS)) == [FlushRequest(request(2))]


def test_what_the_feed_does_not_bring_is_asked_for_again() -> None:
    """The server says that the append is decided by transaction 3, and nothing comes: a server of
    an earlier release has replaced one request by another and has answered one of them only."""
    world = World().mounted()
    world.hear(fed(0), fed(1))
    world.step(Submitted([submission()]))
    assert sent(world.sleep(LONG_WAIT_SECONDS)) == [FlushRequest(request(2))]
    world.hear(FlushResponse(request(2), TransactionId(3)))
    again = [FlushRequest(request(2)), FeedRequest(request(1), TransactionId(1))]
    assert sent(world.sleep(LONG_WAIT_SECONDS)) == again
    world.hear(FlushResponse(request(2), TransactionId(3)))
    world.hear(fed(2))
    assert sent(world.sleep(LONG_WAIT_SECONDS)) == [FlushRequest(request(2))], "it goes on"
    assert sent(world.hear(FeedSuspended(request(1)))) == [
        FeedRequest(request(1), TransactionId(2))
    ]


# Another client ID


def test_a_partition_asks_once_for_the_next_client_id_before_its_numbers_end() -> None:
    world = World(sequence_number=SEQUENCE_NUMBERS_PER_CLIENT_ID * 31 // 32 - 1)
    world.step(StreamOpened(0))
    assert only(world.step(HighWaterMarkLoaded(TransactionId(-1))), ClientIdRunsOut) == []
    mounting = request(SEQUENCE_NUMBERS_PER_CLIENT_ID * 31 // 32)
    world.hear(MountResponse(mounting, MountState.READY))
    assert only(world.step(Submitted([submission()])), ClientIdRunsOut) == [ClientIdRunsOut()]
    assert only(world.step(Submitted([submission()])), ClientIdRunsOut) == []


def test_contexts_beyond_the_last_number_wait_for_the_next_client_id() -> None:
    last = SEQUENCE_NUMBERS_PER_CLIENT_ID
    world = World(sequence_number=last - 3)
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(-1)))
    world.hear(MountResponse(request(last - 2), MountState.READY))
    effects = world.step(Submitted([submission(each) for each in range(5)]))
    assert [message.request_id for message in sent(effects)] == [request(last - 1), request(last)]  # type: ignore[attr-defined]
    assert sent(world.step(Submitted([submission(5)]))) == []
    assert sent(world.hear(fed(0, last - 1, ME), fed(1, last, ME))) == []
    assert only(world.step(AppendsHeld()), AppendsSettled) == [AppendsSettled()]
    assert world.step(ClientIdRenewed(OTHER)) == [MountChanged(None)]
    world.step(Applied(TransactionId(1)))
    assert world.hear(fed(2), stream=0) == [], "the stream spoke for the client ID before"
    effects = world.step(StreamOpened(1), HighWaterMarkLoaded(TransactionId(1)))
    mounting = request(1, client_id=OTHER)
    assert sent(effects) == [MountRequest(mounting, TransactionId(1), 1)]
    effects = world.hear(MountResponse(mounting, MountState.READY), stream=1)
    assert [
        message.request_id for message in sent(effects) if isinstance(message, AppendRequest)
    ] == [request(number, client_id=OTHER) for number in (2, 3, 4, 5)]


def test_held_appends_are_asked_for_and_nothing_is_sent_before_all_are_decided() -> None:
    world = World().mounted()
    world.step(Submitted([submission(1)]))
    effects = world.step(AppendsHeld(), Submitted([submission(2)]))
    assert sent(effects) == [FlushRequest(request(2))]
    assert only(effects, AppendsSettled) == []
    effects = world.hear(fed(0, 2, ME))
    assert only(effects, AppendsSettled) == [AppendsSettled()]
    assert [each for each in sent(effects) if isinstance(each, AppendRequest)] == []
    assert only(world.sleep(1.0), AppendsSettled) == [], "said once"


def test_a_partition_ahead_of_the_log_holds_up_no_client_id() -> None:
    world = World()
    world.step(StreamOpened(0), HighWaterMarkLoaded(TransactionId(9)))
    ahead(world)
    assert only(world.step(AppendsHeld()), AppendsSettled) == [AppendsSettled()]
    world.step(ClientIdRenewed(OTHER))
    assert world.machine.mounting.phase is PartitionPhase.AHEAD
