"""Plans that strike disks harm one machine's at most, and all kinds of disk work."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from waltz.sim.faults.disk_plans import (
    OPERATIONS,
    bit_flips,
    failing_disk,
    full_disk,
    lost_disk,
    lost_files,
    old_disk,
    slow_disk,
)
from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.kinds import (
    BitFlips,
    Crash,
    DiskFailure,
    Fault,
    FullDisk,
    LostDisk,
    LostFiles,
    OldDisk,
)
from waltz.sim.faults.kinds import SlowDisk as SlowDisk
from waltz.sim.faults.plans import PLANS, Draw
from waltz.sim.simulated_disk import DiskOperation

STAGE = FaultStage(("storage-0", "storage-1", "storage-2"), ("server-0",), ("client-0",))
HARMFUL = BitFlips | LostDisk | OldDisk | LostFiles


def runs(draw: Draw) -> list[Sequence[Fault]]:
    return [draw(Random(seed), STAGE) for seed in range(200)]


@pytest.mark.parametrize("draw", [bit_flips, lost_disk, lost_files, old_disk, failing_disk])
def test_one_machine_is_the_victim_of_a_run(draw: Draw) -> None:
    victims = set()
    for faults in runs(draw):
        struck = {fault.name for fault in faults if isinstance(fault, HARMFUL | DiskFailure)}
        assert len(struck) == 1
        victims |= struck
    assert victims == {*STAGE.storages}


@pytest.mark.parametrize("draw", [bit_flips, lost_disk, lost_files, old_disk, failing_disk])
def test_sometimes_somebody_dies_meanwhile(draw: Draw) -> None:
    dead = {fault.names for faults in runs(draw) for fault in faults if isinstance(fault, Crash)}
    assert {len(names) for names in dead} == {1, 3}
    assert ("server-0",) in dead


def test_only_plans_that_say_so_harm_disks() -> None:
    for plan in PLANS.values():
        harms = any(isinstance(fault, HARMFUL) for faults in runs(plan.draw) for fault in faults)
        assert harms == plan.harms_disks


def test_all_kinds_of_disk_work_fail() -> None:
    kinds = {operation.value for operation in DiskOperation} - {"link"}  # that is archives' alone
    assert {value for values in OPERATIONS for value in values} == kinds
    failures = [
        fault for faults in runs(failing_disk) for fault in faults if isinstance(fault, DiskFailure)
    ]
    assert {failure.operations for failure in failures} == {*OPERATIONS}
    assert all(0.0 <= failure.done <= 1.0 for failure in failures)


def test_slow_and_full_disks_are_those_of_storage_nodes() -> None:
    for draw, kind in ((slow_disk, SlowDisk), (full_disk, FullDisk)):
        faults = [fault for faults in runs(draw) for fault in faults]
        assert all(isinstance(fault, kind) for fault in faults)
        names = {fault.name for fault in faults if isinstance(fault, SlowDisk | FullDisk)}
        assert names == {*STAGE.storages}


def test_places_of_flips_are_shares() -> None:
    for faults in runs(bit_flips):
        for fault in faults:
            if isinstance(fault, BitFlips):
                assert all(0.0 <= f < 1.0 and 0.0 <= o < 1.0 for f, o, _ in fault.places)
