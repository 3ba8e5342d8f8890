"""Code that blocks its thread, run on a simulated loop: one thread at a time, and never beside the
loop.

A thread that wants something of the loop hands over to it and goes on when it is done; the loop
stands still while the thread runs. So what is made for threads takes no time, happens in an order
that the seed alone decides, and needs no other code than in production.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from waltz.sim.loop import ProcessKilled

T = TypeVar("T")

_HERE = threading.local()


class AbandonedError(BaseException):
    """Nobody will ever go on with what this thread does: its process is dead."""


@dataclass(eq=False)
class Baton:
    """A function in a thread of its own."""

    function: Callable[[], Any]
    _to_loop: SimpleQueue[tuple[str, Any]] = field(default_factory=SimpleQueue)
    _to_thread: SimpleQueue[tuple[bool, Any]] = field(default_factory=SimpleQueue)
    _is_abandoned: bool = False
    _is_done: bool = False

    async def run(self) -> Any:
        """Return what the function returns, or raise what it raises."""
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._work,), daemon=True).start()
        while True:
            kind, value = self._to_loop.get()  # the thread runs
            if kind != "wants":
                self._is_done = True
                if kind == "failed":
                    raise value
                return value
            try:
                answer = True, await value()
            except Exception as error:
                answer = False, error
            except BaseException:
                self.abandon()
                raise
            if self._is_abandoned:
                raise ProcessKilled("a thread that was abandoned")
            self._to_thread.put(answer)

    def abandon(self) -> None:
        """Let the thread end, which waits for the loop."""
        if self._is_abandoned or self._is_done:
            return
        self._is_abandoned = True
        self._to_thread.put((False, AbandonedError()))
        kind, _ = self._to_loop.get()
        assert kind != "wants", "a thread that was abandoned ends"

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._is_abandoned:
            raise AbandonedError
        self._to_loop.put(("wants", work))
        is_answer, answer = self._to_thread.get()
        if not is_answer:
            raise answer
        return answer  # type: ignore[no-any-return]

    def _work(self) -> None:
        _HERE.baton = self
        try:
            result = self.function()
        except BaseException as error:
            self._to_loop.put(("failed", error))
        else:
            self._to_loop.put(("done", result))


def on_the_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Have the loop do `work`, from a thread with a baton, and return what comes of it."""
    baton: Baton = _HERE.baton
    return baton.call(work)
