"""Carries out faults on the machines of a run.

Owns which module carries out each kind of fault, the operators that act in a run, and how clocks go
wrong. The plan chooses whom a fault strikes, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

from waltz.cluster.storage_placement import StoragePlacement
from waltz.host import Host
from waltz.sim.faults.coordinator_strikes import CoordinatorStrikes
from waltz.sim.faults.disk_strikes import DiskStrikes
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
from waltz.sim.faults.network_strikes import NetworkStrikes
from waltz.sim.faults.placement_strikes import Act, reassign
from waltz.sim.faults.policy_strikes import change_policy
from waltz.sim.faults.process_strikes import ProcessStrikes
from waltz.sim.faults.strike_record import StrikeRecord
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites


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
        self._sites = sites
        self.record = StrikeRecord(sites)
        self.processes = ProcessStrikes(sites, self.record)
        self.disks = DiskStrikes(sites, self.record, is_outdated)
        self._network = NetworkStrikes(sites, self.record)
        self._coordinator = CoordinatorStrikes(sites, self.record)
        self._operators_count = 0

    def expect(self, faults: Iterable[Fault]) -> None:
        """Prepare for these faults before the first connection is made."""
        if any(isinstance(fault, Replay) for fault in faults):
            self._sites.network.record()

    async def strike(self, fault: Fault) -> None:
        """Let `fault` happen and return once it is over: all that died was started again."""
        await asyncio.sleep(fault.delay_seconds)
        match fault:
            case Crash() | Stop() | Pause():
                await self.processes.strike(fault)
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
                | SetBack()
                | PutBack()
                | Rebuilt()
            ):
                await self._coordinator.strike(fault)
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
                await self.disks.strike(fault)
            case _:
                assert_never(fault)

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
