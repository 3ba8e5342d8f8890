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
"""Steps that a machine takes in a row for events that its own steps cause, before the other
callbacks of the loop have a turn."""

STEPS_AT_ONCE_MAX: Final = 4
"""Events per turn of the loop that `take_in_order` gives a step of their own; further events wait
and share one step."""


E = TypeVar("E")
F = TypeVar("F")


class Mailbox(Generic[E]):
    """Events that wait for one machine.

    `put` never waits, so that events which a machine itself causes cannot deadlock it. A task that
    reads a socket awaits `room` before it reads on: that is all the back pressure there is.
    """

    def __init__(self, clock: Clock, capacity: int) -> None:
        self.wake: Callable[[], object] | None = None
        """Called when an event comes while none waits; None: nobody is to be told."""
        self._clock = clock
        self._capacity = capacity
        self.events: list[E] = []
        """The events that wait, in order of arrival; only `put` and `take` change them."""
        self._senders: list[asyncio.Future[None]] = []
        """Resolved once there is room."""
        self._is_closed = False

    def put(self, event: E) -> None:
        if not self.events and self.wake is not None:
            self.wake()
        self.events.append(event)

    async def room(self) -> None:
        """Return once fewer than `capacity` events wait, or no machine takes them any more."""
        while len(self.events) >= self._capacity and not self._is_closed:
            sender: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._senders.append(sender)
            await sender

    def take(self) -> list[E]:
        """Return all events that wait."""
        events, self.events = self.events, []
        if self._senders:
            self._wake_senders()
        return events

    def close(self) -> None:
        """Let the tasks that wait for room continue: the machine takes no more events."""
        self._is_closed = True
        self._wake_senders()

    def _wake_senders(self) -> None:
        senders, self._senders = self._senders, []
        for sender in senders:
            if not sender.done():
                sender.set_result(None)

    async def drain(self, until: float | None) -> list[E]:
        """Return all events that wait, at least one unless the clock reaches `until` first."""
        if not self.events:
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
    """A queue of large pieces of work, one of which is done per turn of the loop: between two
    pieces the loop serves all sockets, so small work does not wait for all of the large work."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether turns queue in the lane now; the owner of the lane says so."""
        self._waiting: deque[Callable[[], object]] = deque()

    def put(self, piece: Callable[[], object]) -> None:
        """Have the running loop call `piece` after the pieces that were put before it."""
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
    """Runs one machine; each step is a callback of the loop. A task that waits for events would
    cost a future and a wake-up per event."""

    def __init__(
        self,
        machine: Machine[E, F],
        mailbox: Mailbox[E],
        host: Host,
        perform: Callable[[F], None],
        *,
        lane: Lane | None = None,
        stepped: Callable[[], None] | None = None,
    ) -> None:
        """A turn that events cause queues in `lane` while the lane is used. `stepped` is called
        after each step, once its effects were performed."""
        self._machine = machine
        self._stepped = stepped
        self._lane = lane
        self._mailbox = mailbox
        self._clock = host.clock
        self._inspect = host.inspect
        self._perform = perform
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()  # not the context of the task that brings an event
        self._timer: asyncio.TimerHandle | None = None
        self._timer_for: float | None = None
        """The deadline that `_timer` is set for."""
        self._is_stepping = False
        self._steps_at_once = 0
        """Steps that `take_in_order` has taken in this turn of the loop."""
        self._over: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Return once the machine has closed. Raises what a step or an effect raises."""
        assert self._mailbox.wake is None, "two machines drain one mailbox"
        self._mailbox.wake = self._wake
        try:
            if self._machine.closed:
                return
            if self._mailbox.events:
                self._turn(is_due=False)
            else:
                self._arm(self._machine.deadline)
            await self._over
        finally:
            self._mailbox.wake = None
            self._mailbox.close()
            self._arm(None)
            self._over.cancel()

    def _wake(self) -> None:
        if self._lane is not None and self._lane.is_used:
            self._lane.put(partial(self._context.run, self._turn, False))
        else:
            self._loop.call_soon(self._turn, False, context=self._context)

    def _turn(self, is_due: bool) -> None:
        """Step the machine with the events that wait, then with those that these steps cause.
        Without an event, step only if the deadline has come."""
        if self._over.done():
            return
        machine, mailbox = self._machine, self._mailbox
        if is_due:
            self._timer = self._timer_for = None
        elif not mailbox.events:
            return
        mailbox.wake = None  # a further turn would cost a poll of all sockets
        for _ in range(TURN_STEPS_MAX):
            if not self._step(mailbox.take()):
                return
            if not mailbox.events:
                break
        mailbox.wake = self._wake
        if mailbox.events:
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
            if self._stepped is not None:
                self._stepped()
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
        """Step the machine with `event` alone before this returns, ahead of the events that wait:
        for an event that must not wait and may overtake others. During a step, and before `run`,
        the event waits like any other."""
        if self._mailbox.wake is None or self._is_stepping or self._over.done():
            self._mailbox.put(event)
        elif self._step([event]) and (deadline := self._machine.deadline) != self._timer_for:
            self._arm(deadline)

    def take_in_order(self, event: E) -> None:
        """Step the machine with `event` at once, unless events wait already or this turn of the
        loop has taken `STEPS_AT_ONCE_MAX` steps in this way: `event` overtakes nothing, and many
        small events still share one step."""
        if self._mailbox.events or self._steps_at_once >= STEPS_AT_ONCE_MAX:
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
