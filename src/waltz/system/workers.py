"""Threads for calls that block: disks, databases, names of hosts."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from waltz.limits import WORKER_THREADS_MAX

T = TypeVar("T")

_Call: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class RealWorkers:
    """Implements `host.Workers`.

    Threads start when they are needed; calls beyond their number wait. A cancelled caller stops
    waiting, while its function runs to the end, unless it has not begun.
    """

    # An executor makes a future of its own and a lock for each call, and couples them with the
    # loop's: that costs as much as all the rest of the way to a thread and back.

    def __init__(
        self,
        threads_max: int = WORKER_THREADS_MAX,
        *,
        daemon: bool = False,
        name: str = "waltz-worker",
    ) -> None:
        """`daemon`: the interpreter's exit does not wait for what is running."""
        self._threads_max = threads_max
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle: SimpleQueue[None] = SimpleQueue()
        """One for each thread that has nothing to do."""
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()
        self._closed = False
        if not daemon:
            atexit.register(self._finish)

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """As of `host.Workers`. Raises RuntimeError: closed."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        with self._changing:
            if self._closed:
                raise RuntimeError("a call for workers that are closed")
            self._calls.put((function, waiting, loop))
            try:
                self._idle.get_nowait()
            except Empty:
                self._start_thread()
        return await waiting

    def close(self) -> None:
        """Let the threads end once what was asked for is done; no further calls. Idempotent."""
        atexit.unregister(self._finish)
        self._end()

    def _end(self) -> None:
        with self._changing:
            if not self._closed:
                self._closed = True
                self._calls.put(None)

    def _finish(self) -> None:
        """The interpreter exits."""
        self._end()
        for thread in self._threads:
            thread.join()

    def _start_thread(self) -> None:
        count = len(self._threads) + 1
        if count <= self._threads_max:
            name = f"{self._name}_{count}"
            # Daemons, for others would be waited for before anybody tells them to end.
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            _carry_out(*call)
            del call
            self._idle.put(None)
        self._calls.put(None)  # for the next thread


def _carry_out(
    function: Callable[[], T], waiting: asyncio.Future[T], loop: asyncio.AbstractEventLoop
) -> None:
    """Run `function` and tell `waiting` on its loop, which may be gone by then."""
    if waiting.cancelled():
        return
    try:
        try:
            result = function()
        except BaseException as error:
            loop.call_soon_threadsafe(_tell_error, waiting, error)
        else:
            loop.call_soon_threadsafe(_tell, waiting, result)
    except RuntimeError:
        pass


def _tell(waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():
        waiting.set_result(result)


def _tell_error(waiting: asyncio.Future[T], error: BaseException) -> None:
    if not waiting.done():
        waiting.set_exception(error)
