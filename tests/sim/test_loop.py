"""Virtual time, drawn order, crashes, and failures that nobody looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import pytest

from waltz.sim.loop import (
    DeadlockError,
    Process,
    SimulatedClock,
    SimulatedLoop,
    SimulatedRandom,
    SimulatedWorkers,
    SimulationError,
    VirtualTimeError,
)


def run(work: Coroutine[Any, Any, Any], seed: int = 1) -> tuple[Any, SimulatedLoop]:
    loop = SimulatedLoop(seed)
    try:
        return loop.run_until_complete(work), loop
    finally:
        loop.shut_down()


async def race(log: list[str]) -> None:
    async def walker(name: str) -> None:
        for step in range(3):
            log.append(f"{name}{step}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(walker(name))


def race_of(seed: int) -> str:
    log: list[str] = []
    run(race(log), seed)
    return " ".join(log)


def test_the_clock_jumps_to_the_next_timer() -> None:
    async def a_day() -> float:
        for _ in range(24):
            await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert run(a_day())[0] == 86_400.0


def test_run_order_is_drawn_from_the_seed_and_pinned() -> None:
    """A new Python that runs tasks otherwise must not surprise anybody."""
    assert race_of(1) == "b0 a0 b1 b2 c0 c1 a1 a2 c2"
    assert race_of(1) == race_of(1)
    assert len({race_of(seed) for seed in range(20)}) > 10


def test_timeouts_use_virtual_time() -> None:
    async def wait_in_vain() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50.0):
                await asyncio.get_running_loop().create_future()
        return asyncio.get_running_loop().time()

    assert run(wait_in_vain())[0] == 50.0


def test_a_deadlock_says_who_waits() -> None:
    async def nobody_wakes_me() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match="nobody_wakes_me"):
        run(nobody_wakes_me())


def test_cancelled_timers_do_not_hide_a_deadlock() -> None:
    async def nobody_wakes_me() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, print).cancel()
        await loop.create_future()

    with pytest.raises(DeadlockError):
        run(nobody_wakes_me())


def test_an_endless_loop_without_time_is_an_error() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="caught in a loop"):
        run(spin())


def test_virtual_time_is_bounded() -> None:
    async def wait_for_ever() -> None:
        while True:
            await asyncio.sleep(1000.0)

    with pytest.raises(VirtualTimeError):
        run(wait_for_ever())


def test_a_task_that_fails_unseen_is_reported() -> None:
    async def fails() -> None:
        raise ValueError("lost in the dark")

    async def seen() -> list[str]:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        with pytest.raises(ValueError, match="dark"):
            await task
        return loop.failures()

    async def unseen() -> list[str]:
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        assert task.done()
        return loop.failures()

    loop = SimulatedLoop(1)
    assert loop.run_until_complete(seen()) == []
    (failure,) = loop.run_until_complete(unseen())
    assert "lost in the dark" in failure
    loop.shut_down()


def test_a_callback_that_raises_is_reported() -> None:
    async def work() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    _, loop = run(work())
    (failure,) = loop.failures()
    assert "ZeroDivisionError" in failure


def test_a_killed_process_never_runs_again_not_even_to_clean_up() -> None:
    log: list[str] = []

    async def child() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            log.append("cleaned up")

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.sleep(1)
            log.append("alive")
            await asyncio.sleep(10)
            log.append("still alive")

    async def world() -> list[str]:
        process = Process("victim")
        task = loop.spawn(process, parent())
        await asyncio.sleep(5)
        process.dead = True
        await asyncio.sleep(50)
        assert not task.done()
        return list(log)

    loop = SimulatedLoop(1)
    assert loop.run_until_complete(world()) == ["alive"]
    loop.shut_down()


def test_a_paused_process_runs_nothing_and_then_all_that_fell_due() -> None:
    log: list[tuple[str, float]] = []

    async def ticker() -> None:
        while True:
            await asyncio.sleep(1.0)
            log.append(("tick", loop.time()))

    async def listener(event: asyncio.Event) -> None:
        await event.wait()
        log.append(("heard", loop.time()))

    async def world() -> None:
        process, event = Process("sleeper"), asyncio.Event()
        loop.spawn(process, ticker())
        loop.spawn(process, listener(event))
        await asyncio.sleep(1.5)
        loop.pause(process)
        loop.pause(process)
        await asyncio.sleep(5.0)
        event.set()
        loop.resume(process)
        await asyncio.sleep(1.0)
        assert log == [("tick", 1.0)], "paused twice, resumed once"
        loop.resume(process)
        await asyncio.sleep(2.5)
        assert sorted(log[1:]) == [("heard", 7.5), ("tick", 7.5), ("tick", 8.5), ("tick", 9.5)]

    loop = SimulatedLoop(1)
    loop.run_until_complete(world())
    loop.shut_down()


def test_a_process_that_dies_while_it_is_paused_stays_dead() -> None:
    log: list[str] = []

    async def life() -> None:
        await asyncio.sleep(1.0)
        log.append("alive")

    async def world() -> None:
        process = Process("sleeper")
        loop.spawn(process, life())
        loop.pause(process)
        await asyncio.sleep(2.0)
        process.dead = True
        loop.resume(process)
        await asyncio.sleep(2.0)
        assert log == []

    loop = SimulatedLoop(1)
    loop.run_until_complete(world())
    loop.shut_down()


def test_clocks_and_timers_of_a_process_drift_together() -> None:
    """C4: no two clocks agree on how long a second is."""

    async def life(clock: SimulatedClock) -> None:
        before = clock.now()
        await asyncio.sleep(10.0)
        assert clock.now() - before == pytest.approx(10.0)

    async def world() -> None:
        for rate, seconds in ((2.0, 5.0), (0.5, 20.0), (1.0, 10.0)):
            process = Process("one")
            clock = SimulatedClock(loop, Random(1), process)
            clock.run_at(rate)
            before = loop.time()
            await loop.spawn(process, life(clock))
            assert loop.time() - before == pytest.approx(seconds)

    loop = SimulatedLoop(1)
    loop.run_until_complete(world())
    loop.shut_down()


def test_a_wall_clock_that_is_set_leaves_the_other_one_alone() -> None:
    loop = SimulatedLoop(1)
    clock = SimulatedClock(loop, Random(1))
    now, wall = clock.now(), clock.wall_milliseconds()
    clock.set_wall(-3_600_000)
    assert (clock.now(), clock.wall_milliseconds()) == (now, wall - 3_600_000)
    loop.shut_down()


def test_hindered_workers_take_longer() -> None:
    async def work() -> float:
        await SimulatedWorkers(loop, Random(1), lambda: 7.0).run_blocking(lambda: None)
        return loop.time()

    loop = SimulatedLoop(1)
    assert 7.0 <= loop.run_until_complete(work()) < 7.1
    loop.shut_down()


def test_shutting_down_takes_apart_whatever_is_left() -> None:
    log: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(1_000.0)
        finally:
            log.append("first")
            try:
                await asyncio.sleep(1_000.0)
            finally:
                log.append("second")
                asyncio.get_running_loop().create_task(asyncio.sleep(1.0))

    async def empty_group() -> None:
        async with asyncio.TaskGroup():
            await asyncio.sleep(1_000.0)

    async def fails() -> None:
        try:
            await asyncio.sleep(1_000.0)
        finally:
            raise ValueError("while being closed")

    async def scene() -> None:
        async with asyncio.TaskGroup() as group:
            for work in (stubborn(), empty_group(), fails()):
                group.create_task(work)
            await asyncio.sleep(1_000.0)

    async def broken() -> None:
        loop.create_task(scene())
        await asyncio.sleep(0.5)

    loop = SimulatedLoop(1)
    loop.run_until_complete(broken())
    loop.shut_down()
    assert log == ["first", "second"]


def test_threads_are_refused() -> None:
    async def work() -> None:
        with pytest.raises(SimulationError):
            asyncio.get_running_loop().run_in_executor(None, print)

    run(work())


def test_workers_take_time_and_hand_over_results_and_errors() -> None:
    async def work() -> float:
        workers = SimulatedWorkers(loop, Random(1))
        assert await workers.run_blocking(lambda: 42) == 42
        with pytest.raises(OSError, match="broken"):
            await workers.run_blocking(broken)
        return loop.time()

    def broken() -> None:
        raise OSError("broken disk")

    loop = SimulatedLoop(1)
    assert loop.run_until_complete(work()) > 0.0
    loop.shut_down()


def test_blocking_work_of_a_cancelled_caller_may_run_all_the_same() -> None:
    done: list[int] = []

    async def work() -> None:
        workers = SimulatedWorkers(loop, Random(1))
        for number in range(40):
            task = asyncio.create_task(workers.run_blocking(partial(done.append, number)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(1)

    loop = SimulatedLoop(1)
    loop.run_until_complete(work())
    assert 0 < len(done) < 40
    loop.shut_down()


def test_clocks_of_two_processes_run_alike_but_begin_apart() -> None:
    loop = SimulatedLoop(1)
    one, other = (SimulatedClock(loop, Random(seed)) for seed in (1, 2))
    assert one.now() != other.now()
    before = one.now(), other.now(), one.wall_milliseconds()
    loop.run_until_complete(asyncio.sleep(5.0))
    assert one.now() - before[0] == pytest.approx(5.0)
    assert other.now() - before[1] == pytest.approx(5.0)
    assert one.wall_milliseconds() - before[2] == 5000
    loop.shut_down()


def test_random_door_gives_random_uuids_of_version_4() -> None:
    random = SimulatedRandom(Random(1))
    assert random.uuid().version == 4
    assert random.uuid() != random.uuid()
    assert 2.0 <= random.uniform(2.0, 3.0) <= 3.0


def test_what_asyncio_keeps_in_sets_is_gone_through_in_the_same_order_every_time() -> None:
    """A group cancels its tasks in the order of a set of them."""

    async def work(rubbish: int) -> list[int]:
        ended: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(100.0)
            finally:
                ended.append(number)

        held: list[object] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0), asyncio.TaskGroup() as group:
                for number in range(50):
                    held += [bytearray(number * size) for size in range(rubbish % 7)]
                    group.create_task(wait(number))
        return ended

    orders = set()
    for rubbish in range(14):
        loop = SimulatedLoop(1)
        orders.add(tuple(loop.run_until_complete(work(rubbish))))
        loop.shut_down()
    assert len(orders) == 1
