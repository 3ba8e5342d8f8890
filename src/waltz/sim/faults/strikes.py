"""Carries out faults on the machines of a run.

Owns how each kind of fault comes and goes; whom it strikes and when is the plan's business. A fault
that finds its process dead, or being struck already, does nothing to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, assert_never

from waltz.cluster.paths import ClusterPaths
from waltz.cluster.storage_placement import StoragePlacement
from waltz.host import Host
from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.sim.faults.coordinator_strikes import (
    are_opened,
    is_settled,
    number_entries,
    partition_entries,
    put_back,
    raise_child_version,
    raise_version,
    rebuilt,
    rewrite,
    set_back,
)
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
)
from waltz.sim.faults.network_strikes import NetworkStrikes, StrikeRecord
from waltz.sim.faults.placement_strikes import Act, reassign
from waltz.sim.faults.policy_strikes import change_policy
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Site, Sites

CRASH_SECONDS_MAX: Final = 1.0
"""A process that was to die in the middle of disk work and has none dies then at the latest."""


OUTDATED_SECONDS_MAX: Final = 30.0
"""Seconds that an old disk waits to be put back."""

OUTDATED_LOOKS: Final = 300
"""Checks, within that time, whether the disk can be put back."""


SETTLED_SECONDS_MAX: Final = 1.5
"""Seconds that a rebuilt coordinator waits for its servers to come to terms, twice, before clients
reach it again: together less than clients wait for it."""

SETTLED_LOOKS: Final = 150
"""Looks at the servers' nodes within that time."""


