"""The one loop that runs a machine, and the mailbox that feeds it.

Nothing here knows any protocol. A shell adds `perform` (one `match` over its effects) and the tasks
that turn sockets, watches and finished disk work into events.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from waltz.host import Clock, Host
from waltz.machine import Machine

E = TypeVar("E")
F = TypeVar("F")


class Mailbox(Generic[E]):
    """Events that wait for one machine.

    `put` never waits: what a machine itself caused must never deadlock it. Whoever reads a socket
    awaits `room` before it reads on, and that is the whole of back pressure.
    """

    def __init__(self, clock: Clock, capacity: int) -> None:
        self._clock = clock
        self._capacity = capacity
        self._events: list[E] = []
        self._waiter: asyncio.Future[None] | None = None
        self._senders: list[asyncio.Future[None]] = []
        """They wait for room."""

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: E) -> None:
        self._events.append(event)
        if self._waiter is not None:
            self._wake()

    async def room(self) -> None:
        """Return once fewer than `capacity` events wait."""
        while len(self._events) >= self._capacity:
            sender: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._senders.append(sender)
            await sender

    async def drain(self, until: float | None) -> list[E]:
        """Return all events that wait, at least one unless the clock reaches `until` first."""
        if not self._events:
            # Without `asyncio.timeout`, which costs as much as a step of a machine.
            assert self._waiter is None, "two tasks drain one mailbox"
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None
            if until is not None:
                timer = loop.call_later(max(0.0, until - self._clock.now()), self._wake)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        events, self._events = self._events, []
        if self._senders:
            senders, self._senders = self._senders, []
            for sender in senders:
                if not sender.done():
                    sender.set_result(None)
        return events

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


async def run(
    machine: Machine[E, F], mailbox: Mailbox[E], host: Host, perform: Callable[[F], None]
) -> None:
    """Step `machine` once per drain of `mailbox` and once per deadline, until it closes."""
    clock, inspect = host.clock, host.inspect
    while not machine.closed:
        events: Sequence[E] = await mailbox.drain(until=machine.deadline)
        effects = machine.step(events, clock.now())
        if inspect is not None:
            inspect(machine)
        for effect in effects:
            perform(effect)
