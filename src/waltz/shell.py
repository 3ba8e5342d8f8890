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
        self._arrived = asyncio.Event()
        self._drained = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: E) -> None:
        self._events.append(event)
        self._arrived.set()

    async def room(self) -> None:
        """Return once fewer than `capacity` events wait."""
        while len(self._events) >= self._capacity:
            self._drained.clear()
            await self._drained.wait()

    async def drain(self, until: float | None) -> list[E]:
        """Return all events that wait, at least one unless the clock reaches `until` first."""
        if not self._events:
            self._arrived.clear()
            try:
                timeout = None if until is None else max(0.0, until - self._clock.now())
                async with asyncio.timeout(timeout):
                    await self._arrived.wait()
            except TimeoutError:
                pass
        events, self._events = self._events, []
        self._drained.set()
        return events


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
