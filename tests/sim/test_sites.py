"""Processes die between any two disk operations, at once, and come back with what was synced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from waltz.errors import CoordinatorLostError
from waltz.host import Host
from waltz.shell import Mailbox, run
from waltz.sim.disk import SimulatedDisk
from waltz.sim.faults import Crash
from waltz.sim.loop import SimulatedLoop
from waltz.sim.sites import InvariantError, ProcessEndedError, Sites
from waltz.sim.trace import Trace

FILE = "/data/file"


def play(scene: Callable[[Sites], Coroutine[Any, Any, None]], seeds: int = 30) -> None:
    for seed in range(seeds):
        loop = SimulatedLoop(seed)
        sites = Sites(loop, seed, Trace())
        try:
            loop.run_until_complete(scene(sites))
            assert loop.failures() == []
        finally:
            loop.shut_down()


def crash(*names: str, operations: int = 0, power_lost: bool = True) -> Crash:
    return Crash(
        progress=0.0,
        delay_seconds=0.0,
        names=names,
        disk_operations=(operations,) * len(names),
        power_lost=power_lost,
        pause_seconds=(1.0,) * len(names),
    )


async def write_numbers(host: Host) -> None:
    """Append one byte and sync it, for ever; each pair in one go, off the loop."""
    exists = host.disk.exists(FILE)
    file = host.disk.open(FILE, create=not exists)
    host.disk.sync_directory("/data")

    def append() -> None:
        file.write_at(file.size(), b"x")
        file.sync()

    while True:
        await host.workers.run_blocking(append)


def test_a_death_falls_between_any_two_disk_operations() -> None:
    sizes = set()

    async def scene(sites: Sites) -> None:
        sites.add("node", write_numbers, SimulatedDisk(["/data"]))
        await asyncio.sleep(0.1)
        disk = sites.disk("node")
        before = len(disk.content(FILE))
        await sites.strike(crash("node", operations=3, power_lost=False))
        # write, sync, write: dead before the second sync, with its byte seen all the same
        sizes.add(len(sites.disk("node").content(FILE)) - before)
        assert sites.disk("node") is disk

    play(scene)
    assert sizes == {2}


def test_after_a_power_cut_the_synced_bytes_are_there() -> None:
    lost = set()

    async def scene(sites: Sites) -> None:
        sites.add("node", write_numbers, SimulatedDisk(["/data"]))
        await asyncio.sleep(0.1)
        disk = sites.disk("node")
        await sites.strike(crash("node", operations=3))
        assert sites.disk("node") is not disk
        lost.add(len(disk.content(FILE)) - len(sites.disk("node").content(FILE)))

    play(scene)
    assert lost == {0, 1}


def test_a_process_without_disk_work_dies_all_the_same_and_starts_again() -> None:
    starts: list[float] = []

    async def idle(host: Host) -> None:
        starts.append(host.clock.now())
        await asyncio.sleep(1_000_000.0)

    async def scene(sites: Sites) -> None:
        starts.clear()
        sites.add("one", idle, SimulatedDisk())
        sites.add("two", idle, SimulatedDisk())
        await sites.strike(crash("one", "two", operations=5))
        await asyncio.sleep(1.0)
        assert len(starts) == 4

    play(scene, seeds=3)


def test_crashes_that_overlap_leave_one_process() -> None:
    running: list[Host] = []

    async def idle(host: Host) -> None:
        running.append(host)
        await asyncio.sleep(1_000_000.0)

    async def scene(sites: Sites) -> None:
        running.clear()
        sites.add("node", idle, SimulatedDisk())
        await asyncio.sleep(0.1)
        async with asyncio.TaskGroup() as group:
            group.create_task(sites.strike(crash("node", operations=5)))
            group.create_task(sites.strike(crash("node")))
            await asyncio.sleep(0.5)
            group.create_task(sites.strike(crash("node")))
        await asyncio.sleep(10.0)
        assert len(running) == 2

    play(scene)


def test_a_process_that_ends_by_itself_breaks_the_run() -> None:
    async def fails(host: Host) -> None:
        raise ValueError("cannot start")

    async def returns(host: Host) -> None:
        return

    async def scene(sites: Sites) -> None:
        sites.add("node", fails, SimulatedDisk())
        with pytest.raises(ProcessEndedError, match=r"(?s)node has ended.*cannot start"):
            await sites.broken

    async def other_scene(sites: Sites) -> None:
        sites.add("node", returns, SimulatedDisk())
        with pytest.raises(ProcessEndedError, match="node has ended: no error"):
            await sites.broken

    play(scene, seeds=3)
    play(other_scene, seeds=3)


class Pedometer:
    """A machine that counts its steps and must not come to a third."""

    closed = False
    deadline: float | None = 0.0
    steps_count = 0

    def step(self, events: Sequence[object], now: float) -> Sequence[object]:
        self.steps_count += 1
        self.deadline = now + 1.0
        return ()

    def check_invariants(self) -> None:
        assert self.steps_count < 3, f"{self.steps_count} steps"


def test_a_machine_whose_invariant_breaks_breaks_the_run_and_is_named() -> None:
    async def walk(host: Host) -> None:
        await run(Pedometer(), Mailbox[object](host.clock, 1), host, lambda _: None)

    async def scene(sites: Sites) -> None:
        sites.add("node", walk, SimulatedDisk())
        with pytest.raises(
            InvariantError, match=r"(?s)invariant of Pedometer on node is broken: .*3 steps"
        ):
            await sites.broken
        assert 2.0 <= asyncio.get_running_loop().time() < 3.0

    async def other_scene(sites: Sites) -> None:
        walking = asyncio.ensure_future(sites.run("client", walk))
        with pytest.raises(InvariantError, match="invariant of Pedometer on client is broken"):
            await sites.broken
        walking.cancel()

    play(scene, seeds=3)
    play(other_scene, seeds=3)


def test_a_process_that_finds_the_coordinator_away_is_started_again() -> None:
    starts: list[Host] = []

    async def fails_twice(host: Host) -> None:
        starts.append(host)
        if len(starts) < 3:
            raise CoordinatorLostError("away")
        await asyncio.sleep(1_000_000.0)

    async def scene(sites: Sites) -> None:
        starts.clear()
        sites.add("node", fails_twice, SimulatedDisk())
        await asyncio.sleep(10.0)
        assert len(starts) == 3
        assert not sites.broken.done()

    play(scene, seeds=3)


def test_results_and_errors_of_a_process_reach_whoever_ran_it() -> None:
    async def answer(host: Host) -> int:
        return 42

    async def scene(sites: Sites) -> None:
        assert await sites.run("oracle", answer) == 42

    play(scene, seeds=1)