class Strikes:
    """Faults of one run, on its machines."""

    def __init__(
        self,
        sites: Sites,
        is_outdated: Callable[[str, SimulatedDisk], bool] = lambda *_: True,
        partition_count: Callable[[], int] = lambda: 1,
    ) -> None:
        """`is_outdated`: whether the cluster can tell that a machine's disk is an old one.
        `partition_count` returns the present number of the cluster's partitions."""
        self._partition_count = partition_count
        self._is_outdated = is_outdated
        self._sites = sites
        self.record = StrikeRecord(sites)
        self._network = NetworkStrikes(sites, self.record)
        self._coordinator = sites.coordinator
        self._operators_count = 0
        self.stubborn: list[str] = []
        """The processes that did not end in time when asked to, and were killed."""
        self.harmed: dict[str, None] = {}
        """The machines on whose disks something durable is gone or changed."""

    def expect(self, faults: Iterable[Fault]) -> None:
        """Prepare for these faults before the first connection is made."""
        if any(isinstance(fault, Replay) for fault in faults):
            self._sites.network.record()

    async def strike(self, fault: Fault) -> None:
        """Let `fault` happen and return once it is over: all that died was started again."""
        await asyncio.sleep(fault.delay_seconds)
        match fault:
            case Crash() | Stop() | Pause():
                await self._strike_processes(fault)
            case Isolation() | Partition() | SlowLinks() | Flapping() | Disconnection():
                await self._network.strike(fault)
            case HalfClose() | Replay():
                await self._network.meddle(fault)
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
            case Rebuilt():
                await self._rebuild(fault)
            case PutBack():
                await self._put_back(fault)
            case Forgery():
                self.record.struck(fault, fault.server, *fault.storages)
                await self._operate_for(partial(forge, fault), None)
                self.record.note("forger leaves")
            case Reassignment():
                await self._reassign(fault)
            case AddedPartitions():
                self.record.struck(fault, fault.to)
                await add_as_operators(fault, self._operate_for)
                self.record.note("added", fault.to)
            case ChangedPolicy():
                self.record.struck(fault, *fault.denied)
                count = self._partition_count()
                await change_policy(fault, count, self._operate_for, self.record.note)
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
        self.record.struck(fault, site.name)
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
        self.record.struck(fault, site.name)
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
        self.record.struck(fault, site.name)
        self._sites.loop.pause(process)
        self._coordinator.freeze(process)
        await asyncio.sleep(seconds)
        self._sites.loop.resume(process)
        if not process.pauses:
            self._coordinator.thaw(process)
        self.record.note("resume", site.name)

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
                    self.record.struck(fault, name)
                    coordinator.expire(process)
            case CoordinatorOutage():
                self.record.struck(fault)
                coordinator.begin_outage()
                await asyncio.sleep(fault.seconds)
                coordinator.end_outage()
            case CoordinatorSlowness():
                self.record.struck(fault)
                coordinator.slow_down(fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                coordinator.speed_up(fault.slowest_seconds)
            case LostAnswers():
                self.record.struck(fault)
                coordinator.lose_answers(fault.share)
                await asyncio.sleep(fault.seconds)
                coordinator.keep_answers(fault.share)
            case ForeignWrites():
                for choice in fault.choices:
                    self.record.struck(fault, rewrite(coordinator, choice))
                    await asyncio.sleep(fault.pause_seconds)
            case _:
                assert_never(fault)

    async def _set_back(self, fault: SetBack) -> None:
        """Put old entries back while no server runs, as the page on backups demands."""
        copy = partition_entries(self._coordinator.tree)
        await asyncio.sleep(fault.seconds)
        sites = [self._sites.site(name) for name in fault.names]
        if any(site.is_struck for site in sites):
            return
        for site in sites:
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
        self.record.struck(fault, *set_back(self._coordinator, copy))
        for site in sites:
            await self._start_again(site, fault.pause_seconds)

    async def _put_back(self, fault: PutBack) -> None:
        """Put partitions, counters and generations back as they were before partitions moved."""
        tree = self._coordinator.tree
        copy, numbers = partition_entries(tree), number_entries(tree)
        for name in fault.moves:
            site = self._sites.site(name)
            if not site.is_struck and not site.process.dead:
                site.is_struck = True
                self._sites.kill(site)
                await self._start_again(site, fault.seconds)
                await self._reopened(number_entries(tree), len(fault.names))
        sites = [self._sites.site(name) for name in fault.names]
        if any(site.is_struck for site in sites):
            return
        for site in sites:
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
        old = put_back(self._coordinator, copy, numbers)
        self.record.struck(fault, *old)
        if old:
            self._coordinator.effects["numbers of the coordinator that were put back"] += 1
        for site in sites:
            await self._start_again(site, fault.pause_seconds)

    async def _rebuild(self, fault: Rebuilt) -> None:
        """Make the coordinator anew while no server runs, and let those that lived on find the
        versions that they have seen."""
        copy = partition_entries(self._coordinator.tree)
        await asyncio.sleep(fault.seconds)
        sites = [self._sites.site(name) for name in fault.names]
        if any(site.is_struck for site in sites):
            return
        for site in sites:
            site.is_struck = True
            if not site.process.dead:
                self._sites.kill(site)
        survivors = [self._sites.site(name).process for name in fault.survivors]
        for process in survivors:
            self._coordinator.lose(process)
        path = ClusterPaths().server_descriptors
        seen = self._coordinator.tree.read(path)
        tree, old = rebuilt(self._coordinator.tree, copy)
        transactions = 0 if fault.refuses else self._coordinator.transactions
        self._coordinator.rebuild(tree, transactions=transactions)
        self.record.struck(fault, *old)
        async with asyncio.TaskGroup() as group:
            for site in sites:
                group.create_task(self._start_again(site, fault.pause_seconds))
        if await self._settled(len(sites)):
            raise_child_version(self._coordinator, path, seen.child_version)
            if await self._settled(len(sites)):
                raise_version(self._coordinator, path, seen.version)
        if not self._coordinator.tree.differs(path, seen):
            self._coordinator.effects["versions of the coordinator that are equal again"] += 1
        for process in survivors:
            if not process.dead:
                self._coordinator.heal(process)
        self.record.note("rebuilt")

    async def _settled(self, servers: int) -> bool:
        """Wait until the servers have come to terms; return whether they have."""
        for _ in range(SETTLED_LOOKS):
            if is_settled(self._coordinator.tree, servers):
                return True
            await asyncio.sleep(SETTLED_SECONDS_MAX / SETTLED_LOOKS)
        return False

    async def _reopened(self, numbers: Mapping[str, bytes], servers: int) -> None:
        """Wait until partitions have been assigned anew and have had a session since, or for long
        enough."""
        tree, path = self._coordinator.tree, ClusterPaths().server_descriptors
        for _ in range(SETTLED_LOOKS):
            is_new = number_entries(tree)[path] != numbers[path]
            if is_new and is_settled(tree, servers) and are_opened(tree):
                return
            await asyncio.sleep(SETTLED_SECONDS_MAX / SETTLED_LOOKS)

    async def _reassign(self, fault: Reassignment) -> None:
        for number, names in enumerate(fault.holders):
            if names:
                self.record.struck(fault, number, *names)
        await reassign(fault, self._operate)
        self.record.note("reassigned")

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
                    self.record.struck(fault, site.name, milliseconds)
                    site.clock.set_wall(milliseconds)
            case ClockDrift():
                clocks = [site.clock for site in sites]
                for site, clock, rate in zip(sites, clocks, fault.rates, strict=True):
                    self.record.struck(fault, site.name, rate)
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
                self.record.struck(fault, site.name)
                site.hindrances.append(fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                site.hindrances.remove(fault.slowest_seconds)
            case DiskFailure():
                failing = FailingOperations(fault)
                site.disk_faults.append(failing)
                await failing.over()
                site.disk_faults.remove(failing)
                self.record.counts[type(fault).__name__] += failing.failed_count
                self.record.note("failures", site.name, failing.failed_count)
            case BitFlips():
                await self._flip(fault, site)
            case FullDisk():
                self.record.struck(fault, site.name)
                leave_room(site.disk, fault.room_bytes)
                await asyncio.sleep(fault.seconds)
                give_room(site.disk)
                self.record.note("room", site.name)
            case LostDisk() | OldDisk() | LostFiles():
                await self._replace_disk(fault, site)
            case _:
                assert_never(fault)

    async def _flip(self, fault: BitFlips, site: Site) -> None:
        for path in flip_bits(site.disk, fault):
            self.record.struck(fault, site.name, path)
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
        self.record.struck(fault, site.name)
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
