"""Fault plans that strike disks: failures, flipped bits, no room, disks lost or old.

Owns their draws. The harm is always to one machine's disk, so that of each record a majority of
copies stays whole, from which the others are repaired. `plans.py` has the list of all plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from waltz.sim.faults.drawing import (
    FaultStage,
    crash,
    delay_seconds,
    moments,
    pause_seconds,
    span_seconds,
)
from waltz.sim.faults.kinds import (
    BitFlips,
    DiskFailure,
    Fault,
    FullDisk,
    LostDisk,
    LostFiles,
    OldDisk,
    SlowDisk,
    Stop,
)

FAILURE_SECONDS_MAX: Final = 30.0
"""Seconds that a failing disk waits for operations that can fail."""

OPERATIONS: Final = (
    ("write",),
    ("sync",),
    ("write", "sync"),
    ("open", "remove", "rename", "sync directory", "make directory", "truncate", "preallocate"),
    ("read",),
)
"""Operations that fail together."""


def slow_disk(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """The disks of some storage nodes take long, up to more than servers wait."""
    return [slowness(random, moment, stage) for moment in moments(random, stage, 3)]


def slowness(random: Random, progress: float, stage: FaultStage) -> SlowDisk:
    return SlowDisk(
        progress=progress,
        delay_seconds=delay_seconds(random),
        name=random.choice(stage.storages),
        seconds=span_seconds(random),
        slowest_seconds=random.choice((0.05, 1.0, 12.0)),
    )


def failing_disk(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One machine's disk fails some operations and works again, once to three times.

    Partitions closed by a failure stay closed until the node is started anew, at the end.
    """
    victim = random.choice(stage.storages)
    faults: list[Fault] = []
    for moment in moments(random, stage, 3):
        faults.append(
            DiskFailure(
                progress=moment,
                delay_seconds=delay_seconds(random),
                name=victim,
                operations=random.choice(OPERATIONS),
                passed=random.choice((0, random.randint(0, 20))),
                count=random.choice((1, random.randint(1, 10))),
                done=random.choice((0.0, 0.5, 1.0, random.random())),
            )
        )
        faults += _somebody_dies(random, moment, stage)
    repair = Stop(
        progress=1.0,
        delay_seconds=FAILURE_SECONDS_MAX + 1.0,
        names=(victim,),
        pause_seconds=(0.0,),
        one_by_one=False,
    )
    return [*faults, repair]


def bit_flips(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Bits of one machine's data files flip, once to three times, and it reads them again."""
    victim = random.choice(stage.storages)
    faults: list[Fault] = []
    for moment in moments(random, stage, 3):
        faults.append(
            BitFlips(
                progress=moment,
                delay_seconds=delay_seconds(random),
                name=victim,
                places=tuple(
                    (random.random(), random.random(), random.randrange(8))
                    for _ in range(random.choice((1, 1, random.randint(1, 10))))
                ),
                restarts=random.random() < 0.5,
            )
        )
        faults += _somebody_dies(random, moment, stage)
    return faults


def full_disk(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """Others fill some machines' disks and make room again, once to three times."""
    return [
        FullDisk(
            progress=moment,
            delay_seconds=delay_seconds(random),
            name=random.choice(stage.storages),
            room_bytes=random.choice((0, random.randint(0, 10_000), random.randint(0, 1_000_000))),
            seconds=span_seconds(random),
        )
        for moment in moments(random, stage, 3)
    ]


def lost_disk(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One machine comes back with a blank disk, once or twice."""
    victim = random.choice(stage.storages)
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        pause = pause_seconds(random)
        faults.append(LostDisk(progress=moment, name=victim, pause_seconds=pause))
        faults += _somebody_dies(random, moment, stage)
    return faults


def old_disk(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One machine comes back with its disk of some time ago, once or twice.

    Only once the cluster can tell that the disk is old: `DiskStrikes` has the reason.
    """
    victim = random.choice(stage.storages)
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        faults.append(
            OldDisk(
                progress=moment,
                name=victim,
                seconds=random.choice((0.1, 1.0, 10.0)) * random.random(),
                pause_seconds=pause_seconds(random),
            )
        )
        faults += _somebody_dies(random, moment, stage)
    return faults


def lost_files(random: Random, stage: FaultStage) -> Sequence[Fault]:
    """One machine comes back without its newest segments, once or twice."""
    victim = random.choice(stage.storages)
    faults: list[Fault] = []
    for moment in moments(random, stage, 2):
        pause = pause_seconds(random)
        faults.append(LostFiles(progress=moment, name=victim, pause_seconds=pause))
        faults += _somebody_dies(random, moment, stage)
    return faults


def _somebody_dies(random: Random, progress: float, stage: FaultStage) -> Sequence[Fault]:
    """Sometimes a server or a storage node, whichever, or all nodes at once."""
    groups = ([random.choice(stage.servers)], [random.choice(stage.storages)], [*stage.storages])
    return [crash(random, progress, random.choice(groups))] if random.random() < 0.5 else []
