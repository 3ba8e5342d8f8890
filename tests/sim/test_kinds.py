"""Faults are data: what is written down reads back, and says how much it is."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from waltz.errors import ConfigurationError
from waltz.sim.faults.kinds import (
    KINDS,
    AddedPartitions,
    BitFlips,
    ChangedPolicy,
    ClockDrift,
    ClockJump,
    CoordinatorOutage,
    CoordinatorSlowness,
    Crash,
    Disconnection,
    DiskFailure,
    Fault,
    Flapping,
    ForeignWrites,
    Forgery,
    FullDisk,
    HalfClose,
    Isolation,
    LostAnswers,
    LostDisk,
    LostFiles,
    OldDisk,
    Partition,
    Pause,
    PutBack,
    Reassignment,
    Rebuilt,
    Replay,
    SessionLoss,
    SetBack,
    SlowDisk,
    SlowLinks,
    Stop,
    as_data,
    count_of,
    from_data,
)

CRASH = Crash(
    progress=0.5,
    names=("a", "b"),
    disk_operations=(0, 3),
    power_lost=True,
    pause_seconds=(0.0, 1.5),
)
HELD = Partition(progress=0.1, ways=(("a", "b"), ("b", "a")), seconds=1.0, breaks=False)
FLAPS = Flapping(progress=0.1, one="a", other="b", times=4, down_seconds=1.0, up_seconds=0.0)
FAILURE = DiskFailure(progress=0.1, name="a", operations=("write",), passed=1, count=3, done=0.5)


def isolation(*others: str) -> Isolation:
    return Isolation(progress=0.1, name="a", others=others, with_coordinator=True, seconds=1.0)


ONE_OF_EACH: list[tuple[Fault, int]] = [
    (CRASH, 2),
    (Stop(progress=0.5, names=("a",), pause_seconds=(1.0,), one_by_one=True), 1),
    (Pause(progress=0.5, delay_seconds=0.1, names=("a", "b", "c"), seconds=(1.0, 2.0, 3.0)), 3),
    (isolation("b", "c"), 2),
    (isolation(), 1),
    (HELD, 2),
    (SlowLinks(progress=0.1, ways=(("a", "b"),), seconds=1.0, slowest_seconds=2.0), 1),
    (FLAPS, 4),
    (Disconnection(progress=0.1, pairs=(("a", "b"), ("a", "c"))), 2),
    (HalfClose(progress=0.1, ways=(("a", "b"), ("a", "c")), kept=0.5), 2),
    (Replay(progress=0.1, ways=(("a", "b"),), choice=0.5, kept=1.0, seconds=1.0), 1),
    (SessionLoss(progress=0.1, name="a"), 1),
    (CoordinatorOutage(progress=0.1, seconds=2.0), 1),
    (CoordinatorSlowness(progress=0.1, seconds=2.0, slowest_seconds=1.0), 1),
    (LostAnswers(progress=0.1, seconds=2.0, share=0.5), 1),
    (ForeignWrites(progress=0.1, choices=(0.1, 0.9), pause_seconds=0.0), 2),
    (
        AddedPartitions(progress=0.1, to=5, killed_after=(0.5,)),
        1,
    ),
    (ChangedPolicy(progress=0.1, denied=(0, 2), appends_only=True, seconds=5.0), 2),
    (
        Reassignment(
            progress=0.1, holders=(("a", "b"), (), ("c",)), at_once=True, pause_seconds=0.5
        ),
        2,
    ),
    (ClockJump(progress=0.1, names=("a", "b"), milliseconds=(-5, 5)), 2),
    (ClockDrift(progress=0.1, names=("a",), rates=(2.0,), seconds=1.0), 1),
    (SlowDisk(progress=0.1, name="a", seconds=1.0, slowest_seconds=0.5), 1),
    (FAILURE, 3),
    (BitFlips(progress=0.1, name="a", places=((0.1, 0.2, 3),), restarts=True), 1),
    (FullDisk(progress=0.1, name="a", room_bytes=100, seconds=5.0), 1),
    (LostDisk(progress=0.1, name="a", pause_seconds=0.0), 1),
    (OldDisk(progress=0.1, name="a", seconds=1.0, pause_seconds=0.0), 1),
    (LostFiles(progress=0.1, name="a", pause_seconds=0.0), 1),
    (
        Forgery(
            progress=0.1,
            server="a",
            storages=("b", "c"),
            partition_id=0,
            client_id=1,
            shows_token=True,
            sessions=(9,),
            seconds=1.0,
        ),
        3,
    ),
    (SetBack(progress=0.1, names=("a",), seconds=1.0, pause_seconds=0.0), 1),
    (PutBack(progress=0.1, names=("a",), seconds=1.0, moves=("a", "a"), pause_seconds=0.0), 1),
    (
        Rebuilt(
            progress=0.1,
            names=("a",),
            survivors=("b", "c"),
            seconds=1.0,
            refuses=True,
            pause_seconds=0.0,
        ),
        1,
    ),
]


def test_there_is_an_example_of_every_kind() -> None:
    assert {type(fault) for fault, _ in ONE_OF_EACH} == {*KINDS}


def test_faults_read_back_as_they_were_written() -> None:
    faults = tuple(fault for fault, _ in ONE_OF_EACH)
    assert from_data(json.loads(json.dumps(as_data(faults)))) == faults


@pytest.mark.parametrize(("fault", "count"), ONE_OF_EACH)
def test_every_process_and_link_that_a_fault_strikes_counts(fault: Fault, count: int) -> None:
    assert count_of(fault) == count


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "Crash"},
        ["Crash"],
        [{"kind": "Earthquake", "progress": 0.1}],
        [{"progress": 0.1}],
        [{"kind": "SessionLoss", "progress": 0.1}],
        [{"kind": "SessionLoss", "progress": 0.1, "name": "a", "magnitude": 7}],
    ],
)
def test_what_is_no_fault_is_refused(data: object) -> None:
    with pytest.raises(ConfigurationError):
        from_data(data)


def test_every_kind_says_when_it_strikes() -> None:
    for kind in KINDS:
        assert {"progress", "delay_seconds"} <= {each.name for each in fields(kind)}
