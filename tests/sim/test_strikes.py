"""Each kind of fault does to a machine what it says, and is over when it says so."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.struck_machines import FILE, World, play
from waltz.errors import CoordinatorLostError
from waltz.host import Host
from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.sim.faults.kinds import (
    BitFlips,
    ClockDrift,
    ClockJump,
    CoordinatorOutage,
    CoordinatorSlowness,
    Crash,
    DiskFailure,
    Fault,
    ForeignWrites,
    FullDisk,
    Isolation,
    LostAnswers,
    LostDisk,
    OldDisk,
    Pause,
    SessionLoss,
    SlowDisk,
    Stop,
    count_of,
)
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import until_stopped

# Processes


def crash(*names: str, operations: int = 0, power_lost: bool = True) -> Crash:
    return Crash(
        progress=0.0,
        names=names,
        disk_operations=(operations,) * len(names),
        power_lost=power_lost,
        pause_seconds=(1.0,) * len(names),
    )


def test_a_death_falls_between_any_two_disk_operations() -> None:
    sizes = set()

    async def scene(world: World) -> None:
        disk, before = world.sites.disk("node"), world.size
        await world.strike(crash("node", operations=3, power_lost=False))
        # write, sync, write: dead before the second sync, with its byte seen all the same
        sizes.add(world.size - before)
        assert world.sites.disk("node") is disk
        assert world.strikes.record.counts == {"Crash": 1}

    play(scene, seeds=30)
    assert sizes == {2}


def test_a_power_cut_may_take_what_was_not_synced() -> None:
    kept = set()

    async def scene(world: World) -> None:
        before = world.size
        await world.strike(crash("node", operations=3))
        kept.add(world.size - before)

    play(scene, seeds=30)
    assert kept == {1, 2}


def test_a_process_without_disk_work_dies_all_the_same_and_starts_again() -> None:
    async def scene(world: World) -> None:
        await world.strike(crash("caller", "node", operations=5))
        await asyncio.sleep(1.0)
        assert sorted(world.starts) == ["caller", "caller", "node", "node"]

    play(scene)


def test_crashes_and_stops_that_overlap_leave_one_process() -> None:
    async def scene(world: World) -> None:
        stop = Stop(progress=0.0, names=("node",), pause_seconds=(1.0,), one_by_one=False)
        async with asyncio.TaskGroup() as group:
            for fault in (crash("node", operations=5), crash("node"), stop):
                group.create_task(world.strikes.strike(fault))
            await asyncio.sleep(0.5)
            group.create_task(world.strikes.strike(crash("node")))
        await asyncio.sleep(10.0)
        assert world.starts.count("node") == 2
        assert world.strikes.record.counts.total() == 1

    play(scene, seeds=30)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_processes_end_in_an_orderly_way_one_by_one_or_together(one_by_one: bool) -> None:
    async def scene(world: World) -> None:
        async def idle(host: Host) -> None:
            await until_stopped(asyncio.sleep(1_000_000.0))

        world.sites.add("quick", idle, SimulatedDisk())
        seconds = await world.strike(
            Stop(
                progress=0.0,
                names=("node", "quick"),
                pause_seconds=(3.0, 3.0),
                one_by_one=one_by_one,
            )
        )
        await asyncio.sleep(0.1)
        assert world.starts.count("node") == 2
        assert (seconds >= 6.0) == one_by_one
        assert world.strikes.stubborn == []

    play(scene)


def test_a_process_that_does_not_end_in_time_is_killed() -> None:
    async def scene(world: World) -> None:
        stop = Stop(progress=0.0, names=("caller",), pause_seconds=(0.0,), one_by_one=False)
        assert await world.strike(stop) >= SHUTDOWN_SECONDS_MAX
        assert world.strikes.stubborn == ["caller"]
        await asyncio.sleep(0.1)
        assert world.starts.count("caller") == 2

    play(scene, seeds=2)


def test_a_paused_process_stands_still_with_its_connections_open() -> None:
    async def scene(world: World) -> None:
        before = world.loop.time()
        await world.strike(Pause(progress=0.0, names=("caller",), seconds=(5.0,)))
        await asyncio.sleep(3.0)
        assert world.silence(before, world.heard) > 4.0
        assert world.silence(before, world.ticks) < 1.0
        assert world.silence(world.loop.time() - 1.0, world.heard) < 1.0
        assert world.starts.count("caller") == 1

    play(scene)


def test_pauses_that_overlap_end_with_the_last_and_the_dead_are_not_paused() -> None:
    async def scene(world: World) -> None:
        before = world.loop.time()
        async with asyncio.TaskGroup() as group:
            for seconds in (2.0, 6.0):
                pause = Pause(progress=0.0, names=("node",), seconds=(seconds,))
                group.create_task(world.strikes.strike(pause))
        await asyncio.sleep(1.0)
        assert world.silence(before, world.ticks) > 5.0
        async with asyncio.TaskGroup() as group:
            group.create_task(world.strikes.strike(crash("node")))
            await asyncio.sleep(0.5)
            pause = Pause(progress=0.0, names=("node",), seconds=(50.0,))
            group.create_task(world.strikes.strike(pause))
        await asyncio.sleep(1.0)
        assert world.silence(world.loop.time() - 1.0, world.ticks) < 1.0
        assert world.strikes.record.counts["Pause"] == 2

    play(scene)


# Coordinator


def on_coordinator(fault: Fault, expected: str) -> None:
    """Check what becomes of the calls that a process makes meanwhile."""

    async def scene(world: World) -> None:
        outcomes: set[str] = set()

        async def main(host: Host) -> None:
            coordinator = host.coordinator
            await coordinator.create("/own", b"", ephemeral=True)
            while not done.is_set():
                before = world.loop.time()
                try:
                    children = await coordinator.children("/")
                    version = (await coordinator.read("/shared")).version
                    if "own" not in children:
                        outcomes.add("session lost")
                    if version:
                        outcomes.add("changed")
                except CoordinatorLostError:
                    outcomes.add("lost")
                if world.loop.time() - before > 5.0:
                    outcomes.add("slow")
                await asyncio.sleep(0.1)

        done = asyncio.Event()
        world.sites.coordinator.tree.create("/shared", b"")
        world.sites.add("user", main, SimulatedDisk(), may_end=True)
        await asyncio.sleep(1.0)
        await world.strike(fault)
        await asyncio.sleep(10.0)
        assert expected in outcomes
        await asyncio.sleep(30.0)
        outcomes.clear()
        await asyncio.sleep(5.0)
        assert outcomes <= {"session lost", "changed"}
        assert world.strikes.record.counts.total() == count_of(fault)
        done.set()

    play(scene, seeds=3)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (SessionLoss(progress=0.0, name="user"), "session lost"),
        (CoordinatorOutage(progress=0.0, seconds=20.0), "lost"),
        (CoordinatorSlowness(progress=0.0, seconds=50.0, slowest_seconds=10.0), "slow"),
        (LostAnswers(progress=0.0, seconds=20.0, share=0.9), "lost"),
        (ForeignWrites(progress=0.0, choices=(0.1, 0.9), pause_seconds=1.0), "changed"),
        (
            Isolation(
                progress=0.0,
                name="user",
                others=(),
                with_coordinator=True,
                seconds=1.0,
                session_ended=True,
            ),
            "session lost",
        ),
    ],
)
def test_coordinators_give_trouble_of_each_kind(fault: Fault, expected: str) -> None:
    on_coordinator(fault, expected)


# Clocks


def test_clocks_jump() -> None:
    async def scene(world: World) -> None:
        clock = world.sites.site("node").clock
        before = clock.now(), clock.wall_milliseconds()
        await world.strike(ClockJump(progress=0.0, names=("node",), milliseconds=(-5_000,)))
        assert (clock.now(), clock.wall_milliseconds()) == (before[0], before[1] - 5_000)

    play(scene, seeds=1)


def test_clocks_drift_for_a_while() -> None:
    async def scene(world: World) -> None:
        clock = world.sites.site("node").clock
        before, ticks = clock.now(), len(world.ticks)
        fault = ClockDrift(progress=0.0, names=("node", "caller"), rates=(2.0, 0.5), seconds=10.0)
        await world.strike(fault)
        assert clock.now() - before == pytest.approx(20.0)
        assert len(world.ticks) - ticks > 150
        await asyncio.sleep(5.0)
        assert clock.now() - before == pytest.approx(25.0)

    play(scene, seeds=1)


# Disks


def test_disks_are_slow_for_a_while() -> None:
    async def scene(world: World) -> None:
        before = world.loop.time()
        fault = SlowDisk(progress=0.0, name="node", seconds=30.0, slowest_seconds=8.0)
        await world.strike(fault)
        longest.append(world.silence(before, world.ticks))
        await asyncio.sleep(10.0)
        assert world.silence(world.loop.time() - 1.0, world.ticks) < 1.0

    longest: list[float] = []
    play(scene)
    assert max(longest) > 4.0


def test_disks_fail_some_operations_and_no_more() -> None:
    async def scene(world: World) -> None:
        fault = DiskFailure(
            progress=0.0, name="node", operations=("sync",), passed=2, count=3, done=0.0
        )
        ticks = len(world.ticks)
        await world.strike(fault)
        assert len(world.ticks) == ticks + 2
        await asyncio.sleep(1.0)
        assert len(world.errors) == 3
        assert len(world.ticks) > ticks + 2
        assert world.strikes.record.counts == {"DiskFailure": 3}
        assert not world.strikes.harmed

    play(scene)


@pytest.mark.parametrize("restarts", [True, False])
def test_flipped_bits_harm_a_disk(restarts: bool) -> None:
    async def scene(world: World) -> None:
        fault = BitFlips(
            progress=0.0, name="node", places=((0.0, 0.0, 7), (0.9, 0.3, 7)), restarts=restarts
        )
        await world.strike(fault)
        await asyncio.sleep(1.0)
        assert 1 <= world.sites.disk("node").content(FILE).count(b"x"[0] ^ 0x80) <= 2
        assert world.starts.count("node") == 1 + restarts
        assert [*world.strikes.harmed] == ["node"]

    play(scene)


def test_a_full_disk_has_room_again_in_time() -> None:
    async def scene(world: World) -> None:
        await world.strike(FullDisk(progress=0.0, name="node", room_bytes=3, seconds=5.0))
        assert all("no space" in error for error in world.errors)
        assert len(world.errors) > 30
        await asyncio.sleep(1.0)
        assert world.silence(world.loop.time() - 1.0, world.ticks) < 1.0

    play(scene, seeds=2)


def test_a_lost_disk_comes_back_blank_and_an_old_one_as_it_was() -> None:
    async def scene(world: World) -> None:
        before = world.size
        old = OldDisk(progress=0.0, name="node", seconds=3.0, pause_seconds=0.0)
        assert await world.strike(old) >= 3.0
        assert before <= world.size <= before + 2
        assert [*world.strikes.harmed] == ["node"]
        await asyncio.sleep(0.1)
        await world.strike(LostDisk(progress=0.0, name="node", pause_seconds=0.0))
        assert world.sites.disk("node").list_directory("/data") == []
        await asyncio.sleep(1.0)
        assert 0 < world.size < 12
        assert world.starts.count("node") == 3

    play(scene)
