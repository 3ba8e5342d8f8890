"""Carries out the faults of connections.

Owns how a connection is held, slowed down and broken, and what an intruder does to it. The plan
chooses the machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_never

from waltz.sim.faults.kinds import (
    Disconnection,
    Flapping,
    HalfClose,
    Isolation,
    Partition,
    Replay,
    SlowLinks,
)
from waltz.sim.faults.strike_record import StrikeRecord
from waltz.sim.simulated_network import Way
from waltz.sim.sites import Sites


class NetworkStrikes:
    """Faults of the connections between machines."""

    def __init__(self, sites: Sites, record: StrikeRecord) -> None:
        self._sites = sites
        self._network = sites.network
        self._record = record

    async def strike(
        self, fault: Isolation | Partition | SlowLinks | Flapping | Disconnection
    ) -> None:
        match fault:
            case Isolation():
                await self._isolate(fault)
            case Partition(ways=ways):
                for way in ways:
                    self._record.struck(fault, *way)
                await self._hold(ways, fault.seconds)
                if fault.breaks:
                    self._disconnect(ways)
            case SlowLinks(ways=ways):
                for way in ways:
                    self._record.struck(fault, *way)
                self._network.slow_down(ways, fault.slowest_seconds)
                await asyncio.sleep(fault.seconds)
                self._network.speed_up(ways, fault.slowest_seconds)
            case Flapping(one=one, other=other):
                for _ in range(fault.times):
                    self._record.struck(fault, one, other)
                    await self._hold([(one, other), (other, one)], fault.down_seconds)
                    await asyncio.sleep(fault.up_seconds)
            case Disconnection(pairs=pairs):
                for pair in pairs:
                    self._record.struck(fault, *pair)
                self._disconnect(pairs)
            case _:
                assert_never(fault)

    async def meddle(self, fault: HalfClose | Replay) -> None:
        """Do what only an intruder between the processes can do."""
        for way in fault.ways:
            self._record.struck(fault, *way)
        match fault:
            case HalfClose(ways=ways, kept=kept):
                for way in ways:
                    self._record.note("half closed", *way, self._network.half_close(way, kept))
            case Replay(ways=ways, choice=choice, kept=kept, seconds=seconds):
                sent = [self._network.replay(way, choice, kept, seconds) for way in ways]
                self._record.note("replayed", *await asyncio.gather(*sent))
            case _:
                assert_never(fault)

    async def _hold(self, ways: Sequence[Way], seconds: float) -> None:
        self._network.block(ways)
        await asyncio.sleep(seconds)
        self._network.unblock(ways)
        self._record.note("unblock", *ways)

    def _disconnect(self, pairs: Sequence[Way]) -> None:
        for one, other in pairs:
            self._record.note("disconnect", one, other, self._network.break_between(one, other))

    async def _isolate(self, fault: Isolation) -> None:
        process = self._sites.process(fault.name)
        if process is None:
            return  # not started yet
        self._record.struck(fault, fault.name, *fault.others)
        if len(fault.others) > 1:
            self._record.counts[type(fault).__name__] += len(fault.others) - 1
        if fault.with_coordinator:
            self._sites.coordinator.lose(process)
        if fault.session_ended:
            self._sites.coordinator.expire(process)
        there = [(fault.name, other) for other in fault.others]
        await self._hold([*there, *((one, other) for other, one in there)], fault.seconds)
        if fault.with_coordinator and not process.dead:
            self._sites.coordinator.heal(process)
