"""Clocks go wrong as a fault says, and run as before once it is over."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.struck_machines import World, play
from waltz.sim.faults.kinds import ClockDrift, ClockJump


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
