"""Threads for calls that block: disks and databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import ParamSpec, TypeVar

from waltz.limits import WORKER_THREADS_MAX

P = ParamSpec("P")
T = TypeVar("T")


class RealWorkers:
    """Implements `host.Workers`.

    Threads start when they are needed; calls beyond their number wait. A cancelled caller stops
    waiting, while its function runs to the end.
    """

    def __init__(self, threads_max: int = WORKER_THREADS_MAX, *, daemon: bool = False) -> None:
        """`daemon`: the interpreter's exit does not wait for what is running."""
        pool = DaemonThreads if daemon else ThreadPoolExecutor
        self._pool: Executor = pool(threads_max, "waltz-worker")

    async def run_blocking(self, function: Callable[[], T]) -> T:
        # As `run_in_executor`, but without a future of each kind and what couples them: that costs
        # as much as all the rest of the way to a thread and back.
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        self._pool.submit(_work, function, waiting, loop)
        return await waiting

    def close(self) -> None:
        """Let the threads end once what runs is done; no further calls."""
        self._pool.shutdown(wait=False)


class DaemonThreads(Executor):
    """As ThreadPoolExecutor, whose threads the interpreter joins when it exits, however long what
    they run may take; these it leaves."""

    def __init__(self, threads_max: int, name: str) -> None:
        self._threads_max = threads_max
        self._name = name
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._changing = threading.Lock()
        self._count = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises RuntimeError: shut down."""
        future: Future[T] = Future()
        with self._changing:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._calls.put(partial(_carry_out, future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._count < self._threads_max:
                self._count += 1
                name = f"{self._name}_{self._count}"
                threading.Thread(target=self._run, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end once what was submitted is done; waits for nothing."""
        with self._changing:
            if not self._closed:
                self._closed = True
                self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
            self._idle.release()
        self._calls.put(None)  # for the next thread


def _work(
    function: Callable[[], T], waiting: asyncio.Future[T], loop: asyncio.AbstractEventLoop
) -> None:
    """Run `function` in a thread and tell `waiting` on its loop, which may be gone by then."""
    if waiting.cancelled():
        return
    try:
        result = function()
    except BaseException as error:
        tell = partial(_tell_error, waiting, error)
    else:
        tell = partial(_tell, waiting, result)
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(tell)


def _tell(waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():
        waiting.set_result(result)


def _tell_error(waiting: asyncio.Future[T], error: BaseException) -> None:
    if not waiting.done():
        waiting.set_exception(error)


def _carry_out(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)
