"""A loop in a thread of its own, and the calls that wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from waltz.connections.loop_thread import LoopThread, WaitingThread, wait_on_loop
from waltz.errors import ClientClosedError, LocalProtocolError


def test_a_loop_thread_refuses_what_would_wait_for_itself() -> None:
    thread = LoopThread("waltz-test")

    async def nothing() -> None: ...

    async def nested() -> None:
        thread.call(nothing())

    with pytest.raises(LocalProtocolError, match="event loop that would have to serve it"):
        thread.call(nested())
    thread.stop()
    thread.stop()
    with pytest.raises(ClientClosedError):
        thread.call(nothing())


def test_work_that_comes_as_the_loop_ends_ends_with_an_error() -> None:
    """The loop accepts it in its last turn, and would run it in the next."""

    class Late(LoopThread):
        late: Future[None]

        async def wind_up(self) -> None:
            await super().wind_up()
            self.late = self.begin(asyncio.sleep(0))

    thread = Late("waltz-test")
    thread.stop()
    with pytest.raises(ClientClosedError):
        thread.late.result(10)


def test_a_call_that_waits_when_the_loop_ends_is_told_that_its_client_is_closed() -> None:
    """Not that it was cancelled, which nobody has done."""
    thread = LoopThread("waltz-test")
    begun = threading.Semaphore(0)
    raised: list[type[BaseException]] = []

    async def without_end() -> None:
        begun.release()
        await asyncio.Event().wait()

    def note_error(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            raised.append(type(error))

    calls: list[Callable[[], None]] = [
        lambda: thread.call(without_end()),
        lambda: wait_on_loop(thread._loop, without_end),
    ]
    waiting = [threading.Thread(target=note_error, args=(call,)) for call in calls]
    for each in waiting:
        each.start()
    for _ in waiting:
        assert begun.acquire(timeout=60)
    thread.stop()
    for each in waiting:
        each.join(60)
    assert raised == [ClientClosedError] * 2


def test_a_thread_that_waits_gets_what_the_loop_gives_it_first() -> None:
    loop = asyncio.new_event_loop()
    given: WaitingThread[int] = WaitingThread()
    loop.call_soon(given.give, 7)
    loop.call_soon(given.fail, ValueError("too late"))
    loop.run_until_complete(asyncio.sleep(0))
    assert given.wait(loop, 10.0) == 7

    failed: WaitingThread[int] = WaitingThread()
    failed.fail(ValueError("first"))
    failed.give(7)
    with pytest.raises(ValueError, match="first"):
        failed.wait(loop, 10.0)
    loop.close()


def test_a_thread_that_waits_is_not_left_alone_by_a_loop_that_has_ended() -> None:
    loop = asyncio.new_event_loop()
    thread: WaitingThread[int] = WaitingThread()
    with pytest.raises(TimeoutError):
        thread.wait(loop, 0.0)
    loop.close()
    with pytest.raises(ClientClosedError):
        thread.wait(loop, 0.0)
