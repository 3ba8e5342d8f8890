"""Carries out faults on the machines of a run.

Owns how each kind of fault comes and goes; whom it strikes and when is the plan's business. A fault
that finds its process dead, or being struck already, does nothing to it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

from waltz.cluster.storage_placement import StoragePlacement
from waltz.host import Host
from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.sim.faults.disk_strikes import (
    FailingOperations,
    blank_disk,
    flip_bits,
    give_room,
    leave_room,
    without_newest,
)
from waltz.sim.faults.forgery_strikes import forge
from waltz.sim.faults.growth_strikes import Act as GrowthAct
from waltz.sim.faults.growth_strikes import add_as_operators
from waltz.sim.faults.kinds import (
    AddedPartitions,
    BitFlips,
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
    Reassignment,
    Replay,
    SessionLoss,
    SetBack,
    SlowDisk,
    SlowLinks,
    Stop,
)
from waltz.sim.faults.placement_strikes import Act, reassign
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.simulated_network import Way
from waltz.sim.sites import Site, Sites

CRASH_SECONDS_MAX: Final = 1.0
"""A process that was to die in the middle of disk work and has none dies then at the latest."""


OUTDATED_SECONDS_MAX: Final = 30.0
"""Seconds that an old disk waits to be put back."""

OUTDATED_LOOKS: Final = 300
"""Checks, within that time, whether the disk can be put back."""


class Strikes:
    """Faults of one run, on its machines."""

    def __init__(
        self, sites: Sites, is_outdated: Callable[[str, SimulatedDisk], bool] = lambda *_: True
    ) -> None:
        """`is_outdated`: whether the cluster can tell that a machine's disk is an old one."""
        self._is_outdated = is_outdated
        self._sites = sites
        self._network = sites.network
        self._coordinator = sites.coordinator
        self.counts: Counter[str] = Counter()
        """Injections that have struck, by kind."""
        self._operators_count = 0
        self.stubborn: list[str] = []
        """The processes that did not end in time when asked to, and were killed."""
        self.harmed: dict[str, None] = {}
        """The machines on whose disks something durable is gone or changed."""

    def expect(self, faults: Iterable[Fault]) -> None:
        """Prepare for these faults before the first connection is made."""
        if any(isinstance(fault, Replay) for fault in faults):
            self._network.record()

    async def strike(self, fault: Fault) -> None:
        """Let `fault` happen and return once it is over: all that died was started again."""
        await asyncio.sleep(fault.delay_seconds)
        match fault:
            case Crash() | Stop() | Pause():
                await self._strike_processes(fault)
            case Isolation() | Partition() | SlowLinks() | Flapping() | Disconnection():
                await self._strike_network(fault)
            case HalfClose() | Replay():
                await self._meddle(fault)
            case (
                SessionLoss()
                | CoordinatorOutage()
                | CoordinatorSlowness()
                | LostAnswers()
                | ForeignWrites()
            ):
                await self._strike_coordinator(fault)
            case SetBack():
                await self._set_back(fault)
            case Forgery():
                self._struck(fault, fault.server, *fault.storages)
                await self._operate_for(partial(forge, fault), None)
                self._note("forger leaves")
            case Reassignment():
                await self._reassign(fault)
            case AddedPartitions():
                self._struck(fault, fault.to)
                await add_as_operators(fault, self._operate_for)
                self._note("added", fault.to)
            case ClockJump() | ClockDrift():
                await self._strike_clocks(fault)
            case (
                SlowDisk()
                | DiskFailure()
                | BitFlips()
                | FullDisk()
                | LostDisk()
                | OldDisk()
                | LostFiles()
            ):
                await self._strike_disk(fault)
            case _:
                assert_never(fault)

    def _struck(self, fault: Fault, *facts: object) -> None:
        kind = type(fault).__name__
        self.counts[kind] += 1
        self._note(kind, *facts)

    def _note(self, what: str, *facts: object) -> None:
        self._sites.trace.note(self._sites.loop.time(), what, *facts)

    # Processes

    async def _strike_processes(self, fault: Crash | Stop | Pause) -> None:
        async with asyncio.TaskGroup() as group:
            for position, name in enumerate(fault.names):
                site = self._sites.site(name)
                match fault:
                    case Crash():
                        striking = self._crash(fault, site, position)
                    case Stop():
                        striking = self._stop(fault, site, fault.pause_seconds[position])
                    case Pause():
                        striking = self._pause(fault, site, fault.seconds[position])
                    case _:
                        assert_never(fault)
                task = group.create_task(striking)
                if isinstance(fault, Stop) and fault.one_by_one:
                    await task

    async def _crash(self, fault: Crash, site: Site, position: int) -> None:
        if site.is_struck:
            return
        site.is_struck = True
        self._struck(fault, site.name)
        site.operations_left = fault.disk_operations[position] or None
        if site.operations_left and not site.process.dead:
            with suppress(TimeoutError):
                async with asyncio.timeout(CRASH_SECONDS_MAX):
                    await site.died.wait()
        if not site.process.dead:
            self._sites.kill(site)
        if fault.power_lost:
            self._sites.lose_power(site)
        await self._start_again(site, fault.pause_seconds[position])

    async def _stop(self, fault: Stop, site: Site, pause_seconds: float) -> None:
        if site.is_struck or site.process.dead:
            return
        site.is_struck = True
        self._struck(fault, site.name)
        process = site.process
        process.stop_wanted.set()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS_MAX):
                await site.died.wait()
        except TimeoutError:
            self.stubborn.append(site.name)
            self._sites.kill(site)
        await self._start_again(site, pause_seconds)

    async def _start_again(self, site: Site, pause_seconds: float) -> None:
        await asyncio.sleep(pause_seconds)
        site.disk.release_locks()
        site.is_struck = False
        self._sites.boot(site)

    async def _pause(self, fault: Pause, site: Site, seconds: float) -> None:
        process = site.process
        if process.dead:
            return
        self._struck(fault, site.name)
        self._sites.loop.pause(process)
        self._coordinator.freeze(process)
        await asyncio.sleep(seconds)
        self._sites.loop.resume(process)
        if not process.pauses:
            self._coordinator.thaw(process)
        self._note("resume", site.name)

    # Network

    async def _strike_network(
        self, fault: Isolation | Partition | SlowLinks | Flapping | Disconnection
    ) -> None:
        match fault:
            case Isolation():
                await self._isolate(fault)
            case Partition(ways=ways):
                for way in ways:
                    self._struck(fault, *way)
                await self._hold(ways, fault.seconds)
                if fault.breaks:
                    self._disconnect(ways)
            case SlowLinks(ways=ways):
                for way in ways:
                    self._struck(fault, *way)
                self._network.slow_down(ways, fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                self._network.speed_up(ways, fault.slowest_seconds)
            case Flapping(one=one, other=other):
                for _ in range(fault.times):
                    self._struck(fault, one, other)
                    await self._hold([(one, other), (other, one)], fault.down_seconds)
                    await asyncio.sleep(fault.up_seconds)
            case Disconnection(pairs=pairs):
                for pair in pairs:
                    self._struck(fault, *pair)
                self._disconnect(pairs)
            case _:
                assert_never(fault)

    async def _meddle(self, fault: HalfClose | Replay) -> None:
        """Do what only an intruder between the processes can do."""
        for way in fault.ways:
            self._struck(fault, *way)
        match fault:
            case HalfClose(ways=ways, kept=kept):
                for way in ways:
                    self._note("half closed", *way, self._network.half_close(way, kept))
            case Replay(ways=ways, choice=choice, kept=kept, seconds=seconds):
                sent = [self._network.replay(way, choice, kept, seconds) for way in ways]
                self._note("replayed", *await asyncio.gather(*sent))
            case _:
                assert_never(fault)

    async def _hold(self, ways: Sequence[Way], seconds: float) -> None:
        self._network.block(ways)
        await asyncio.sleep(seconds)
        self._network.unblock(ways)
        self._note("unblock", *ways)

    def _disconnect(self, pairs: Sequence[Way]) -> None:
        for one, other in pairs:
            self._note("disconnect", one, other, self._network.break_between(one, other))

    async def _isolate(self, fault: Isolation) -> None:
        process = self._sites.process(fault.name)
        if process is None:
            return  # not started yet
        self._struck(fault, fault.name, *fault.others)
        if len(fault.others) > 1:
            self.counts[type(fault).__name__] += len(fault.others) - 1
        if fault.with_coordinator:
            self._coordinator.lose(process)
        if fault.session_ended:
            self._coordinator.expire(process)
        there = [(fault.name, other) for other in fault.others]
        await self._hold([*there, *((one, other) for other, one in there)], fault.seconds)
        if fault.with_coordinator and not process.dead:
            self._coordinator.heal(process)

    # Coordinator

    async def _strike_coordinator(
        self,
        fault: SessionLoss | CoordinatorOutage | CoordinatorSlowness | LostAnswers | ForeignWrites,
    ) -> None:
        coordinator = self._coordinator
        match fault:
            case SessionLoss(name=name):
                process = self._sites.process(name)
                if process is not None and not process.dead:
                    self._struck(fault, name)
                    coordinator.expire(process)
            case CoordinatorOutage():
                self._struck(fault)
                coordinator.begin_outage()
                await asyncio.sleep(fault.seconds)
                coordinator.end_outage()
            case CoordinatorSlowness():
                self._struck(fault)
                coordinator.slow_down(fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                coordinator.speed_up(fault.slowest_seconds)
            case LostAnswers():
                self._struck(fault)
                coordinator.lose_answers(fault.share)
                await asyncio.sleep(fault.seconds)
                coordinator.keep_answers(fault.share)
            case ForeignWrites():
                for choice in fault.choices:
                    self._struck(fault, coordinator.rewrite(choice))
                    await asyncio.sleep(fault.pause_seconds)
            case _:
                assert_never(fault)

    async def _set_back(self, fault: SetBack) -> None:
        """Put old entries back while no server runs, as the page on backups demands."""
        copy = self._coordinator.partition_entries()
        await asyncio.sleep(fault.seconds)
        sites = [self._sites.site(name) for name in fault.names]
        if any(site.is_struck for site in sites):
            return
        for site in sites:
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
        self._struck(fault, *self._coordinator.set_back(copy))
        for site in sites:
            await self._start_again(site, fault.pause_seconds)

    async def _reassign(self, fault: Reassignment) -> None:
        for number, names in enumerate(fault.holders):
            if names:
                self._struck(fault, number, *names)
        await reassign(fault, self._operate)
        self._note("reassigned")

    async def _operate(self, act: Act) -> StoragePlacement:
        async def main(host: Host) -> StoragePlacement:
            try:
                return await act(host.coordinator)
            finally:
                await host.coordinator.close()

        self._operators_count += 1
        return await self._sites.run(f"operator-{self._operators_count}", main)

    async def _operate_for(self, act: GrowthAct, seconds_max: float | None) -> None:
        async def main(host: Host) -> None:
            try:
                await act(host)
            finally:
                await host.coordinator.close()

        self._operators_count += 1
        name = f"operator-{self._operators_count}"
        acting = asyncio.create_task(self._sites.run(name, main))
        await asyncio.wait([acting], timeout=seconds_max)
        if not acting.done():
            self._sites.kill_guest(name)
            acting.cancel()
            return
        acting.result()

    # Clocks

    async def _strike_clocks(self, fault: ClockJump | ClockDrift) -> None:
        sites = [self._sites.site(name) for name in fault.names]
        match fault:
            case ClockJump():
                for site, milliseconds in zip(sites, fault.milliseconds, strict=True):
                    self._struck(fault, site.name, milliseconds)
                    site.clock.set_wall(milliseconds)
            case ClockDrift():
                clocks = [site.clock for site in sites]
                for site, clock, rate in zip(sites, clocks, fault.rates, strict=True):
                    self._struck(fault, site.name, rate)
                    clock.run_at(rate)
                await asyncio.sleep(fault.seconds)
                for clock in clocks:
                    clock.run_at(1.0)
            case _:
                assert_never(fault)

    # Disks

    async def _strike_disk(
        self,
        fault: SlowDisk | DiskFailure | BitFlips | FullDisk | LostDisk | OldDisk | LostFiles,
    ) -> None:
        site = self._sites.site(fault.name)
        match fault:
            case SlowDisk():
                self._struck(fault, site.name)
                site.hindrances.append(fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                site.hindrances.remove(fault.slowest_seconds)
            case DiskFailure():
                failing = FailingOperations(fault)
                site.disk_faults.append(failing)
                await failing.over()
                site.disk_faults.remove(failing)
                self.counts[type(fault).__name__] += failing.failed_count
                self._note("failures", site.name, failing.failed_count)
            case BitFlips():
                await self._flip(fault, site)
            case FullDisk():
                self._struck(fault, site.name)
                leave_room(site.disk, fault.room_bytes)
                await asyncio.sleep(fault.seconds)
                give_room(site.disk)
                self._note("room", site.name)
            case LostDisk() | OldDisk() | LostFiles():
                await self._replace_disk(fault, site)
            case _:
                assert_never(fault)

    async def _flip(self, fault: BitFlips, site: Site) -> None:
        for path in flip_bits(site.disk, fault):
            self._struck(fault, site.name, path)
            self.harmed[site.name] = None
        if fault.restarts and not site.is_struck:
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
            await self._start_again(site, 0.0)

    async def _becomes_outdated(self, site: Site, old: SimulatedDisk) -> bool:
        """Wait until the cluster has noted that the machine is away; return whether it has.

        A disk put back from a snapshot of the session that the cluster still believes the machine
        to be in cannot be told from one that lost power: its replica votes, and what it had
        acknowledged since is gone. No promise covers that (docs/decisions/0007), so the machine
        then comes back with the disk it had.
        """
        for _ in range(OUTDATED_LOOKS):
            if self._is_outdated(site.name, old):
                return True
            await asyncio.sleep(OUTDATED_SECONDS_MAX / OUTDATED_LOOKS)
        return False

    async def _replace_disk(self, fault: LostDisk | OldDisk | LostFiles, site: Site) -> None:
        old = self._sites.disk_after_power_cut(site)
        if isinstance(fault, OldDisk):
            await asyncio.sleep(fault.seconds)
        if site.is_struck:
            return
        site.is_struck = True
        self._struck(fault, site.name)
        self.harmed[site.name] = None
        if not site.process.dead:
            self._sites.kill(site)
        if isinstance(fault, LostDisk):
            site.disk = blank_disk(old)
        elif isinstance(fault, LostFiles):
            site.disk = without_newest(site.disk)
        elif await self._becomes_outdated(site, old):
            site.disk = old
        await self._start_again(site, fault.pause_seconds)
