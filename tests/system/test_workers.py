"""Calls that block run off the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from waltz.system.workers import RealWorkers


def test_a_blocking_call_leaves_the_loop_running() -> None:
    async def story() -> None:
        workers, released = RealWorkers(1), threading.Event()
        blocked = asyncio.ensure_future(workers.run_blocking(released.wait))
        await asyncio.sleep(0)
        assert not blocked.done()
        released.set()
        assert await blocked
        workers.close()

    asyncio.run(story())


def test_what_a_call_raises_reaches_its_caller() -> None:
    def fail() -> None:
        raise OSError("disk")

    async def story() -> None:
        workers = RealWorkers(1)
        with pytest.raises(OSError, match="disk"):
            await workers.run_blocking(fail)
        workers.close()

    asyncio.run(story())


def test_calls_beyond_the_threads_wait_their_turn() -> None:
    async def story() -> None:
        workers = RealWorkers(2)
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
