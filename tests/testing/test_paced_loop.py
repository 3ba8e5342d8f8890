"""A loop that runs ahead on virtual time, and then with the clock and with threads."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from waltz.errors import ClientClosedError
from waltz.testing.paced_loop import PacedLoop, SharedThread


def test_time_is_virtual_until_it_is_paced() -> None:
    loop = PacedLoop("seed")
    thread = SharedThread("paced", loop)

    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return loop.time()

    began = time.monotonic()
    assert thread.call(sleep(86_400.0)) == 86_400.0
    assert time.monotonic() - began < 3_600.0, "a day has not passed outside"
    loop.call_soon_threadsafe(loop.pace)
    began = time.monotonic()
    assert thread.call(sleep(0.05)) >= 86_400.05
    assert time.monotonic() - began >= 0.05
    thread.end()


def test_threads_work_beside_it_and_wake_it() -> None:
    loop = PacedLoop("seed")
    thread = SharedThread("paced", loop)
    loop.call_soon_threadsafe(loop.pace)

    async def wait_for_a_thread() -> str:
        return await loop.run_in_executor(None, lambda: threading.current_thread().name)

    assert thread.call(wait_for_a_thread()) != "paced"

    async def all_at_once() -> list[int]:
        async def late(number: int) -> int:
            await asyncio.sleep(0.001 * (5 - number))
            return number

        return await asyncio.gather(*map(late, range(5)))

    assert thread.call(all_at_once()) == [0, 1, 2, 3, 4]
    thread.end()


def test_a_client_that_stops_leaves_it_to_the_others() -> None:
    thread = SharedThread("paced", PacedLoop("seed"))

    async def nothing() -> int:
        return 1

    thread.stop()
    assert thread.call(nothing()) == 1
    thread.end()
    thread.end()
    with pytest.raises(ClientClosedError):
        thread.call(nothing())


def test_what_is_under_way_is_taken_apart_at_the_end() -> None:
    loop = PacedLoop("seed")
    thread = SharedThread("paced", loop)
    ends: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ends.append("taken apart")

    async def start() -> None:
        ends_later.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)

    ends_later: list[asyncio.Task[None]] = []
    thread.call(start())
    thread.end()
    assert ends == ["taken apart"]
