"""Sessions, isolation and delays of the simulated coordinator; its rules are the tree's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import pytest

from waltz.cluster.tree import Tree
from waltz.errors import CoordinatorLostError, NoNodeError, VersionConflictError
from waltz.host import Node
from waltz.limits import (
    COORDINATOR_CALL_SECONDS_MAX,
    COORDINATOR_RETRY_SECONDS_MAX,
    COORDINATOR_SESSION_SECONDS,
)
from waltz.sim.loop import Process, SimulatedLoop
from waltz.sim.simulated_coordinator import SimulatedCoordinatorService

T = TypeVar("T")


def simulate(
    story: Callable[[SimulatedCoordinatorService], Coroutine[Any, Any, T]], seed: int = 1
) -> T:
    loop = SimulatedLoop(seed)
    try:
        service = SimulatedCoordinatorService(loop, Random(seed))
        outcome = loop.run_until_complete(story(service))
        service.tree.check_invariants()
        assert not loop.failures()
        return outcome
    finally:
        loop.shut_down()


def test_calls_do_what_the_tree_does() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        door = service.door(Process("one"))
        assert await door.create("/a", b"1") == "/a"
        assert await door.create("/a/s_", None, sequential=True) == "/a/s_0000000000"
        assert await door.read("/a") == Node(b"1", 0, 1)
        assert await door.children("/a") == ["s_0000000000"]
        assert await door.write("/a", b"2", version=0) == 1
        with pytest.raises(VersionConflictError):
            await door.write("/a", b"3", version=0)
        await door.delete("/a/s_0000000000")
        with pytest.raises(NoNodeError):
            await door.read("/a/s_0000000000")

    simulate(story)


def test_of_two_writers_at_once_one_wins() -> None:
    async def story(service: SimulatedCoordinatorService) -> int:
        doors = [service.door(Process(name)) for name in ("one", "two")]
        await doors[0].create("/a", b"")
        writes = [door.write("/a", b"x", version=0) for door in doors]
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert min(map(str, outcomes)) == "1"
        refused = [o for o in outcomes if isinstance(o, VersionConflictError)]
        assert len(refused) == 1
        return outcomes.index(1)

    assert {simulate(story, seed) for seed in range(20)} == {0, 1}


def test_changed_is_triggered_by_level_and_by_edge() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        door = service.door(Process("one"))
        await door.changed("/a", Node(None, 0, 0))
        waiting = asyncio.ensure_future(door.changed("/a", None))
        await asyncio.sleep(1)
        assert not waiting.done()
        await door.create("/a", b"")
        await waiting
        seen = await door.read("/a")
        waiting = asyncio.ensure_future(door.changed("/a", seen))
        await door.create("/b", b"")
        await asyncio.sleep(1)
        assert not waiting.done()
        await door.delete("/a")
        await waiting

    simulate(story)


def test_a_cancelled_wait_is_forgotten() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        door = service.door(Process("one"))
        waiting = asyncio.ensure_future(door.changed("/a", None))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.sleep(1)
        assert not service._waiting

    simulate(story)


def test_a_closed_session_takes_its_nodes_at_once() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        assert service.door(process) is door
        await door.create("/a", b"", ephemeral=True)
        await door.create("/b", b"")
        await door.close()
        assert service.tree.children("/") == ["b"]
        with pytest.raises(CoordinatorLostError):
            await door.read("/b")

    simulate(story)


def test_the_dead_lose_their_nodes_in_time() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        await service.door(process).create("/a", b"", ephemeral=True)
        process.dead = True
        service.lose(process)
        await asyncio.sleep(COORDINATOR_SESSION_SECONDS - 1)
        assert service.tree.children("/") == ["a"]
        await asyncio.sleep(2)
        assert service.tree.children("/") == []

    simulate(story)


def test_the_isolated_lose_their_calls_and_waits_and_keep_their_session_if_healed_soon() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"", ephemeral=True)
        waiting = asyncio.ensure_future(door.changed("/a", await door.read("/a")))
        await asyncio.sleep(1)
        for _ in range(2):
            service.lose(process)
            with pytest.raises(CoordinatorLostError):
                await door.read("/a")
            service.heal(process)
            await asyncio.sleep(COORDINATOR_SESSION_SECONDS)
        with pytest.raises(CoordinatorLostError):
            await waiting
        assert await door.children("/") == ["a"]

    simulate(story)


def test_a_cut_off_write_may_or_may_not_have_happened() -> None:
    async def story(service: SimulatedCoordinatorService) -> bool | None:
        process = Process("one")
        door = service.door(process)
        writing = asyncio.ensure_future(door.create("/a", b""))
        await asyncio.sleep(0.004)
        service.lose(process)
        try:
            await writing
        except CoordinatorLostError:
            return bool(service.tree.children("/"))
        return None

    assert {simulate(story, seed) for seed in range(50)} == {None, True, False}


def test_a_session_may_end_unseen() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"", ephemeral=True)
        service.expire(process)
        assert await door.children("/") == []
        await door.create("/a", b"", ephemeral=True)
        assert await door.children("/") == ["a"]

    simulate(story)


def test_losing_a_process_without_a_coordinator_is_nothing() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        service.lose(Process("storage"))

    simulate(story)


def test_what_was_sent_arrives_though_its_sender_dies_or_stands_still() -> None:
    def after(befall: Callable[[SimulatedCoordinatorService, Process], None], seed: int) -> bool:
        async def story(service: SimulatedCoordinatorService) -> bool:
            process = Process("one")
            door = service.door(process)
            await door.create("/first", b"")
            creating = asyncio.ensure_future(door.create("/a", b""))
            await asyncio.sleep(0.001)
            befall(service, process)
            await asyncio.sleep(COORDINATOR_SESSION_SECONDS)
            with suppress(CoordinatorLostError):
                await creating
            return "a" in service.tree.children("/")

        return simulate(story, seed)

    def die(service: SimulatedCoordinatorService, process: Process) -> None:
        process.dead = True
        service.lose(process)

    assert {after(die, seed) for seed in range(20)} == {True, False}
    assert {after(lambda s, p: s.freeze(p), seed) for seed in range(20)} == {True}


def test_the_frozen_lose_their_session_unless_they_thaw_in_time() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        await service.door(process).create("/a", b"", ephemeral=True)
        service.freeze(process)
        await asyncio.sleep(COORDINATOR_SESSION_SECONDS - 1)
        service.thaw(process)
        await asyncio.sleep(5)
        assert service.tree.children("/") == ["a"]
        service.freeze(process)
        await asyncio.sleep(COORDINATOR_SESSION_SECONDS + 1)
        assert service.tree.children("/") == []
        service.thaw(process)
        await service.door(process).create("/a", b"", ephemeral=True)

    simulate(story)


def test_calls_of_a_session_that_has_ended_meanwhile_do_nothing() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"")
        service.traffic.slow_down(100.0)
        writing = asyncio.ensure_future(door.write("/a", b"x", version=0))
        await asyncio.sleep(0.001)
        service.expire(process)
        with pytest.raises(CoordinatorLostError):
            await writing
        assert service.tree.read("/a").version == 0

    simulate(story)


def test_an_outage_ends_calls_and_waits_but_no_session() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"", ephemeral=True)
        waiting = asyncio.ensure_future(door.changed("/a", await door.read("/a")))
        await asyncio.sleep(1)
        service.begin_outage()
        service.freeze(process)
        for call in (waiting, door.read("/a")):
            with pytest.raises(CoordinatorLostError):
                await call
        assert service.effects["calls of the coordinator lost"] == 1
        await asyncio.sleep(3 * COORDINATOR_SESSION_SECONDS)
        service.thaw(process)
        service.end_outage()
        assert await door.children("/") == ["a"]

    simulate(story)


def test_a_slow_coordinator_answers_late() -> None:
    async def story(service: SimulatedCoordinatorService) -> float:
        door = service.door(Process("one"))
        service.traffic.slow_down(100.0)
        before = service.loop.time()
        await door.create("/a", b"")
        service.traffic.speed_up(100.0)
        assert service.effects["calls of the coordinator slowed down"] == 2
        await door.read("/a")
        return service.loop.time() - before

    assert max(simulate(story, seed) for seed in range(5)) > 50.0


def test_lost_answers_say_nothing_about_what_happened() -> None:
    async def story(service: SimulatedCoordinatorService) -> bool:
        door = service.door(Process("one"))
        service.traffic.lose_answers(1.0)
        with pytest.raises(CoordinatorLostError):
            await door.create("/a", b"")
        service.traffic.keep_answers(1.0)
        return "a" in await door.children("/")

    assert {simulate(story, seed) for seed in range(20)} == {True, False}


def test_closing_while_nobody_answers_leaves_the_session_to_end_in_time() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"", ephemeral=True)
        service.lose(process)
        await door.close()
        service.heal(process)
        await asyncio.sleep(COORDINATOR_SESSION_SECONDS - 1)
        assert service.tree.children("/") == ["a"]
        await asyncio.sleep(2)
        assert service.tree.children("/") == []

    simulate(story)


def rebuilt(data: bytes) -> Tree:
    tree = Tree()
    tree.create("/a", data)
    return tree


@pytest.mark.parametrize("cut_seconds", [0.0, COORDINATOR_CALL_SECONDS_MAX / 2])
def test_a_rebuilt_coordinator_is_a_change_though_all_versions_are_the_same(
    cut_seconds: float,
) -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"before")
        seen = await door.read("/a")
        waiting = asyncio.ensure_future(door.changed("/a", seen))
        await asyncio.sleep(1)
        service.lose(process)
        service.rebuild(rebuilt(b"after"), transactions=service.transactions)
        await asyncio.sleep(cut_seconds)
        service.heal(process)
        await waiting
        found = await door.read("/a")
        assert (found, found.session) == (Node(b"after", 0, 0), "one#2")
        assert (seen.version, seen.session) == (found.version, "one#1")
        await door.changed("/a", seen)  # a wait that begins only now, too
        waiting = asyncio.ensure_future(door.changed("/a", found))
        await asyncio.sleep(COORDINATOR_SESSION_SECONDS)
        assert not waiting.done()

    simulate(story)


def test_a_wait_outlives_its_connection_and_asks_for_the_version_that_was_seen() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process, other = Process("one"), service.door(Process("other"))
        door = service.door(process)
        await other.create("/a", b"")
        seen = await door.read("/a")
        waiting = asyncio.ensure_future(door.changed("/a", seen))
        await asyncio.sleep(1)
        for _ in range(2):
            service.lose(process)
            await asyncio.sleep(COORDINATOR_CALL_SECONDS_MAX / 2)
            service.heal(process)
            await asyncio.sleep(COORDINATOR_RETRY_SECONDS_MAX)
            assert not waiting.done()
        service.lose(process)
        await other.write("/a", b"x", version=0)
        await asyncio.sleep(1)
        assert not waiting.done()
        service.heal(process)
        await waiting

    simulate(story)


def test_a_session_that_ends_is_a_change_of_what_was_read_in_it() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        process = Process("one")
        door = service.door(process)
        await door.create("/a", b"")
        waits = [
            asyncio.ensure_future(door.changed(path, seen))
            for path, seen in (("/a", await door.read("/a")), ("/b", None))
        ]
        await asyncio.sleep(1)
        service.expire(process)
        await waits[0]
        await asyncio.sleep(1)
        assert not waits[1].done()  # there is no node, in this session either
        await door.create("/b", b"")
        await waits[1]

    simulate(story)


def test_a_coordinator_with_fewer_transactions_refuses_old_sessions_until_they_begin_anew() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        door = service.door(Process("one"))
        await door.create("/a", b"before")
        waiting = asyncio.ensure_future(door.changed("/a", await door.read("/a")))
        await asyncio.sleep(1)
        service.rebuild(rebuilt(b"after"), transactions=0)
        assert service.effects["sessions of the coordinator refused"] == 1
        fresh = service.door(Process("fresh"))
        assert (await fresh.read("/a")).data == b"after"
        for call in (waiting, door.read("/a")):
            with pytest.raises(CoordinatorLostError):
                await call
        await asyncio.sleep(COORDINATOR_SESSION_SECONDS + 2 * COORDINATOR_RETRY_SECONDS_MAX)
        assert (await door.read("/a")).data == b"after"

    simulate(story)


def test_a_refused_process_is_taken_again_once_the_coordinator_has_caught_up() -> None:
    async def story(service: SimulatedCoordinatorService) -> None:
        door, fresh = service.door(Process("one")), service.door(Process("fresh"))
        await door.create("/a", b"before")
        service.rebuild(rebuilt(b"after"), transactions=0)
        for number in range(10):
            await fresh.create(f"/{number}", b"")
        assert (await door.read("/a")).data == b"after"

    simulate(story)
