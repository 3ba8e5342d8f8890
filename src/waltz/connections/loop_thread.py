"""A loop in a background thread, which the faces for threads run their work on.

Owns that thread, how a call waits for its result, and that what is left open ends with the process.
Imports no client: a tool that only asks questions needs the loop and nothing behind it.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, cast

from waltz.errors import (
    AlreadyClosedError,
    ClientClosedError,
    LocalProtocolError,
    OperationTimeoutError,
)
from waltz.host import Host
from waltz.limits import CLIENT_CLOSE_SECONDS

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

NewHost = Callable[[], tuple[Host, Callable[[], None]]]
"""Makes the doors of a client, on its loop, and what ends them but the coordinator session."""

FORK_REMEDY = "this client was opened before a fork; open one in each process, after the fork"


LOOP_LOOK_SECONDS: Final = 1.0
"""A worker's thread that waits for the loop looks this often whether there still is one."""

CLOSED: Final = "the client is closed"

CLOSED_MEANWHILE: Final = "closed while a call waited"


class LoopThread:
    """An event loop, a new one unless given, that runs in a thread of its own until `stop`."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._process_id = os.getpid()
        self._loop = loop or _new_loop()
        self._begun: dict[Future[Any], None] = {}
        """Work that has not ended; the loop may end before it runs some of it."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout_seconds: float | None = None) -> T:
        """Run `work` on the loop and return its result; an interrupted wait cancels it.

        Raises ClientClosedError; OperationTimeoutError; LocalProtocolError: on the loop's thread.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalProtocolError(
                "a blocking call was made on the event loop that would have to serve it; make it"
                " from another thread"
            )
        future = self.begin(work)
        try:
            return future.result(timeout_seconds)
        except CancelledError:  # by the end of the loop
            raise ClientClosedError(CLOSED_MEANWHILE) from None
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise OperationTimeoutError(
                f"the call has no result after {timeout_seconds} s"
            ) from None
        except BaseException:
            future.cancel()
            raise

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop; cancelling what is returned cancels it.

        Raises ClientClosedError; LocalProtocolError: in a forked process.
        """
        try:
            self.check_process()
            begun = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException as error:
            work.close()
            if isinstance(error, RuntimeError):
                raise AlreadyClosedError from None
            raise
        self._begun[begun] = None
        begun.add_done_callback(lambda ended: self._begun.pop(ended, None))
        if self._loop.is_closed():
            self._end_begun()
        return begun

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is another process than the one that has the thread."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raises LocalProtocolError: this is another process, without the thread."""
        if os.getpid() != self._process_id:
            raise LocalProtocolError(FORK_REMEDY)

    def stop(self) -> None:
        """End the loop and its thread. Idempotent; does nothing in a forked process."""
        if self.is_elsewhere or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            return
        if threading.current_thread() is not self._thread:
            self._thread.join(CLIENT_CLOSE_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self.wind_up())
        finally:
            self._loop.close()
            self._end_begun()

    def _end_begun(self) -> None:
        """End the calls that wait for work which the loop, closed by now, will never run."""
        for begun in list(self._begun):
            with suppress(InvalidStateError):
                begun.set_exception(ClientClosedError(CLOSED_MEANWHILE))

    async def wind_up(self) -> None:
        """End tasks that were cut short, or asyncio would complain. The loop's last work."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CLIENT_CLOSE_SECONDS)
        await self._loop.shutdown_asyncgens()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # it does not exist for every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class WaitingThread(Generic[T]):
    """A thread that waits until the loop's thread gives it a result. Costs less than a coroutine
    that another thread runs, which takes two futures, a task and several locks."""

    __slots__ = ("_done", "_error", "_has_ended", "_result")

    def __init__(self) -> None:
        self._done = threading.Lock()
        self._done.acquire()
        self._has_ended = False
        self._result: T | None = None
        self._error: Exception | None = None

    def give(self, result: T) -> None:
        """End the wait, unless it was ended before. Called by the loop's thread, as is `fail`."""
        if not self._has_ended:
            self._has_ended, self._result = True, result
            self._done.release()

    def fail(self, error: Exception) -> None:
        """End the wait with an exception, unless it was ended before."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
            self._done.release()

    def wait(self, loop: asyncio.AbstractEventLoop, seconds_max: float) -> T:
        """Return the result. Called once.

        Raises what the wait was ended with; ClientClosedError: `loop` was closed; TimeoutError:
        there is no result after `seconds_max`.
        """
        until = time.monotonic() + seconds_max
        while not self._done.acquire(timeout=max(0.0, min(seconds_max, LOOP_LOOK_SECONDS))):
            if loop.is_closed():  # it will never run the work that came in its last turn
                raise ClientClosedError(CLOSED)
            seconds_max = until - time.monotonic()
            if seconds_max <= 0.0:
                raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs the caller; None if no loop runs it, or this process was forked by
    it."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def refuse_on_loop(loop: asyncio.AbstractEventLoop, what: str) -> None:
    """Raises LocalProtocolError: `what` is asked for on `loop`, where nothing may wait."""
    if running_loop() is loop:
        raise LocalProtocolError(
            f"{what} asked for on the event loop, where nothing may wait; set prefetch or return it"
            " from choose_prefetch"
        )


def wait_on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do `work` on the client's loop and wait for it in a worker's thread.

    Raises ClientClosedError.
    """
    coroutine = work()
    try:
        waiting = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise ClientClosedError(CLOSED) from None
    while not wait([waiting], LOOP_LOOK_SECONDS).done:
        if loop.is_closed():  # it will never run the work that came in its last turn
            raise ClientClosedError(CLOSED)
    try:
        return waiting.result()
    except CancelledError:  # by the end of the loop
        raise ClientClosedError(CLOSED) from None


