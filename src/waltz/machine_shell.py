"""The one loop that runs a machine, and the mailbox that feeds it.

Nothing here knows any protocol. A shell adds `perform` (one `match` over its effects) and the tasks
that turn sockets, watches and finished disk work into events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Final, Generic, TypeVar

from waltz.host import Clock, Host
from waltz.machine import Machine

TURN_STEPS_MAX: Final = 64
"""Steps of a machine for what its own steps bring about, before others of the loop have a turn."""

STEPS_AT_ONCE_MAX: Final = 4
"""Steps of a machine per turn of the loop for events that do not wait for their turn: what comes
beyond waits, and becomes one step."""


E = TypeVar("E")
F = TypeVar("F")


class Mailbox(Generic[E]):
    """Events that wait for one machine.

    `put` never waits: what a machine itself caused must never deadlock it. Whoever reads a socket
    awaits `room` before it reads on, and that is the whole of back pressure.
    """

    def __init__(self, clock: Clock, capacity: int) -> None:
        self.wake: Callable[[], object] | None = None
        """Called with the first event that comes while none waits; None: nobody is to be told."""
        self._clock = clock
        self._capacity = capacity
        self._events: list[E] = []
        self._senders: list[asyncio.Future[None]] = []
        """They wait for room."""

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: E) -> None:
        if not self._events and self.wake is not None:
            self.wake()
        self._events.append(event)

    async def room(self) -> None:
        """Return once fewer than `capacity` events wait."""
        while len(self._events) >= self._capacity:
            sender: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._senders.append(sender)
            await sender

    def take(self) -> list[E]:
        """Return all events that wait."""
        events, self._events = self._events, []
        if self._senders:
            senders, self._senders = self._senders, []
            for sender in senders:
                if not sender.done():
                    sender.set_result(None)
        return events

    async def drain(self, until: float | None) -> list[E]:
        """Return all events that wait, at least one unless the clock reaches `until` first."""
        if not self._events:
            # Without `asyncio.timeout`, which costs as much as a step of a machine.
            assert self.wake is None, "two tasks drain one mailbox"
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self.wake = partial(_tell, waiter)
            timer = None
            if until is not None:
                timer = loop.call_later(max(0.0, until - self._clock.now()), _tell, waiter)
            try:
                await waiter
            finally:
                self.wake = None
                if timer is not None:
                    timer.cancel()
        return self.take()


def _tell(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Lane:
    """Large pieces of work, one per turn of a loop: in between the loop looks at all sockets, and
    what is small does not wait until all that is large has been done."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def put(self, piece: Callable[[], object]) -> None:
        """Have the running loop call `piece` after those that were put before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(piece)

    async def turn(self) -> None:
        """Return when it is the caller's turn."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.put(partial(_tell, waiter))
        await waiter

    def _next(self) -> None:
        piece = self._waiting[0]
        try:
            piece()
        finally:
            del self._waiting[0]
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)


class Turns(Generic[E, F]):
    """The steps of one machine, each a callback of the loop: a task that waited for events would be
    woken, and would make itself a future to wait for, for each of them."""

    def __init__(
        self,
        machine: Machine[E, F],
        mailbox: Mailbox[E],
        host: Host,
        perform: Callable[[F], None],
        *,
        lane: Callable[[], Lane | None] = lambda: None,
    ) -> None:
        """`lane` returns where a turn that events bring about waits; None: with all others."""
        self._machine = machine
        self._lane = lane
        self._mailbox = mailbox
        self._clock = host.clock
        self._inspect = host.inspect
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not that of whoever happens to bring an event
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for: float | None = None
        """The deadline of which `_timer` tells."""
        self._is_stepping = False
        self._steps_at_once = 0
        """Taken by `take_in_order` in this turn of the loop."""
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Return once the machine has closed. Raises what a step, or its effects, raise."""
        assert self._mailbox.wake is None, "two machines drain one mailbox"
        self._mailbox.wake = self._wake
        try:
            if self._machine.closed:
                return
            if len(self._mailbox):
                self._turn(is_due=False)
            else:
                self._arm(self._machine.deadline)
            await self._over
        finally:
            self._mailbox.wake = None
            self._arm(None)
            self._over.cancel()

    def _wake(self) -> None:
        if (lane := self._lane()) is not None:
            lane.put(partial(self._context.run, self._turn, False))
        else:
            self._loop.call_soon(self._turn, False, context=self._context)

    def _turn(self, is_due: bool) -> None:
        """Take what waits, nothing only if the deadline has come, and what that brings about."""
        if self._over.done():
            return
        machine, mailbox = self._machine, self._mailbox
        if is_due:
            self._timer = self._timer_for = None
        elif not len(mailbox):
            return
        mailbox.wake = None  # for a further turn costs a look at all sockets
        for _ in range(TURN_STEPS_MAX):
            if not self._step(mailbox.take()):
                return
            if not len(mailbox):
                break
        mailbox.wake = self._wake
        if len(mailbox):
            self._wake()
        if (deadline := machine.deadline) != self._timer_for:
            self._arm(deadline)

    def _step(self, events: list[E]) -> bool:
        """Step the machine once; return whether it may be stepped again."""
        machine, perform = self._machine, self._perform
        self._is_stepping = True
        try:
            effects = machine.step(events, self._clock.now())
            if self._inspect is not None:
                self._inspect(machine)
            for effect in effects:
                perform(effect)
        except BaseException as error:
            self._over.set_exception(error)
            return False
        finally:
            self._is_stepping = False
        if machine.closed:
            self._over.set_result(None)
            return False
        return True

    def take_now(self, event: E) -> None:
        """Step the machine with `event` alone, before what waits and before this returns: for what
        must not wait until others are worked off, and may overtake them. During a step, and before
        `run`, it waits as any other."""
        if self._mailbox.wake is None or self._is_stepping or self._over.done():
            self._mailbox.put(event)
        elif self._step([event]) and (deadline := self._machine.deadline) != self._timer_for:
            self._arm(deadline)

    def take_in_order(self, event: E) -> None:
        """As `take_now`, unless something waits already, or `STEPS_AT_ONCE_MAX` were taken so in
        this turn of the loop: nothing is overtaken, and many small events still become one step."""
        if len(self._mailbox) or self._steps_at_once >= STEPS_AT_ONCE_MAX:
            self._mailbox.put(event)
            return
        if not self._steps_at_once:
            self._loop.call_soon(self._end_steps_at_once)
        self._steps_at_once += 1
        self.take_now(event)

    def _end_steps_at_once(self) -> None:
        self._steps_at_once = 0

    def _arm(self, deadline: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_for = deadline
        if deadline is not None:
            seconds = max(0.0, deadline - self._clock.now())
            self._timer = self._loop.call_later(seconds, self._turn, True, context=self._context)


async def run(
    machine: Machine[E, F], mailbox: Mailbox[E], host: Host, perform: Callable[[F], None]
) -> None:
    """Step `machine` with all that waits in `mailbox`, and at each deadline, until it closes."""
    await Turns(machine, mailbox, host, perform).run()
