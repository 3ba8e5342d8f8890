"""Bounds in bytes, by value: who is stopped, and when reading goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.server.builders import append, flush, together
from waltz.limits import BATCHED_APPEND_BYTES, LOCK_BYTES, REQUEST_BYTES
from waltz.server.feeding.backlog import (
    CONNECTION_BACKLOG_BYTES_MAX,
    CROWDED_BYTES_MIN,
    PARTITION_SHARE_BYTES,
    PENDING_APPEND_BYTES_MAX,
    PENDING_APPENDS_MAX,
    Backlog,
    Intake,
    ResumeReading,
    StopReading,
    UnderWay,
    WorkedOff,
    request_bytes,
)


def test_request_counts_with_its_data_and_locks() -> None:
    assert request_bytes(flush()) == REQUEST_BYTES
    large = together(append(1, write=[1, 2], read=[3], data=bytes(1000)), append(2, data=b""))
    assert request_bytes(large) == 2 * BATCHED_APPEND_BYTES + 1000 + 3 * LOCK_BYTES


def test_what_is_worked_off_is_told_once_per_connection() -> None:
    backlog = Backlog()
    backlog.add(1, 10)
    backlog.add(1, 20)
    backlog.add(2, 5)
    backlog.settle(1, 30, 2)
    backlog.drop(2, 7)
    assert backlog.take_effects() == [WorkedOff(1, 30), WorkedOff(2, 7)]
    assert backlog.take_effects() == []
    assert (backlog.count, backlog.byte_count) == (1, 5)


def test_full_partition_stops_those_with_more_than_a_share_until_half_is_free() -> None:
    backlog = Backlog()
    backlog.add(1, PENDING_APPEND_BYTES_MAX)
    backlog.add(2, PARTITION_SHARE_BYTES)
    assert backlog.take_effects() == [StopReading(1)]
    backlog.add(2, 1)
    assert backlog.take_effects() == [StopReading(2)]
    backlog.settle(2, 1)
    assert backlog.take_effects() == [WorkedOff(2, 1), ResumeReading(2)]
    backlog.settle(1, PENDING_APPEND_BYTES_MAX // 2, 0)
    assert backlog.take_effects() == [WorkedOff(1, PENDING_APPEND_BYTES_MAX // 2)]
    backlog.settle(1, PARTITION_SHARE_BYTES + 1, 0)
    assert backlog.take_effects() == [WorkedOff(1, PARTITION_SHARE_BYTES + 1), ResumeReading(1)]


def test_many_small_requests_fill_a_partition_too() -> None:
    backlog = Backlog()
    for _ in range(PENDING_APPENDS_MAX - 1):
        backlog.add(1, REQUEST_BYTES)
    assert backlog.take_effects() == []
    backlog.add(1, REQUEST_BYTES)
    assert backlog.take_effects() == [StopReading(1)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2 * PENDING_APPEND_BYTES_MAX // 3))))
def test_whoever_is_stopped_is_resumed_once_all_is_settled(requests: list[tuple[int, int]]) -> None:
    backlog = Backlog()
    stopped: dict[int, bool] = {}

    def take() -> None:
        for effect in backlog.take_effects():
            if not isinstance(effect, WorkedOff):
                assert stopped.get(effect.connection_id, False) == isinstance(effect, ResumeReading)
                stopped[effect.connection_id] = isinstance(effect, StopReading)
        backlog.check_invariants()

    for connection_id, byte_count in requests:
        backlog.add(connection_id, byte_count)
        take()
    for connection_id, byte_count in requests:
        backlog.settle(connection_id, byte_count)
        take()
    assert not any(stopped.values())
    assert (backlog.count, backlog.byte_count) == (0, 0)


def test_connection_is_read_until_its_bound_and_again_once_half_is_free() -> None:
    """UA-40: whatever the number of partitions it is spread over."""
    intake = Intake()
    half = CONNECTION_BACKLOG_BYTES_MAX // 2
    for opening, byte_count, may_read in (
        (1, half, True),
        (2, half, False),
        (1, -half, False),
        (2, -1, True),
    ):
        if byte_count > 0:
            intake.take(opening, byte_count)
        else:
            intake.settle(opening, -byte_count)
        assert intake.may_read is may_read


def test_connection_is_not_read_while_a_partition_has_stopped_it() -> None:
    intake = Intake()
    intake.stop(1)
    intake.stop(2)
    intake.resume(1)
    stopped = not intake.may_read
    intake.forget(2)
    assert stopped
    assert intake.may_read


def test_what_a_closed_partition_had_is_not_counted_any_more() -> None:
    intake = Intake()
    intake.take(1, 10)
    intake.take(2, 20)
    assert intake.waits_for(1)
    intake.forget(1)
    assert not intake.waits_for(1)
    assert intake.byte_count == 20
    intake.settle(2, 20)
    assert not intake.waits_for(2)


def test_what_all_connections_have_under_way_is_one_sum_and_ends_with_each() -> None:
    noted: list[bool] = []
    together = UnderWay(noted.append)
    one, other = Intake(together), Intake(together)
    one.take(1, CROWDED_BYTES_MIN - 1)
    crowded = [together.is_crowded]
    other.take(1, 1)
    crowded.append(together.is_crowded)
    other.settle(1, 1)
    crowded.append(together.is_crowded)
    assert crowded == [False, True, False]
    assert noted == [True, False], "only changes"
    one.take(1, 1)
    assert together.byte_count >= CROWDED_BYTES_MIN
    assert not together.is_crowded, "one has nobody to make room for"
    one.end()
    assert (together.byte_count, together.connection_count) == (0, 0)
    one.take(1, CROWDED_BYTES_MIN)
    assert together.byte_count == 0, "nobody would settle it"
    other.take(2, CROWDED_BYTES_MIN)
    other.forget(2)
    assert together.byte_count == 0
