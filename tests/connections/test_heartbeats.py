"""When a client says that it lives, and when its server is dead."""

from __future__ import annotations

from waltz.connections.heartbeats import Duty, Heartbeats


def test_a_heartbeat_is_due_at_each_interval_whatever_is_sent() -> None:
    """LC-82."""
    beats = Heartbeats(10.0, 20.0, 100.0)
    for number in range(1, 7):
        beats.begin_reading(beats.deadline - 1)
        assert beats.deadline == 100.0 + 10.0 * number
        assert beats.step(beats.deadline - 0.1) is Duty.NOTHING
        assert beats.step(beats.deadline) is Duty.BEAT
        beats.hear()


def test_a_server_that_answers_nothing_is_given_up_in_time() -> None:
    """LC-83: within interval and time-out."""
    beats = Heartbeats(10.0, 15.0, 100.0)
    beats.begin_reading(100.0)
    assert beats.step(110.0) is Duty.BEAT
    assert beats.step(120.0) is Duty.BEAT
    assert beats.deadline == 125.0
    assert beats.step(124.9) is Duty.NOTHING
    assert beats.step(125.0) is Duty.GIVE_UP


def test_anything_that_comes_is_an_answer() -> None:
    beats = Heartbeats(10.0, 15.0, 100.0)
    beats.begin_reading(100.0)
    assert beats.step(110.0) is Duty.BEAT
    beats.hear()
    beats.begin_reading(124.0)
    assert beats.step(125.0) is Duty.BEAT
    assert beats.step(139.9) is Duty.BEAT
    assert beats.step(140.0) is Duty.GIVE_UP


def test_time_in_which_nobody_reads_does_not_count() -> None:
    """A callback that takes long leaves the answer in the socket."""
    beats = Heartbeats(10.0, 15.0, 100.0)
    beats.begin_reading(100.0)
    beats.hear()
    assert beats.step(110.0) is Duty.BEAT
    assert beats.step(200.0) is Duty.BEAT
    beats.begin_reading(205.0)
    assert beats.step(209.0) is Duty.NOTHING
    assert beats.step(210.0) is Duty.BEAT
    assert beats.deadline == 220.0
    assert beats.step(220.0) is Duty.GIVE_UP
