"""Machines: processes on them start, end and die, and their disks outlive them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from waltz.errors import ConfigurationError, CoordinatorLostError
from waltz.host import Host
from waltz.machine_shell import Mailbox, run
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import Process, SimulatedLoop
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.sim.sites import InvariantError, ProcessEndedError, Sites, until_stopped

FILE = "/data/file"


def play(
    scene: Callable[[Sites], Coroutine[Any, Any, None]],
    seeds: int = 30,
    look: Callable[[Process, object], None] = lambda process, machine: None,
) -> None:
    for seed in range(seeds):
        loop = SimulatedLoop(seed)
        sites = Sites(loop, seed, RunTrace(), look)
        try:
            loop.run_until_complete(scene(sites))
            assert loop.failures() == []
        finally:
            loop.shut_down()


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


def test_after_a_power_cut_the_synced_bytes_are_there() -> None:
    lost = set()

    async def scene(sites: Sites) -> None:
        sites.add("node", write_numbers, SimulatedDisk(["/data"]))
        site = sites.site("node")
        await asyncio.sleep(0.1)
        site.operations_left = 3
        await site.died.wait()
        disk = sites.disk("node")
        copy = sites.disk_after_power_cut(site)
        assert sites.disk("node") is disk
        sites.lose_power(site)
        assert sites.disk("node") is not disk
        for survivor in (copy, sites.disk("node")):
            lost.add(len(disk.content(FILE)) - len(survivor.content(FILE)))
        sites.boot(site)
        await asyncio.sleep(0.1)
        assert len(sites.disk("node").content(FILE)) > len(disk.content(FILE))

    play(scene)
    assert lost == {0, 1}


def test_deaths_are_told_each_once() -> None:
    deaths: list[float] = []

    async def ends(host: Host) -> None:
        await asyncio.sleep(1.0)

    async def scene(sites: Sites) -> None:
        deaths.clear()
        sites.add("node", ends, SimulatedDisk(), may_end=True, on_death=lambda: deaths.append(1.0))
        await asyncio.sleep(0.5)
        sites.kill(sites.site("node"))
        assert len(deaths) == 1
        sites.boot(sites.site("node"))
        await asyncio.sleep(2.0)
        assert len(deaths) == 2, "it has ended by itself, as it may"
        assert not sites.broken.done()

    play(scene, seeds=3)


def test_a_process_that_is_asked_to_end_cleans_up_first() -> None:
    log: list[str] = []

    async def serve() -> None:
        try:
            await asyncio.sleep(1_000_000.0)
        finally:
            await asyncio.sleep(1.0)
            log.append("cleaned up")

    async def main(host: Host) -> None:
        await until_stopped(serve())
        log.append("stopped")

    async def scene(sites: Sites) -> None:
        log.clear()
        sites.add("node", main, SimulatedDisk())
        await asyncio.sleep(1.0)
        process = sites.process("node")
        assert process is not None
        process.stop_wanted.set()
        await sites.site("node").died.wait()
        assert log == ["cleaned up", "stopped"]
        assert not sites.broken.done()

    play(scene, seeds=3)


def test_what_ends_before_it_is_asked_to_ends_as_it_does() -> None:
    async def fails() -> None:
        raise ValueError("by itself")

    async def main(host: Host) -> None:
        await until_stopped(asyncio.sleep(1.0))
        with pytest.raises(ValueError, match="by itself"):
            await until_stopped(fails())

    async def scene(sites: Sites) -> None:
        await sites.run("guest", main)
        assert sites.process("guest") is not None
        assert sites.process("nobody") is None

    play(scene, seeds=3)


def test_disks_fail_and_are_slow_as_their_machine_says() -> None:
    async def work(host: Host) -> None:
        before = asyncio.get_running_loop().time()
        with pytest.raises(OSError, match="refused"):
            await host.workers.run_blocking(lambda: host.disk.remove("/data/none"))
        seconds.append(asyncio.get_running_loop().time() - before)

    def refuse(operation: DiskOperation, path: str) -> None:
        raise OSError("refused")

    async def scene(sites: Sites) -> None:
        async def main(host: Host) -> None:
            await asyncio.sleep(1.0)
            await work(host)

        sites.add("node", main, SimulatedDisk(["/data"]), may_end=True)
        sites.site("node").disk_faults.append(refuse)
        sites.site("node").hindrances += [1.0, 100.0]
        await asyncio.sleep(200.0)
        assert sites.effects["disk work slowed down"] == 1
        assert not sites.broken.done()

    seconds: list[float] = []
    play(scene)
    assert max(seconds) > 50.0


def test_it_is_known_which_machines_have_noted_damage() -> None:
    async def note(host: Host, name: str) -> None:
        host.disk.open(f"/data/{name}.new", create=True)
        host.disk.rename(f"/data/{name}.new", f"/data/{name}")
        await asyncio.Event().wait()

    async def scene(sites: Sites) -> None:
        sites.add("whole", lambda host: note(host, "other.json"), SimulatedDisk(["/data"]))
        sites.add("hurt", lambda host: note(host, "damaged.json"), SimulatedDisk(["/data"]))
        await asyncio.sleep(1.0)
        assert [*sites.damage_noted] == ["hurt"]

    play(scene, seeds=2)


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


def test_what_is_wrong_between_machines_breaks_the_run_too() -> None:
    def look(process: Process, machine: object) -> None:
        assert process.name != "node", "nobody walks here"

    async def walk(host: Host) -> None:
        await run(Pedometer(), Mailbox[object](host.clock, 1), host, lambda _: None)

    async def scene(sites: Sites) -> None:
        sites.add("node", walk, SimulatedDisk())
        with pytest.raises(InvariantError, match="nobody walks here"):
            await sites.broken

    play(scene, seeds=3, look=look)


def by_disk() -> ConfigurationError:
    error = ConfigurationError("storage directory /data: input/output error")
    error.__cause__ = OSError(errno.EIO, "input/output error")
    return error


@pytest.mark.parametrize("error", [CoordinatorLostError("away"), by_disk()])
def test_a_process_that_cannot_start_just_now_is_started_again(error: Exception) -> None:
    starts: list[Host] = []

    async def fails_twice(host: Host) -> None:
        starts.append(host)
        if len(starts) < 3:
            raise error
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
