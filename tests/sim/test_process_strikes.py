"""Processes die, end and stand still as a fault says, and come back."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.struck_machines import World, play
from waltz.host import Host
from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.sim.faults.kinds import Crash, Pause, Stop
from waltz.sim.faults.process_strikes import kill_all, start_again
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import until_stopped


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
        assert world.strikes.processes.stubborn == []

    play(scene)


def test_a_process_that_does_not_end_in_time_is_killed() -> None:
    async def scene(world: World) -> None:
        stop = Stop(progress=0.0, names=("caller",), pause_seconds=(0.0,), one_by_one=False)
        assert await world.strike(stop) >= SHUTDOWN_SECONDS_MAX
        assert world.strikes.processes.stubborn == ["caller"]
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


def test_machines_are_killed_together_or_not_at_all() -> None:
    async def scene(world: World) -> None:
        sites = world.sites
        both = [sites.site(name) for name in ("node", "caller")]

        def are_dead() -> list[bool]:
            return [site.process.dead for site in both]

        both[1].is_struck = True
        assert kill_all(sites, ["node", "caller"]) is None
        assert are_dead() == [False, False]
        both[1].is_struck = False
        assert kill_all(sites, ["node", "caller"]) == both
        assert are_dead() == [True, True]
        assert kill_all(sites, ["node"]) is None
        for site in both:
            await start_again(sites, site, 1.0)
        await asyncio.sleep(0.1)
        assert sorted(world.starts) == ["caller", "caller", "node", "node"]
        assert kill_all(sites, ["node"]) == both[:1]

    play(scene, seeds=1)
