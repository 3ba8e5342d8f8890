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
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

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
                begun.set_exception(ClientClosedError("closed while a call waited"))

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
