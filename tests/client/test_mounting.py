"""The mount by itself: when it is repeated, and when a server that says AHEAD is believed."""

from __future__ import annotations

from tests.client.partition_world import request
from waltz.client.partitions.client_partition_events import AheadSuspected, MountChanged
from waltz.client.partitions.mounting import Mounting, PartitionPhase
from waltz.limits import MOUNT_SECONDS_MAX, NOT_READY_SECONDS_MAX, NOT_READY_SECONDS_MIN
from waltz.types import TransactionId
from waltz.wire.client_protocol import MountResponse, MountState

MARK = TransactionId(7)


def begun(ahead_seconds_max: float = 10.0) -> Mounting:
    mounting = Mounting(ahead_seconds_max)
    mounting.stream = 0
    mounting.begin(request(1), 0.0)
    return mounting


def answered(
    mounting: Mounting, state: MountState, now: float = 0.0, number: int = 1
) -> list[MountChanged | AheadSuspected]:
    effects = mounting.answer(MountResponse(request(number), state), MARK, now)
    mounting.check_invariants()
    return effects


def test_a_mount_is_repeated_until_its_own_answer_has_come() -> None:
    mounting = begun()
    assert mounting.at == MOUNT_SECONDS_MAX
    assert answered(mounting, MountState.READY, number=2) == []
    assert answered(mounting, MountState.READY) == [MountChanged(MountState.READY)]
    assert mounting.phase.name == "MOUNTED"
    assert not mounting.at
    assert answered(mounting, MountState.READY) == []


def test_a_server_that_is_not_ready_is_asked_ever_later() -> None:
    mounting = begun()
    for expected in (NOT_READY_SECONDS_MIN, 2 * NOT_READY_SECONDS_MIN):
        assert answered(mounting, MountState.NOT_READY) == []
        assert mounting.at == min(expected, NOT_READY_SECONDS_MAX)
        mounting.begin(request(1), 0.0)


def test_a_server_that_says_ahead_is_asked_again_before_it_is_believed() -> None:
    """CI-12."""
    mounting = begun(ahead_seconds_max=10.0)
    assert answered(mounting, MountState.CLIENT_AHEAD, 1.0) == [AheadSuspected(MARK)]
    mounting.begin(request(1), 5.0)
    assert answered(mounting, MountState.CLIENT_AHEAD, 5.0) == []
    mounting.begin(request(1), 11.0)
    assert answered(mounting, MountState.CLIENT_AHEAD, 11.0) == [
        MountChanged(MountState.CLIENT_AHEAD)
    ]
    assert mounting.is_over
    mounting.lose_stream()
    assert mounting.phase.name == "AHEAD", "for good"


def test_a_mounted_partition_tells_of_a_lost_stream_and_of_the_end() -> None:
    mounting = begun()
    assert mounting.lose_stream() == []
    assert mounting.phase is PartitionPhase.DETACHED
    assert not mounting.at
    mounting.begin(request(1), 0.0)
    answered(mounting, MountState.READY)
    assert mounting.close() == [MountChanged(None)]
    assert mounting.is_over
    mounting.check_invariants()
