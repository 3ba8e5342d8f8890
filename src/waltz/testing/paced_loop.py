"""The simulated loop at the pace of the real clock, together with threads.

Owns when things run: at first on virtual time, so that a cluster is up at once, and from `pace` on
in real time. Everything in memory that is built on the simulated loop runs on it unchanged.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, copy_context
from typing import TypeVar, TypeVarTuple

from waltz.connections.loop_thread import LoopThread
from waltz.sim.loop import PROCESS, DeadlockError, SimulatedHandle, SimulatedLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class PacedLoop(SimulatedLoop):
    """An asyncio loop for one thread, which others may call with `call_soon_threadsafe`."""

    def __init__(self, seed: object) -> None:
        super().__init__(seed, virtual_seconds_max=float("inf"))
        self._ahead_seconds: float | None = None
        """Virtual time less the real clock's; None: time is virtual."""
        self._changed = threading.Condition()
        self._from_threads: list[SimulatedHandle] = []
        self._taken_apart = False

    def close(self) -> None:
        """Cancel everything that is still under way, and close."""
        if self._taken_apart:
            super().close()
        else:
            self._taken_apart = True
            self.shut_down()

    def pace(self) -> None:
        """Let time pass in real time from now on. To be called on the loop."""
        self._ahead_seconds = self._now - time.monotonic()

    def time(self) -> float:
        """Return the loop's time in seconds, virtual at first and then real; any thread may
        call."""
        if self._ahead_seconds is None:
            return self._now
        return time.monotonic() + self._ahead_seconds

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = SimulatedHandle(callback, args, copy_context() if context is None else context)
        with self._changed:
            self._from_threads.append(handle)
            self._changed.notify()
        return handle

    def run_in_executor(  # type: ignore[override]  # threads do exist here
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        return asyncio.BaseEventLoop.run_in_executor(self, executor, func, *args)

    def _run_once(self) -> None:
        if self._ahead_seconds is None:
            if not (self._ready or self._timers):
                self._sleep(None)
            self._take_from_threads()
            super()._run_once()
            return
        self._wait_for_time(self._ahead_seconds)
        ready, self._ready = self._ready, []
        for handle in ready:
            process = handle.context.get(PROCESS)
            if not handle.is_cancelled and not (process is not None and process.dead):
                self._run(handle)

    def _jump(self) -> None:
        if self._ahead_seconds is not None:
            return  # the loop became paced a moment ago
        with suppress(DeadlockError):  # a thread may still have something to do
            super()._jump()

    def _wait_for_time(self, ahead_seconds: float) -> None:
        """Return once a callback is ready, with all timers that are due."""
        timers, ready = self._timers, self._ready
        while True:
            self._take_from_threads()
            self._now = time.monotonic() + ahead_seconds
            while timers and (timers[0][0] <= self._now or timers[0][2].is_cancelled):
                ready.append(heapq.heappop(timers)[2])
            if ready or self._stopping:
                return
            self._sleep(timers[0][0] - self._now if timers else None)

    def _sleep(self, seconds: float | None) -> None:
        with self._changed:
            if not self._from_threads:
                self._changed.wait(seconds)

    def _take_from_threads(self) -> None:
        with self._changed:
            self._ready += self._from_threads
            self._from_threads.clear()


class SharedThread(LoopThread):
    """The thread of a loop that several clients share: none of them ends it."""

    def stop(self) -> None:
        """Do nothing: a client must not stop the loop."""

    async def wind_up(self) -> None:
        """Shut down async generators only: closing the loop cancels everything else."""
        await self._loop.shutdown_asyncgens()

    def end(self) -> None:
        """End the loop and its thread. Idempotent."""
        super().stop()
