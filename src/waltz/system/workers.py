"""Threads for calls that block: disks, databases, names of hosts."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from waltz.limits import WORKER_THREADS_MAX

T = TypeVar("T")

_Call: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]
_Calls: TypeAlias = "SimpleQueue[_Call | None]"


class RealWorkers:
    """Implements `host.Workers`.

    Threads start when they are needed; calls beyond `threads_max` wait. A cancelled caller stops
    waiting; its function still runs to the end if it has begun.
    """

    # An executor makes a future and a lock of its own for each call and couples them with the
    # loop's: that costs as much as the rest of the way to a thread and back. Each thread waits at a
    # queue of its own: with one queue for all, each call would wake several threads.

    def __init__(
        self,
        threads_max: int = WORKER_THREADS_MAX,
        *,
        daemon: bool = False,
        name: str = "waltz-worker",
    ) -> None:
        """`daemon`: the interpreter's exit does not wait for calls that are running."""
        self._threads_max = threads_max
        self._name = name
        self._idle: list[_Calls] = []
        """The queues of idle threads, in the order in which these became idle."""
        self._waiting: deque[_Call] = deque()
        """Calls that wait for a thread."""
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()
        self._closed = False
        if not daemon:
            atexit.register(self._finish)

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread and return its result. Raises RuntimeError: closed."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[T] = loop.create_future()
        with self._changing:
            if self._closed:
                raise RuntimeError("the workers are closed; no call can be handed to them")
            if self._idle:
                self._idle.pop().put((function, waiting, loop))
            elif len(self._threads) < self._threads_max:
                self._start_thread((function, waiting, loop))
            else:
                self._waiting.append((function, waiting, loop))
        return await waiting

    def close(self) -> None:
        """Let the threads end once the calls made so far are done; take no more. Idempotent."""
        atexit.unregister(self._finish)
        self._end()

    def _end(self) -> None:
        with self._changing:
            self._closed = True
            for calls in self._idle:
                calls.put(None)
            self._idle.clear()

    def _finish(self) -> None:
        """Wait for all calls, when the interpreter exits."""
        self._end()
        for thread in self._threads:
            thread.join()

    def _start_thread(self, call: _Call) -> None:
        calls: _Calls = SimpleQueue()
        calls.put(call)
        name = f"{self._name}_{len(self._threads) + 1}"
        # Daemons: the interpreter would wait for other threads before anything tells them to end.
        thread = threading.Thread(target=self._run, args=(calls,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run(self, calls: _Calls) -> None:
        while (call := calls.get()) is not None:
            _carry_out(*call, partial(self._free, calls))
            del call

    def _free(self, calls: _Calls) -> None:
        """Give the idle thread of queue `calls` a call that waits, or let it end or wait."""
        with self._changing:
            if self._waiting:
                calls.put(self._waiting.popleft())
            elif self._closed:
                calls.put(None)
            else:
                self._idle.append(calls)


def _carry_out(
    function: Callable[[], T],
    waiting: asyncio.Future[T],
    loop: asyncio.AbstractEventLoop,
    free: Callable[[], None],
) -> None:
    """Run `function` and pass its result to `waiting` on its loop, which may be gone by then.

    `free` is called first, so that a caller that makes its next call at once finds this thread."""
    if waiting.cancelled():
        free()
        return
    tell: Callable[[asyncio.Future[T], Any], None] = _tell
    outcome: Any
    try:
        outcome = function()
    except BaseException as error:
        tell, outcome = _tell_error, error
    free()
    try:
        loop.call_soon_threadsafe(tell, waiting, outcome)
    except RuntimeError:
        pass
    finally:
        del outcome  # an error holds this frame, by its traceback


def _tell(waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():
        waiting.set_result(result)


def _tell_error(waiting: asyncio.Future[T], error: BaseException) -> None:
    if not waiting.done():
        waiting.set_exception(error)
