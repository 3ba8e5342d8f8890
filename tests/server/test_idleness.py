"""When a client is too silent, and when its server has to say something."""

from __future__ import annotations

from waltz.server.clients.idleness import Idleness, IdlenessFinding


def test_a_client_that_says_nothing_for_too_long_is_silent() -> None:
    """LC-84."""
    idleness = Idleness(30.0, 100.0)
    idleness.begin_reading(101.0)
    assert idleness.deadline == 131.0
    assert idleness.step(130.9) is IdlenessFinding.NOTHING
    assert idleness.step(131.0) is IdlenessFinding.SILENT


def test_whatever_comes_begins_the_time_anew() -> None:
    idleness = Idleness(30.0, 100.0)
    idleness.begin_reading(100.0)
    idleness.hear(125.0)
    idleness.begin_reading(126.0)
    assert idleness.step(155.9) is IdlenessFinding.NOTHING
    assert idleness.step(156.0) is IdlenessFinding.SILENT


def test_who_is_not_read_is_not_silent_and_is_told_that_the_server_lives() -> None:
    """LC-82, LC-83: a server that is full answers no heartbeats."""
    idleness = Idleness(30.0, 100.0)
    idleness.begin_reading(100.0)
    idleness.hear(101.0)
    for beat in range(1, 20):
        assert idleness.deadline == 101.0 + 10.0 * beat
        assert idleness.step(idleness.deadline - 0.1) is IdlenessFinding.NOTHING
        assert idleness.step(idleness.deadline) is IdlenessFinding.BEAT
