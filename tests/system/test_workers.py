"""Calls that block run off the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from waltz.system.workers import DaemonThreads, RealWorkers


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


def test_threads_end_once_what_was_submitted_is_done() -> None:
    """Nobody waits for daemons, also not at the interpreter's end: `client/test_exits.py`."""
    pool, released, meet = DaemonThreads(2, "idle"), threading.Event(), threading.Barrier(3)

    def work() -> bool:
        meet.wait()
        return released.wait()

    futures = [pool.submit(work) for _ in range(2)]
    futures.append(pool.submit(released.wait))
    meet.wait()
    threads = [each for each in threading.enumerate() if each.name.startswith("idle_")]
    assert [each.daemon for each in threads] == [True, True]
    pool.shutdown()
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(work)
    released.set()
    assert [future.result(60) for future in futures] == [True] * 3
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_call_that_nobody_waits_for_any_more_is_not_made() -> None:
    pool, released = DaemonThreads(1, "busy"), threading.Event()
    made: list[int] = []
    pool.submit(released.wait)
    cancelled = pool.submit(made.append, 1)
    assert cancelled.cancel()
    released.set()
    assert pool.submit(made.append, 2).result(60) is None
    assert made == [2]
    pool.shutdown()


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
