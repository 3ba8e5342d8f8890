"""An asyncio loop on virtual time, and the doors that only need it: clock, random, workers.

Owns when and in which order callbacks run. The clock stands still while any callback is ready and
then jumps to the next timer; ready callbacks run in an order drawn from the seed. Nothing here
reads a real clock, starts a thread or opens a descriptor, so one seed is one run.

Everything runs in the name of a `Process`, found through the context that asyncio hands on from
task to task. A killed process never runs again, not even to clean up: that is a crash. A paused
process runs nothing until it is resumed, and then at once everything that fell due meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any, Final, NoReturn, TypeVar, TypeVarTuple
from uuid import UUID

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ROUNDS_PER_INSTANT_MAX: Final = 500_000
"""Callbacks run without time passing before the run counts as caught in a loop."""

CLOSE_ATTEMPTS_MAX: Final = 10
"""A coroutine may await again while it is being closed."""

WORKER_SECONDS_MAX: Final = 0.002
"""Delay before, and once more after, a function that runs off the loop."""

WALL_CLOCK_START_MILLISECONDS: Final = 1_700_000_000_000


class SimulationError(Exception):
    """The run itself cannot continue: deadlock, endless loop, or out of virtual time."""


class DeadlockError(SimulationError):
    """Tasks wait, but nothing is ready and no timer is set: nothing will ever wake them."""


class VirtualTimeError(SimulationError):
    """The run took more virtual time than it was given."""


class ProcessKilled(BaseException):
    """Raised through the code of a process that dies while it runs; no code may catch it."""


class Process:
    """One incarnation of a simulated process; a restart is a new one of the same name."""

    __slots__ = ("dead", "name", "parked", "pauses", "rate", "stop_wanted")

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.pauses = 0
        """Pauses that were not resumed yet."""
        self.parked: list[SimulatedHandle] = []
        """Callbacks that have fallen due while the process was paused."""
        self.rate = 1.0
        """Seconds of its own clocks and timers per second of the simulation."""
        self.stop_wanted = asyncio.Event()
        """Set when it is asked to end in an orderly way."""

    def __repr__(self) -> str:
        return f"Process({self.name!r}{', dead' if self.dead else ''})"


PROCESS: ContextVar[Process] = ContextVar("PROCESS")
"""The process of the current callback; unset for the world outside all processes."""

WORLD: Final = Context()
"""The context of everything outside all processes: bytes under way, faults, checks."""


class SimulatedHandle(asyncio.TimerHandle):
    """A handle for callbacks and timers with nothing in it that this loop does not read: there is
    one per callback."""

    __slots__ = ("args", "callback", "context", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context
    ) -> None:
        self.callback: Callable[..., object] | None = callback
        self.args = args
        self.context = context
        self.is_cancelled = False

    def __repr__(self) -> str:
        return f"{self.callback!r}"

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> NoReturn:
        """Refuse: asyncio asks a handle for its time to sort its own queue only, and the simulated
        loop, which takes the place of that queue, keeps the times itself."""
        raise AssertionError("the loop alone knows when")


class _Future(asyncio.Future[Any]):
    """A future with a stable hash. Asyncio keeps futures and tasks in sets and iterates over these,
    to cancel a group for example: the order must not depend on memory addresses."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """The same for a task."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.BaseEventLoop):
    """Asyncio with virtual time and a run order drawn from `seed`."""

    _ready: list[SimulatedHandle]
    _stopping: bool

    def __init__(self, seed: object, *, virtual_seconds_max: float = 100_000.0) -> None:
        super().__init__()
        self.set_debug(False)
        self._ready = []
        self._timers: list[tuple[float, int, SimulatedHandle]] = []
        self._timers_count = 0
        self._now = 0.0
        self._virtual_seconds_max = virtual_seconds_max
        self._draw = Random(f"{seed}/order").random
        self._pending: dict[int, tuple[Any, Process | None]] = {}
        """Pending tasks by number, with their process; typed Any because asyncio's own types are
        private."""
        self._failed: list[tuple[float, Process | None, asyncio.Task[Any]]] = []
        self._reported: list[str] = []
        self.callbacks_count = 0
        self._futures_count = 0
        self.set_exception_handler(self._report)

    get_debug = staticmethod(bool)
    """False. Asyncio asks each time that it makes a future, so no Python runs for the answer."""

    def time(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = SimulatedHandle(callback, args, copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if context is None:
            context = copy_context()
        timer = SimulatedHandle(callback, args, context)
        process = context.get(PROCESS)
        if process is not None and process.rate != 1.0:
            when = self._now + (when - self._now) / process.rate
        self._timers_count += 1
        heapq.heappush(self._timers, (when, self._timers_count, timer))
        return timer

    def pause(self, process: Process) -> None:
        """Run nothing of `process` until `resume` was called as often."""
        process.pauses += 1

    def resume(self, process: Process) -> None:
        process.pauses -= 1
        if not process.pauses:
            parked, process.parked = process.parked, []
            self._ready += parked

    def spawn(self, process: Process, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work`, and all tasks it starts, in the name of `process`."""
        context = Context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._futures_count = future.number = self._futures_count + 1
        return future

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = _Task.__new__(_Task)
        self._futures_count = task.number = self._futures_count + 1
        # Asyncio hashes the task as it is made, so the number comes first.
        asyncio.Task.__init__(
            task, coro, loop=self, name=None if name is None else str(name), context=context
        )
        process = PROCESS.get(None) if context is None else context.get(PROCESS)
        self._pending[task.number] = task, process
        task.add_done_callback(self._finished, context=WORLD)
        return task

    def failures(self) -> list[str]:
        """Return the unhandled errors of tasks and callbacks of living processes."""
        unseen = []
        for when, process, task in self._failed:
            # `_log_traceback` is asyncio's own criterion; it is cleared once the exception was
            # retrieved.
            if task._log_traceback and not (process and process.dead):  # noqa: SLF001
                error = task.exception()
                assert error is not None
                name = process.name if process else "the simulation"
                text = "".join(traceback.format_exception(error))
                unseen.append(f"at {when:.6f} a task of {name} failed unseen\n{text}")
        self._failed.clear()
        reported, self._reported = self._reported, []
        return unseen + reported

    def shut_down(self) -> None:
        """Take all tasks apart, newest first, without running the loop, and close it."""
        asyncio._set_running_loop(self)  # noqa: SLF001 - what is taken apart may ask for it
        try:
            while self._pending:
                _, (task, _) = self._pending.popitem()
                task._log_destroy_pending = False  # noqa: SLF001
                work = task.get_coro()
                for _ in range(CLOSE_ATTEMPTS_MAX):
                    with suppress(Exception, BaseExceptionGroup, ProcessKilled):
                        work.close()
                    if work.cr_frame is None:
                        break
        finally:
            asyncio._set_running_loop(None)  # noqa: SLF001
        for _, _, task in self._failed:
            task.exception()
        self._failed.clear()
        self._timers.clear()
        self.close()

    def run_in_executor(self, executor: object, func: object, *args: object) -> NoReturn:
        raise SimulationError("threads do not exist here; use host.workers.run_blocking")

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """There is one thread only."""
        return self.call_soon(callback, *args, context=context)

    def _run_once(self) -> None:
        """Run ready callbacks, in drawn order; if none is ready, jump to the next timer.

        The one private method of asyncio that is replaced. `tests/sim/test_loop.py` pins a trace.
        """
        ready, draw, run = self._ready, self._draw, self._run
        callbacks_max = self.callbacks_count + ROUNDS_PER_INSTANT_MAX
        while ready:
            position = int(draw() * len(ready))
            handle = ready[position]
            last = ready.pop()
            if last is not handle:
                ready[position] = last
            process = handle.context.get(PROCESS)
            if handle.is_cancelled:
                continue
            if process is not None:
                if process.dead:
                    continue
                if process.pauses:
                    process.parked.append(handle)
                    continue
            self.callbacks_count += 1
            run(handle)
            if self._stopping:
                return
            if self.callbacks_count == callbacks_max:
                raise SimulationError(f"caught in a loop at {self._now:.6f}; next is {handle!r}")
        self._jump()

    def _run(self, handle: SimulatedHandle) -> None:
        args, callback = handle.args, handle.callback  # `cancel` forgets them the other way round
        if callback is None:  # another thread has cancelled it a moment ago, on a paced loop
            return
        try:
            handle.context.run(callback, *args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self.call_exception_handler(
                {"message": f"exception in callback {handle!r}", "exception": error}
            )

    def _jump(self) -> None:
        """Advance to the next timer and make ready all that are due then."""
        timers, ready, now = self._timers, self._ready, self._now
        while timers and not (ready and timers[0][0] > now):
            when, _, timer = heapq.heappop(timers)
            if not timer.is_cancelled:
                now = max(now, when)
                ready.append(timer)
        self._now = now
        if now > self._virtual_seconds_max:
            raise VirtualTimeError(
                f"not done after {self._virtual_seconds_max} virtual seconds: {self._waiting()}"
            )
        if not ready:
            raise DeadlockError(
                f"at {now:.6f} nothing is ready and no timer is set: {self._waiting()}"
            )

    def _waiting(self) -> str:
        """Return the waiting tasks of living processes, for people, counted by what they run."""
        counts = Counter(
            f"{process.name if process else 'simulation'} {task.get_coro().__qualname__}"
            for task, process in self._pending.values()
            if not (process and process.dead)
        )
        return ", ".join(f"{name} ({count})" for name, count in counts.items())

    def _finished(self, task: _Task) -> None:
        _, process = self._pending.pop(task.number, (None, None))
        if task._log_traceback:  # noqa: SLF001
            self._failed.append((self._now, process, task))

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Asyncio's way of saying that a callback raised."""
        error = context.get("exception")
        if isinstance(error, ProcessKilled):
            return
        text = "".join(traceback.format_exception(error)) if error else ""
        self._reported.append(f"at {self._now:.6f} {context['message']}\n{text}")


class SimulatedClock:
    """Virtual time as one process sees it: no two agree on its origin, nor, if their rates differ,
    on how long anything takes."""

    def __init__(self, loop: SimulatedLoop, random: Random, process: Process | None = None) -> None:
        self._time = loop.time
        self._process = process
        self._rate = 1.0 if process is None else process.rate
        self._since = loop.time()
        self._seconds = random.uniform(0.0, 1_000_000.0)
        self._wall_start = WALL_CLOCK_START_MILLISECONDS + random.randrange(-60_000, 60_000)

    def now(self) -> float:
        return self._seconds + (self._time() - self._since) * self._rate

    def wall_milliseconds(self) -> int:
        return self._wall_start + int(self._time() * 1000)

    def run_at(self, rate: float) -> None:
        """Let the process's clocks and timers run `rate` times as fast from now on. Timers already
        set stay as they are."""
        self._seconds, self._since = self.now(), self._time()
        self._rate = rate
        if self._process is not None:
            self._process.rate = rate

    def set_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward, or back, by `milliseconds`."""
        self._wall_start += milliseconds


class SimulatedRandom:
    """The random door of one process."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


class SimulatedWorkers:
    """Runs functions in one step, at a drawn time between the request and the answer.

    As with real threads, a function whose caller was cancelled may run nevertheless.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        random: Random,
        hindrance_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`hindrance_seconds` returns the additional time of the next function, for a slow disk."""
        self._loop = loop
        self._random = random
        self._hindrance_seconds = hindrance_seconds

    def start(self, function: Callable[[], Callable[[], object]]) -> None:
        delay_seconds = self._draw_seconds() + self._hindrance_seconds()
        self._loop.call_later(delay_seconds, self._work, function)

    def _work(self, function: Callable[[], Callable[[], object]]) -> None:
        with suppress(ProcessKilled):
            self._loop.call_later(self._draw_seconds(), function())

    async def run_blocking(self, function: Callable[[], T]) -> T:
        waiting: asyncio.Future[T] = self._loop.create_future()
        self.start(partial(self._outcome, function, waiting))
        return await waiting

    def _outcome(
        self, function: Callable[[], T], waiting: asyncio.Future[T]
    ) -> Callable[[], object]:
        if waiting.cancelled() and self._random.random() < 0.5:
            return partial(_settle, waiting)
        try:
            return partial(_settle, waiting, result=function())
        except Exception as error:  # belongs to the caller, as from a thread
            return partial(_settle, waiting, error=error)

    def _draw_seconds(self) -> float:
        return self._random.random() * WORKER_SECONDS_MAX


def _settle(
    waiting: asyncio.Future[Any], *, result: object = None, error: Exception | None = None
) -> None:
    if waiting.done():
        return
    if error is None:
        waiting.set_result(result)
    else:
        waiting.set_exception(error)
