"""What faults are drawn from: moments in order, more in longer runs, spans of all lengths."""

from __future__ import annotations

from random import Random

from waltz.sim.faults.drawing import FaultStage, crash, moments, pause_seconds, some, span_seconds

STAGE = FaultStage(("storage-0", "storage-1"), ("server-0",), ("client-0", "client-1"))


def test_links_are_all_pairs_that_talk() -> None:
    assert STAGE.links == [
        ("server-0", "storage-0"), ("server-0", "storage-1"),
        ("client-0", "server-0"), ("client-1", "server-0"),
    ]  # fmt: skip


def test_moments_are_in_order_and_as_many_as_the_run_is_long() -> None:
    for length in (1, 10):
        stage = FaultStage(("a",), ("b",), ("c",), length)
        counts = set()
        for seed in range(100):
            drawn = moments(Random(seed), stage, 3)
            assert drawn == sorted(drawn)
            assert all(0.0 <= moment < 1.0 for moment in drawn)
            counts.add(len(drawn))
        assert counts == {length, 2 * length, 3 * length}


def test_some_are_one_or_more_and_nobody_twice() -> None:
    counts = set()
    for seed in range(100):
        drawn = some(Random(seed), "abcd")
        assert len(drawn) == len({*drawn})
        counts.add(len(drawn))
    assert counts == {1, 2, 3, 4}


def test_spans_are_shorter_and_longer_than_timeouts() -> None:
    for draw, longest in ((span_seconds, 20.0), (pause_seconds, 15.0)):
        spans = [draw(Random(seed)) for seed in range(200)]
        assert min(spans) < 0.1
        assert max(spans) > longest


def test_crashes_have_one_entry_per_process() -> None:
    fault = crash(Random(1), 0.5, ["a", "b"], power_lost=True)
    assert fault.power_lost
    assert fault.names == ("a", "b")
    assert len(fault.disk_operations) == len(fault.pause_seconds) == 2
    assert {crash(Random(seed), 0.5, ["a"]).power_lost for seed in range(20)} == {True, False}
