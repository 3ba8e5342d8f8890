"""Each fault of a connection does to it what it says, and is over when it says so."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.struck_machines import World, play
from waltz.sim.faults.kinds import (
    Disconnection,
    Fault,
    Flapping,
    HalfClose,
    Isolation,
    Partition,
    Replay,
    SlowLinks,
    count_of,
)

WAYS = (("caller", "node"), ("node", "caller"))


@pytest.mark.parametrize(
    "fault",
    [
        Isolation(
            progress=0.0, name="node", others=("caller",), with_coordinator=True, seconds=5.0
        ),
        Partition(progress=0.0, ways=WAYS, seconds=5.0, breaks=False),
        Partition(progress=0.0, ways=WAYS[:1], seconds=5.0, breaks=False),
        Flapping(
            progress=0.0, one="node", other="caller", times=2, down_seconds=5.0, up_seconds=1.0
        ),
    ],
)
def test_what_is_held_arrives_in_the_end(fault: Fault) -> None:
    async def scene(world: World) -> None:
        before = world.loop.time()
        assert await world.strike(fault) >= 5.0
        await asyncio.sleep(3.0)
        assert world.silence(before, world.heard) > 4.0
        assert world.silence(world.loop.time() - 1.0, world.heard) < 1.0
        assert world.strikes.record.counts.total() == count_of(fault)

    play(scene)


@pytest.mark.parametrize(
    "fault",
    [
        Partition(progress=0.0, ways=WAYS, seconds=5.0, breaks=True),
        Disconnection(progress=0.0, pairs=(("node", "caller"), ("node", "nobody"))),
        HalfClose(progress=0.0, ways=WAYS[:1], kept=0.5),
    ],
)
def test_connections_that_are_lost_stay_lost(fault: Fault) -> None:
    async def scene(world: World) -> None:
        await world.strike(fault)
        await asyncio.sleep(3.0)
        assert world.silence(world.loop.time() - 1.0, world.heard) == 1.0

    play(scene)


def test_what_was_sent_is_sent_again_by_somebody_else() -> None:
    async def scene(world: World) -> None:
        fault = Replay(progress=0.0, ways=WAYS[:1], choice=0.0, kept=1.0, seconds=1.0)
        before = len(world.heard)
        assert await world.strike(fault) >= 1.0
        assert len(world.heard) > before
        assert world.strikes.record.counts["Replay"] == 1
        assert world.sites.effects["bytes sent again"] == 1

    play(scene, records=True)


def test_slow_links_are_slow_for_a_while() -> None:
    async def scene(world: World) -> None:
        fault = SlowLinks(progress=0.0, ways=WAYS[:1], seconds=20.0, slowest_seconds=5.0)
        before = world.loop.time()
        await world.strike(fault)
        longest.append(world.silence(before, world.heard))
        await asyncio.sleep(10.0)
        assert world.silence(world.loop.time() - 2.0, world.heard) < 2.0

    longest: list[float] = []
    play(scene)
    assert max(longest) > 2.0


def test_who_has_not_started_cannot_be_isolated() -> None:
    async def scene(world: World) -> None:
        fault = Isolation(
            progress=0.0, name="nobody", others=("node",), with_coordinator=True, seconds=5.0
        )
        assert await world.strike(fault) == 0.0
        assert world.strikes.record.counts.total() == 0

    play(scene, seeds=1)
