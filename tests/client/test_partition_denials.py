"""What a client makes of a server that denies: its machine by value, hostile denials among it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.client.partition_world import ME, OTHER, World, only, request, sent, submission
from tests.client.test_bulk_appends import last, many
from tests.client.test_partition_batches import feed
from tests.connections.test_pending_requests import P0, P1
from tests.connections.test_pending_requests import World as Requests
from waltz.client.appends.bulk_appends import BulkAppends
from waltz.client.appends.gate import Entry, Gate
from waltz.client.partitions.client_partition_events import (
    AppendsHeld,
    AppendsSettled,
    Effect,
    FailSubmission,
    HighWaterMarkLoaded,
    MountChanged,
    MountDenied,
    OutcomeWanted,
    StreamLost,
    StreamOpened,
    Submitted,
)
from waltz.client.partitions.mounting import PartitionPhase
from waltz.connections.denial_errors import denial_error
from waltz.connections.pending_requests import (
    BodiesWanted,
    MarksWanted,
    PartitionAttached,
    RequestsDenied,
)
from waltz.errors import PermissionDeniedError, PermissionLostError
from waltz.limits import DENIED_SECONDS
from waltz.types import NOTHING, PartitionId, RequestId, TransactionId
from waltz.wire.batch_protocol import AppendBatch, AppendRejected, Reason, Rejection
from waltz.wire.client_protocol import (
    MountRequest,
    MountResponse,
    MountState,
    TransactionDataRequest,
)
from waltz.wire.denial_protocol import NO_PARTITION, Denied, no_request

P2 = PartitionId(2)


def append_denied(first: RequestId, count: int = 1) -> Denied:
    return Denied(AppendBatch.CODE, first, count, P2, "append", "CN=a", "no role of CN=a")


def mount_denied(request_id: RequestId) -> Denied:
    return Denied(MountRequest.CODE, request_id, 1, P2, "read", "CN=a", "no role of CN=a")


WITHDRAWN = mount_denied(no_request(P2))


def opened(stream: int = 0) -> StreamOpened:
    return StreamOpened(stream, knows_batches=True)


def mounted() -> World:
    world = World()
    world.step(opened())
    world.step(HighWaterMarkLoaded(NOTHING))
    world.hear(MountResponse(request(1), MountState.READY))
    assert world.machine.mounting.phase is PartitionPhase.MOUNTED
    return world


def failed(effects: Sequence[Effect]) -> list[tuple[int, bool]]:
    """The submissions that are given up, and whether their errors say that they may be written."""
    found = [each for each in effects if isinstance(each, FailSubmission)]
    assert all(isinstance(each.error, PermissionDeniedError) for each in found)
    return [(each.submission.number, each.error.may_be_written) for each in found]


def test_a_batch_that_is_denied_fails_as_a_whole_and_the_next_one_is_decided() -> None:
    world = mounted()
    world.step(Submitted([submission(1), submission(2)]))
    world.step(Submitted([submission(3), submission(4)]))
    effects = world.hear(append_denied(request(2), 2), feed(0, [(ME, 4, 2)]))
    assert failed(effects) == [(1, False), (2, False)]
    assert len(world.machine.own) == 0
    assert world.machine.mounting.phase is PartitionPhase.MOUNTED


@pytest.mark.parametrize(
    "said",
    [
        append_denied(request(4), 2),
        append_denied(request(2, client_id=OTHER), 2),
        append_denied(request(2), 0),
        append_denied(request(2), -5),
        append_denied(request(2, generation=9), 2),
        append_denied(request(-(2**31)), 2),
    ],
)
def test_a_denial_of_what_was_not_sent_fails_nothing(said: Denied) -> None:
    world = mounted()
    world.step(Submitted([submission(1), submission(2)]))
    assert failed(world.hear(said)) == []
    assert len(world.machine.own) == 2


def test_a_count_beyond_what_was_sent_costs_no_time() -> None:
    world = mounted()
    world.step(Submitted([submission(1)]))
    assert failed(world.hear(append_denied(request(-(2**31)), 2**31 - 1))) == []
    assert failed(world.hear(append_denied(request(2), 2**31 - 1))) == [(1, False)]


def test_an_append_of_an_earlier_stream_is_not_believed_to_be_denied() -> None:
    """It was sent to a server that may have stored it: only the log knows."""
    world = mounted()
    world.step(Submitted([submission(1)]))
    world.step(StreamLost(0), opened(1))
    world.hear(MountResponse(request(3), MountState.READY), stream=1)
    world.step(Submitted([submission(2)]))
    assert failed(world.hear(append_denied(request(2), 9), stream=1)) == [(2, False)]
    assert len(world.machine.own) == 1


def test_an_append_that_was_announced_is_not_believed_to_be_denied() -> None:
    world = mounted()
    world.step(Submitted([submission(1)]))
    assert failed(world.hear(feed(0, [(ME, 2, 1)]), append_denied(request(2)))) == []


def test_a_denied_mount_fails_what_waits_and_is_asked_for_again_after_a_minute() -> None:
    world = World()
    world.step(opened(), Submitted([submission(1)]))
    world.step(HighWaterMarkLoaded(NOTHING))
    effects = world.hear(mount_denied(request(1)))
    (told,) = only(effects, MountDenied)
    assert isinstance(told, MountDenied)
    assert told.error.verb == "read"
    assert failed(effects) == [(1, False)]
    assert failed(world.step(Submitted([submission(2)]))) == [(2, False)], "one that comes later"
    assert world.machine.deadline == world.now + DENIED_SECONDS
    assert sent(world.sleep(DENIED_SECONDS)) == [MountRequest(request(2), NOTHING, 0)]
    effects = world.hear(MountResponse(request(2), MountState.READY))
    assert MountChanged(MountState.READY) in effects
    assert world.machine.mounting.denied is None


def test_a_denied_mount_is_told_once_however_often_it_is_said() -> None:
    world = World()
    world.step(opened())
    world.step(HighWaterMarkLoaded(NOTHING))
    effects = world.hear(*[mount_denied(request(1))] * 5)
    assert len(only(effects, MountDenied)) == 1
    assert world.hear(MountResponse(request(1), MountState.READY)) == []


def test_a_denied_mount_is_asked_for_again_on_the_next_stream() -> None:
    world = World()
    world.step(opened())
    world.step(HighWaterMarkLoaded(NOTHING))
    world.hear(mount_denied(request(1)))
    world.step(StreamLost(0))
    world.step(opened(1))
    effects = world.step(HighWaterMarkLoaded(NOTHING))
    assert sent(effects) == [MountRequest(request(2), NOTHING, 1)]


def test_what_is_undecided_when_a_mount_is_withdrawn_may_be_written() -> None:
    world = mounted()
    world.step(Submitted([submission(1)]))
    world.step(Submitted([submission(2)]))
    world.step(Submitted([submission(3)]), OutcomeWanted(request(2), NOTHING))
    effects = world.hear(WITHDRAWN)
    assert MountChanged(None) in effects
    assert sorted(failed(effects)) == [(1, True), (2, True), (3, False)], "the third was not sent"
    errors = [each.error for each in effects if isinstance(each, FailSubmission)]
    (lost, _) = [each for each in errors if isinstance(each, PermissionLostError)]
    assert "ask for the outcome" in str(lost)
    assert len(world.machine.own) == 0
    assert sent(world.sleep(DENIED_SECONDS))[0] == MountRequest(request(4), NOTHING, 0)


def test_a_context_that_was_beaten_and_waits_for_the_winner_is_not_written() -> None:
    world = mounted()
    world.step(Submitted([submission(1)]))
    lock = Rejection(2, 1, Reason.LOCKED, TransactionId(9), 5)
    world.hear(AppendRejected(request(2), (lock,)))
    assert failed(world.hear(WITHDRAWN)) == [(1, False)]


def test_a_client_id_can_be_renewed_while_a_partition_is_denied() -> None:
    world = mounted()
    world.step(Submitted([submission(1)]))
    world.hear(WITHDRAWN)
    assert AppendsSettled() in world.step(AppendsHeld())


def test_a_denial_before_any_mount_was_asked_for_changes_nothing() -> None:
    world = World()
    world.step(opened())
    assert world.hear(WITHDRAWN) == []


def test_rows_that_are_denied_take_their_call_with_them_and_no_other() -> None:
    appends = BulkAppends()
    first, second = many(10), many(10)
    appends.add(first)
    appends.take_messages(last(0), NOTHING, 0.0)
    appends.add(second)
    appends.take_messages(last(10), NOTHING, 0.0)
    assert appends.deny(1, 10) == [(first, False)]
    appends.check_invariants()
    assert appends.bulks == [second.bulk]
    assert appends.deny(1, 10) == []


def test_a_call_with_some_rows_in_the_log_may_be_written_though_others_are_denied() -> None:
    appends = BulkAppends()
    submitted = many(10)
    appends.add(submitted)
    appends.take_messages(last(0), NOTHING, 0.0)
    appends.commit(1, 4, 0)
    assert appends.deny(5, 6) == [(submitted, True)]
    appends.check_invariants()


def test_rows_under_way_may_be_written_and_finished_calls_stay() -> None:
    appends = BulkAppends()
    finished, under_way, unsent = many(3), many(10), many(10)
    appends.add(finished)
    appends.take_messages(last(0), NOTHING, 0.0)
    appends.commit(1, 3, 0)
    appends.add(under_way)
    appends.take_messages(last(3), NOTHING, 0.0)
    appends.add(unsent)
    assert appends.give_up() == [(under_way, True), (unsent, False)]
    appends.check_invariants()
    assert appends.take_finished(TransactionId(2)) == [finished]


def entry(gate: Gate) -> Entry:
    made = Entry(
        gate, 0.0, needs_room=True, timeout_seconds=None, mount_seconds_max=30.0,
        registration_seconds_max=2.0, nudge=lambda: None,
    )  # fmt: skip
    made.wake = lambda: None
    return made


def test_a_submit_to_a_denied_partition_is_refused_until_it_is_mounted() -> None:
    gate = Gate(3)
    waiting = entry(gate)
    assert waiting.step(0.0) is not None
    gate.deny(denial_error(WITHDRAWN))
    assert not gate.enter(needs_room=True)
    with pytest.raises(PermissionDeniedError):
        waiting.step(0.0)
    gate.set_mounted(False)
    with pytest.raises(PermissionDeniedError):
        entry(gate).step(0.0)
    gate.set_mounted(True)
    assert gate.enter(needs_room=True)


# Requests for data and marks


def test_requests_that_are_denied_end_and_those_for_other_partitions_go_on() -> None:
    world = Requests()
    world.step(PartitionAttached(P0, 0), PartitionAttached(P1, 0))
    world.step(
        BodiesWanted(P0, [TransactionId(1), TransactionId(2)]),
        BodiesWanted(P1, [TransactionId(5)]),
        MarksWanted((P0, P1), 1),
    )
    denied = Denied(TransactionDataRequest.CODE, request(1), 1, P0, "read", "CN=a", "no")
    effects = world.hear(denied, denied)
    assert [each.partition_id for each in effects if isinstance(each, RequestsDenied)] == [P0, P0]
    assert world.machine._partitions[P1].in_flight
    assert not world.machine._partitions[P0].in_flight
    (again,) = world.step(BodiesWanted(P0, [TransactionId(1)]))
    assert again is not None


def test_a_denial_for_the_whole_connection_ends_the_requests_of_its_partitions_only() -> None:
    world = Requests()
    world.step(PartitionAttached(P0, 0), PartitionAttached(P1, 1))
    world.step(MarksWanted((P0, P1), 1))
    denied = Denied(1, no_request(NO_PARTITION), 1, NO_PARTITION, "read", "CN=a", "no")
    effects = world.hear(denied)
    assert [each.partition_id for each in effects if isinstance(each, RequestsDenied)] == [P0]
