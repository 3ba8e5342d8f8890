"""Scenarios shrink to what is needed, and to nothing less."""

from __future__ import annotations

from dataclasses import replace

from proofs.shrinking import shrink, signature
from waltz.sim.faults.kinds import Crash, Fault, Partition, Pause, SessionLoss
from waltz.sim.scenario import Scenario, draw_scenario

LOSS = SessionLoss(progress=0.2, delay_seconds=0.4, name="server-0")
CRASH = Crash(
    progress=0.5,
    delay_seconds=3.0,
    names=("storage-0", "storage-1", "storage-2"),
    disk_operations=(1, 2, 3),
    power_lost=True,
    pause_seconds=(8.0, 4.0, 2.0),
)
HELD = Partition(progress=0.6, ways=(("a", "b"), ("b", "a"), ("a", "c")), seconds=16.0, breaks=True)
PAUSE = Pause(progress=0.7, names=("server-0",), seconds=(1.0,))


def scenario(*faults: Fault) -> Scenario:
    return replace(draw_scenario(1, "append", "everything"), faults=faults)


def test_faults_that_are_not_needed_are_dropped() -> None:
    smallest, runs_count = shrink(
        scenario(LOSS, CRASH, HELD, PAUSE),
        lambda each: any(isinstance(fault, Pause) for fault in each.faults),
    )
    (pause,) = smallest.faults
    assert pause == replace(PAUSE, seconds=(0.0,))
    assert smallest.transactions == 0
    assert 0 < runs_count < 40


def test_faults_become_milder_and_strike_fewer() -> None:
    def fails(each: Scenario) -> bool:
        crashes = [fault for fault in each.faults if isinstance(fault, Crash)]
        held = [fault for fault in each.faults if isinstance(fault, Partition)]
        return (
            any("storage-1" in crash.names and max(crash.pause_seconds) >= 1.0 for crash in crashes)
            and any(("b", "a") in each.ways and each.seconds >= 3.0 for each in held)
            and each.transactions >= 4
        )

    smallest, _ = shrink(scenario(LOSS, CRASH, HELD, PAUSE), fails)
    crash, held = smallest.faults
    assert isinstance(crash, Crash)
    assert (crash.names, crash.disk_operations, crash.delay_seconds) == (("storage-1",), (2,), 0.0)
    assert 1.0 <= crash.pause_seconds[0] < 2.0
    assert isinstance(held, Partition)
    assert held.ways == (("b", "a"),)
    assert 3.0 <= held.seconds < 6.0
    assert 4 <= smallest.transactions < 8


def test_what_cannot_shrink_stays_and_time_is_bounded() -> None:
    assert shrink(scenario(LOSS), lambda _: False)[0] == scenario(LOSS)
    assert shrink(scenario(LOSS, CRASH, HELD, PAUSE), lambda _: True, runs_max=1)[1] == 1


def test_signatures_leave_out_facts() -> None:
    one = signature(
        ["I1 durability: context 3 of client-0", "not done after 10.5 virtual seconds: x"]
    )
    other = signature(["not done after 7.25 virtual seconds: y\nmore"])
    assert one > other
    assert signature([]) == frozenset()
