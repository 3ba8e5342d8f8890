"""Lines that peers cause, and how many of them are written."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from waltz.peer_log import PEER_LINES_MAX, PEER_LINES_SECONDS, PeerLog


@dataclass
class StillLoop:
    """Time that stands still until it is moved."""

    now: float = 1000.0
    timers: list[tuple[float, Callable[[str], object], str]] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[str], object], event: str) -> None:
        assert delay > 0
        self.timers.append((self.now + delay, callback, event))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback, event in due:
            callback(event)


@pytest.fixture
def loop() -> StillLoop:
    return StillLoop()


@pytest.fixture
def peers(loop: StillLoop, caplog: pytest.LogCaptureFixture) -> PeerLog:
    caplog.set_level(logging.INFO)
    return PeerLog(logging.getLogger("a.place"), lambda: loop)


def test_few_lines_are_written_as_they_are(
    loop: StillLoop, peers: PeerLog, caplog: pytest.LogCaptureFixture
) -> None:
    peers.warning("peer_refused peer=%s", "a:1")
    peers.info("peer_left peer=%s", "a:2")
    loop.advance(10 * PEER_LINES_SECONDS)
    assert caplog.record_tuples == [
        ("a.place", logging.WARNING, "peer_refused peer=a:1"),
        ("a.place", logging.INFO, "peer_left peer=a:2"),
    ]


def test_of_many_a_part_is_written_and_the_rest_counted_once(
    loop: StillLoop, peers: PeerLog, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(PEER_LINES_MAX + 1_000):
        peers.warning("peer_refused peer=%s", number)
        loop.advance(0.01)
    assert [*caplog.messages] == [f"peer_refused peer={n}" for n in range(PEER_LINES_MAX)]
    caplog.clear()
    loop.advance(PEER_LINES_SECONDS)
    assert caplog.messages == [
        f"lines_left_out event=peer_refused count=1000 seconds={PEER_LINES_SECONDS:g}"
    ]
    caplog.clear()
    loop.advance(10 * PEER_LINES_SECONDS)
    assert not caplog.messages
    peers.warning("peer_refused peer=%s", "again")
    assert caplog.messages == ["peer_refused peer=again"]


def test_one_event_takes_no_lines_from_another(
    loop: StillLoop, peers: PeerLog, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2 * PEER_LINES_MAX):
        peers.warning("peer_refused")
    peers.warning("peer_faulted")
    assert caplog.messages.count("peer_faulted") == 1


def test_who_comes_now_and_then_is_always_told(
    loop: StillLoop, peers: PeerLog, caplog: pytest.LogCaptureFixture
) -> None:
    count = 5 * PEER_LINES_MAX
    for _ in range(count):
        peers.warning("peer_refused")
        loop.advance(PEER_LINES_SECONDS / (PEER_LINES_MAX - 1))
    assert caplog.messages == ["peer_refused"] * count
