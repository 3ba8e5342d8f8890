"""Calls that block run off the loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from waltz.system.workers import RealWorkers

NO_STACK = 2**47
"""Bytes of a stack for which no system has room, so that no thread starts."""


@pytest.mark.parametrize("daemon", [False, True])
def test_a_blocking_call_leaves_the_loop_running(daemon: bool) -> None:
    async def story() -> None:
        workers, released = RealWorkers(1, daemon=daemon), threading.Event()
        blocked = asyncio.ensure_future(workers.run_blocking(released.wait))
        await asyncio.sleep(0)
        assert not blocked.done()
        released.set()
        assert await blocked
        workers.close()

    asyncio.run(story())


@pytest.mark.parametrize("daemon", [False, True])
def test_what_a_call_raises_reaches_its_caller(daemon: bool) -> None:
    def fail() -> None:
        raise OSError("disk")

    async def story() -> None:
        workers = RealWorkers(1, daemon=daemon)
        with pytest.raises(OSError, match="disk"):
            await workers.run_blocking(fail)
        workers.close()

    asyncio.run(story())


def test_workers_that_were_never_asked_for_anything_leave_nothing_behind() -> None:
    """A long-lived application makes some for each client that it opens."""
    workers = RealWorkers()
    kept = weakref.ref(workers)
    del workers
    assert kept() is None


def test_a_call_for_which_the_system_gives_no_thread_waits_for_another_one() -> None:
    """It would be lost, and a storage node's partition with it."""

    async def story() -> None:
        workers, released = RealWorkers(), threading.Event()
        blocked = asyncio.ensure_future(workers.run_blocking(released.wait))
        await asyncio.sleep(0)
        before = threading.stack_size(NO_STACK)
        try:
            waiting = asyncio.ensure_future(workers.run_blocking(threading.get_ident))
            await asyncio.sleep(0)
        finally:
            threading.stack_size(before)
        released.set()
        assert await blocked
        assert await waiting
        workers.close()

    asyncio.run(story())


def test_the_first_thread_that_the_system_does_not_give_is_told_to_the_caller() -> None:
    async def story() -> None:
        workers = RealWorkers()
        before = threading.stack_size(NO_STACK)
        try:
            with pytest.raises(RuntimeError, match="new thread"):
                await workers.run_blocking(threading.get_ident)
        finally:
            threading.stack_size(before)
        assert await workers.run_blocking(threading.get_ident)
        workers.close()

    asyncio.run(story())


@pytest.mark.parametrize("daemon", [False, True])
def test_calls_beyond_the_threads_wait_their_turn(daemon: bool) -> None:
    async def story() -> None:
        workers = RealWorkers(2, daemon=daemon)
        running, most = [0], [0]
        lock, meet = threading.Lock(), threading.Barrier(2)

        def work() -> int:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            meet.wait()
            with lock:
                running[0] -= 1
            return threading.get_ident()

        threads = await asyncio.gather(*(workers.run_blocking(work) for _ in range(6)))
        assert most[0] == 2
        assert threading.get_ident() not in threads
        workers.close()

    asyncio.run(story())


def test_what_a_call_returns_runs_on_the_loop_in_the_context_of_its_caller() -> None:
    name: ContextVar[str] = ContextVar("name", default="nobody")
    found: list[tuple[int, str]] = []

    async def story() -> None:
        workers, over = RealWorkers(1), asyncio.Event()

        def then() -> None:
            found.append((threading.get_ident(), name.get()))
            over.set()

        def work() -> Callable[[], object]:
            found.append((threading.get_ident(), name.get()))
            return then

        name.set("caller")
        workers.start(work)
        await over.wait()
        workers.close()

    asyncio.run(story())
    (thread, _), after = found
    assert thread != threading.get_ident()
    assert after == (threading.get_ident(), "caller")


def test_who_asks_again_is_served_by_the_same_thread() -> None:
    async def story() -> None:
        workers = RealWorkers(8)
        threads = {await workers.run_blocking(threading.get_ident) for _ in range(100)}
        assert len(threads) == 1
        workers.close()

    asyncio.run(story())


def test_threads_end_once_what_was_asked_for_is_done() -> None:
    """Nobody waits for daemons, also not at the interpreter's end: `client/test_exits.py`."""

    async def story() -> None:
        workers, released = RealWorkers(2, name="ending"), threading.Event()
        meet = threading.Barrier(3)

        def work() -> bool:
            meet.wait()
            return released.wait()

        asked = [asyncio.ensure_future(workers.run_blocking(work)) for _ in range(2)]
        asked.append(asyncio.ensure_future(workers.run_blocking(released.wait)))
        await asyncio.sleep(0)
        meet.wait()
        threads = [each for each in threading.enumerate() if each.name.startswith("ending_")]
        assert len(threads) == 2
        workers.close()
        workers.close()
        with pytest.raises(RuntimeError, match="closed"):
            await workers.run_blocking(work)
        released.set()
        assert await asyncio.gather(*asked) == [True] * 3
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("daemon", "seconds", "wanted"), [(False, 0.5, "begun done"), (True, 600, "begun ")]
)
def test_the_interpreter_waits_for_what_runs_unless_it_is_a_daemon(
    daemon: bool, seconds: float, wanted: str
) -> None:
    program = f"""
import asyncio, threading, time
from waltz.system.workers import RealWorkers

async def main():
    asyncio.ensure_future(workers.run_blocking(work))
    while not has_begun.is_set():
        await asyncio.sleep(0.01)

def work():
    print("begun", end=" ", flush=True)
    has_begun.set()
    time.sleep({seconds})
    print("done", end="", flush=True)

has_begun = threading.Event()
workers = RealWorkers(daemon={daemon})
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stdout.decode() == wanted


@pytest.mark.parametrize("daemon", [False, True])
def test_a_caller_that_is_cancelled_waits_no_more_and_what_has_not_begun_does_not_begin(
    daemon: bool,
) -> None:
    async def story() -> None:
        workers, released = RealWorkers(1, daemon=daemon), threading.Event()
        made: list[int] = []
        running = asyncio.ensure_future(workers.run_blocking(released.wait))
        waiting = asyncio.ensure_future(workers.run_blocking(lambda: made.append(1)))
        await asyncio.sleep(0)
        for cancelled in (running, waiting):
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        released.set()
        await workers.run_blocking(lambda: made.append(2))
        assert made == [2]
        workers.close()

    asyncio.run(story())


def test_a_call_may_outlive_the_loop_that_asked_for_it() -> None:
    workers, released = RealWorkers(1), threading.Event()

    async def story() -> None:
        asked = asyncio.ensure_future(workers.run_blocking(released.wait))
        await asyncio.sleep(0)
        asked.cancel()

    asyncio.run(story())
    released.set()
    assert asyncio.run(workers.run_blocking(lambda: "served")) == "served"
    workers.close()
