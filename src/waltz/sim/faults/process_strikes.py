"""Carries out the faults of processes: they die, are asked to end, or stand still.

Owns how the process of a machine dies and comes back. A fault that finds its process dead, or being
struck already, does nothing to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, assert_never

from waltz.limits import SHUTDOWN_SECONDS_MAX
from waltz.sim.faults.kinds import Crash, Pause, Stop
from waltz.sim.faults.strike_record import StrikeRecord
from waltz.sim.sites import Site, Sites

CRASH_SECONDS_MAX: Final = 1.0
"""A process that was to die in the middle of disk work and has none dies then at the latest."""


class ProcessStrikes:
    """Faults of the processes on machines."""

    def __init__(self, sites: Sites, record: StrikeRecord) -> None:
        self._sites = sites
        self._record = record
        self.stubborn: list[str] = []
        """The processes that did not end in time when asked to, and were killed."""

    async def strike(self, fault: Crash | Stop | Pause) -> None:
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
        self._record.struck(fault, site.name)
        site.operations_left = fault.disk_operations[position] or None
        if site.operations_left and not site.process.dead:
            with suppress(TimeoutError):
                async with asyncio.timeout(CRASH_SECONDS_MAX):
                    await site.died.wait()
        if not site.process.dead:
            self._sites.kill(site)
        if fault.power_lost:
            self._sites.lose_power(site)
        await start_again(self._sites, site, fault.pause_seconds[position])

    async def _stop(self, fault: Stop, site: Site, pause_seconds: float) -> None:
        if site.is_struck or site.process.dead:
            return
        site.is_struck = True
        self._record.struck(fault, site.name)
        process = site.process
        process.stop_wanted.set()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS_MAX):
                await site.died.wait()
        except TimeoutError:
            self.stubborn.append(site.name)
            self._sites.kill(site)
        await start_again(self._sites, site, pause_seconds)

    async def _pause(self, fault: Pause, site: Site, seconds: float) -> None:
        process = site.process
        if process.dead:
            return
        self._record.struck(fault, site.name)
        self._sites.loop.pause(process)
        self._sites.coordinator.freeze(process)
        await asyncio.sleep(seconds)
        self._sites.loop.resume(process)
        if not process.pauses:
            self._sites.coordinator.thaw(process)
        self._record.note("resume", site.name)


def kill_all(sites: Sites, names: Sequence[str]) -> list[Site] | None:
    """Kill the processes of all these machines and return the machines, which count as struck until
    `start_again`. Return None, and kill none of them, if one is being struck already."""
    found = [sites.site(name) for name in names]
    if any(site.is_struck for site in found):
        return None
    for site in found:
        site.is_struck = True
        if not site.process.dead:
            sites.kill(site)
    return found


async def start_again(sites: Sites, site: Site, pause_seconds: float) -> None:
    """Wait, and start the process of a machine that was struck."""
    await asyncio.sleep(pause_seconds)
    site.disk.release_locks()
    site.is_struck = False
    sites.boot(site)
