"""Threads for calls that block: disks, databases, names of hosts."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import TypeAlias, TypeVar

from waltz.limits import WORKER_THREADS_MAX

T = TypeVar("T")

_Call: TypeAlias = "tuple[Callable[[], Callable[[], object]], asyncio.AbstractEventLoop, Context]"
_Calls: TypeAlias = "SimpleQueue[_Call | None]"


class RealWorkers:
    """Implements `host.Workers`.

    Threads start when they are needed; calls beyond `threads_max`, or beyond what the system lets
    the process have, wait. A cancelled caller stops waiting; its function still runs to the end if
    it has begun.
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
        self._daemon = daemon

    def start(self, function: Callable[[], Callable[[], object]]) -> None:
        """Run `function` in a thread, then what it returns on the running loop, unless that is gone
        by then. Raises RuntimeError: closed, or the system gives not even the first thread."""
        call = function, asyncio.get_running_loop(), copy_context()
        with self._changing:
            if self._closed:
                raise RuntimeError("the workers are closed; no call can be handed to them")
            if not self._idle:
                if len(self._threads) >= self._threads_max or not self._has_started(call):
                    self._waiting.append(call)
                return
            calls = self._idle.pop()
        # Last: the thread that wakes needs the interpreter, which its caller may be about to leave.
        calls.put(call)

    async def run_blocking(self, function: Callable[[], T]) -> T:
        """Run `function` in a thread and return its result. Raises RuntimeError: closed."""
        waiting: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.start(partial(_outcome, function, waiting))
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

    def _has_started(self, call: _Call) -> bool:
        """Start a thread that begins with `call`; return False if the system gives no more threads
        now, but there are others, which will come to it."""
        try:
            self._start_thread(call)
        except RuntimeError:
            if not self._threads:
                raise
            return False
        return True

    def _start_thread(self, call: _Call) -> None:
        calls: _Calls = SimpleQueue()
        calls.put(call)
        name = f"{self._name}_{len(self._threads) + 1}"
        # Daemons: the interpreter would wait for other threads before anything tells them to end.
        thread = threading.Thread(target=self._run, args=(calls,), name=name, daemon=True)
        thread.start()
        if not self._threads and not self._daemon:
            atexit.register(self._finish)
        self._threads.append(thread)

    def _run(self, calls: _Calls) -> None:
        while (call := calls.get()) is not None:
            function, loop, context = call
            then = function()
            # First, so that a caller that makes its next call at once finds this thread.
            self._free(calls)
            try:
                loop.call_soon_threadsafe(then, context=context)
            except RuntimeError:
                pass  # the loop is gone
            del call, function, loop, context, then

    def _free(self, calls: _Calls) -> None:
        """Give the idle thread of queue `calls` a call that waits, or let it end or wait."""
        with self._changing:
            if self._waiting:
                calls.put(self._waiting.popleft())
            elif self._closed:
                calls.put(None)
            else:
                self._idle.append(calls)


def _outcome(function: Callable[[], T], waiting: asyncio.Future[T]) -> Callable[[], object]:
    """Run `function` unless nobody waits any more; return what tells `waiting` of the result."""
    if waiting.cancelled():
        return _tell_nobody
    try:
        return partial(_tell, waiting, function())
    except BaseException as error:
        return partial(_tell_error, waiting, error)


def _tell_nobody() -> None:
    """The caller has been cancelled."""


def _tell(waiting: asyncio.Future[T], result: T) -> None:
    if not waiting.done():
        waiting.set_result(result)


def _tell_error(waiting: asyncio.Future[T], error: BaseException) -> None:
    if not waiting.done():
        waiting.set_exception(error)
