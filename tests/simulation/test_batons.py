"""Code for threads runs on a simulated loop, in the order of the loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from tests.simulation.batons import AbandonedError, Baton, on_the_loop
from waltz.errors import UnavailableError
from waltz.sim.loop import ProcessKilled, SimulatedLoop


def test_threads_wait_on_virtual_time_and_take_turns() -> None:
    loop, said = SimulatedLoop(1), []

    def work(name: str, seconds: float) -> str:
        for _ in range(3):
            on_the_loop(lambda: asyncio.sleep(seconds))
            said.append((name, round(loop.time(), 3)))
        return name

    async def course() -> list[str]:
        slow, fast = Baton(lambda: work("slow", 2.0)), Baton(lambda: work("fast", 1.5))
        return [*await asyncio.gather(slow.run(), fast.run())]

    assert loop.run_until_complete(course()) == ["slow", "fast"]
    assert said == [
        ("fast", 1.5), ("slow", 2.0), ("fast", 3.0), ("slow", 4.0), ("fast", 4.5), ("slow", 6.0),
    ]  # fmt: skip
    loop.shut_down()


def test_errors_go_both_ways() -> None:
    loop = SimulatedLoop(1)

    async def fail() -> None:
        raise UnavailableError("away")

    def work() -> None:
        with suppress(UnavailableError):
            on_the_loop(fail)
        raise UnavailableError("also away")

    with pytest.raises(UnavailableError, match="also"):
        loop.run_until_complete(Baton(work).run())
    loop.shut_down()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), UnavailableError("closed")])
def test_a_thread_with_which_nobody_goes_on_ends(error: BaseException) -> None:
    """Also when what it waited for ends with an error of its own after that."""
    loop, said = SimulatedLoop(1), []

    async def wait() -> None:
        try:
            await asyncio.sleep(1_000.0)
        except asyncio.CancelledError:
            raise error from None

    def work() -> None:
        try:
            on_the_loop(wait)
        except AbandonedError:
            said.append("abandoned")
            with suppress(AbandonedError):
                on_the_loop(wait)
            raise

    async def course() -> None:
        baton = Baton(work)
        running = asyncio.ensure_future(baton.run())
        await asyncio.sleep(1.0)
        baton.abandon()
        baton.abandon()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled() or isinstance(running.exception(), ProcessKilled)

    loop.run_until_complete(course())
    assert said == ["abandoned"]
    loop.shut_down()