class Closable(ABC):
    """A context manager that is closed when it is left."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


OPEN: dict[Closable, None] = {}
"""Clients and readers that were not closed; the thread of each keeps it alive anyway."""


class FaceForThreads(Closable, Generic[A]):
    """The base of faces for threads: the `A` behind the face works on the loop of `thread`."""

    def __init__(self, thread: LoopThread, begin: Coroutine[Any, Any, A]) -> None:
        """`begin` makes the A and starts it. Raises what that raises; the thread then ends."""
        self._thread = thread
        try:
            self._there = thread.call(begin)
        except BaseException:
            thread.stop()
            raise
        OPEN[self] = None

    def __init_subclass__(cls) -> None:
        """Let `help` and tracebacks name verbs from elsewhere as verbs of this class."""
        for name, verb in vars(cls).items():
            if hasattr(verb, "__wrapped__"):
                verb.__qualname__, verb.__module__ = f"{cls.__qualname__}.{name}", cls.__module__

    def _close_in_time(self, work: Coroutine[Any, Any, None], seconds_max: float) -> None:
        """Close the A with `work`, and end the thread; does nothing in a forked process."""
        OPEN.pop(self, None)
        if self._thread.is_elsewhere:
            work.close()
            return
        try:
            self._thread.call(work, seconds_max + CLIENT_CLOSE_SECONDS)
        except (ClientClosedError, OperationTimeoutError):
            pass  # closed before, or as far as could be waited for
        finally:
            self._thread.stop()


def blocking(
    verb: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[FaceForThreads[A], P], T]:
    """Return the verb for threads that runs `verb` on the loop and waits for its result."""

    @wraps(verb)
    def call(self: FaceForThreads[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(verb(self._there, *args, **kwargs))

    return call


def iterating(
    verb: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[FaceForThreads[A], P], Generator[T, None, None]]:
    """Return the verb for threads that yields what `verb` yields on the loop."""

    @wraps(verb)
    def iterate(
        self: FaceForThreads[A], /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        return _iterate(self._thread, verb(self._there, *args, **kwargs))

    signature = inspect.signature(verb)
    returns = str(signature.return_annotation).replace("AsyncGenerator", "Generator")
    returns = returns.removesuffix("]") + ", None]"
    iterate.__signature__ = signature.replace(return_annotation=returns)  # type: ignore[attr-defined]
    return iterate


def _iterate(thread: LoopThread, there: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    async def advance() -> T | None:
        return await anext(there, None)

    try:
        while (found := thread.call(advance())) is not None:
            yield found
    finally:
        try:
            thread.call(there.aclose())
        except (ClientClosedError, LocalProtocolError):
            pass  # closed with its reader, or not this process's to close


@atexit.register
def _close_all() -> None:
    """Close what is still open when the interpreter exits, in order and in bounded time."""
    for each in list(OPEN):
        each.close()
