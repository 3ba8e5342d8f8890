"""The waits of a client for its own application: calls of `wait_until_applied` while others append,
and while partitions leave and come back.

Owns when calls are made: as something is applied, because nothing but the last transaction of a log
ends the wait for it. Uses only the public names of the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, Final, cast

from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import ClientClosedError, WaltzError
from waltz.sim.applications.application import Application
from waltz.sim.judges.history import EndlessWait, History, WaitTold
from waltz.sim.loop import PROCESS, WORLD, SimulatedLoop

WAITING_SHARE: Final = 0.2
"""Share of clients that wait until all is applied."""

LEAVING_SHARE: Final = 0.5
"""Share of these that let partitions leave and come back."""

CALLERS: Final = 6
"""Calls of a client that are under way at the same time: one of them may come between two turns of
the loop."""

CALL_SECONDS_MAX: Final = 0.003
"""A call begins within this many seconds of when something was applied."""

BUSY_SECONDS_MAX: Final = 0.02
"""The longest time during which the client's loop does something else: answers and results of
workers that come meanwhile are taken together, in any order."""

SENT_SECONDS: Final = 1e-6
"""A request is sent by then: all callbacks that are ready run before time passes."""

STAY_SECONDS_MAX: Final = 3.0
"""A partition that leaves has stayed, or is away, for at most this many seconds."""

PEACE_SECONDS_MAX: Final = 60.0
"""The longest time for which a call may last once nothing is appended and no fault strikes."""


async def is_told(
    calling: asyncio.Future[Any], peace: asyncio.Event, history: History, otherwise: EndlessWait
) -> bool:
    """Return whether the call has ended, at the latest soon after there is peace; else cancel it
    and write down `otherwise`."""
    try:
        await _until_done(calling, peace)
        if not calling.done():
            await asyncio.wait([calling], timeout=PEACE_SECONDS_MAX)
        if calling.done():
            return True
        history.endless.append(otherwise)
        return False
    finally:
        calling.cancel()


async def unless_peace(work: Coroutine[Any, Any, object], peace: asyncio.Event) -> None:
    """Do `work`, until there is peace."""
    working = asyncio.ensure_future(work)
    try:
        await _until_done(working, peace)
    finally:
        working.cancel()


async def _until_done(work: asyncio.Future[Any], peace: asyncio.Event) -> None:
    """Return once `work` is done or there is peace."""
    waiting = asyncio.ensure_future(peace.wait())
    ends: list[asyncio.Future[Any]] = [work, waiting]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


class Waits:
    """The waits of one process of a client."""

    def __init__(
        self,
        client: AsyncWaltzClient,
        application: Application,
        peace: asyncio.Event,
        random: Random,
    ) -> None:
        self._client = client
        self._application = application
        self._peace = peace
        self._random = random

    async def run(self, *, leaves: bool) -> None:
        """Wait again and again until there is peace. `leaves`: partitions leave and come back; the
        client must have chosen all."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._call_again())
            if leaves:
                group.create_task(self._leave_again())

    async def _call_again(self) -> None:
        while not self._peace.is_set():
            self._application.has_applied.clear()
            await unless_peace(self._application.has_applied.wait(), self._peace)
            if self._random.random() < 0.5:
                await asyncio.sleep(self._random.uniform(0.0, CALL_SECONDS_MAX))
            try:
                if not await self._call():
                    return
            except ClientClosedError:
                return
            except WaltzError:
                await asyncio.sleep(CALL_SECONDS_MAX)  # a partition that has left, for example

    async def _call(self) -> bool:
        """Make one call, and write down how it ends; return whether it ended in time.

        Raises as `wait_until_applied`.
        """
        application = self._application
        partition_ids = self._client.active_partitions()
        before = {each: application.passed_through(each) for each in partition_ids}
        waiting = self._client.wait_until_applied(partitions=partition_ids)
        calling = asyncio.ensure_future(waiting)
        self._be_busy()
        history = application.history
        what = f"that it has applied all of partitions {', '.join(map(str, partition_ids))}"
        if not await is_told(calling, self._peace, history, EndlessWait(application.name, what)):
            return False
        after = {each: application.applied_through(each) for each in partition_ids}
        history.waits.append(WaitTold(application.name, calling.result(), before, after))
        return True

    def _be_busy(self) -> None:
        """Let the process's loop do nothing for a while, once the requests of a call are sent."""
        loop, process = cast(SimulatedLoop, asyncio.get_running_loop()), PROCESS.get()

        def begin() -> None:
            loop.pause(process)
            loop.call_later(seconds, loop.resume, process, context=WORLD)

        seconds = self._random.uniform(0.0, BUSY_SECONDS_MAX)
        loop.call_later(SENT_SECONDS, begin, context=WORLD)

    async def _leave_again(self) -> None:
        client, random = self._client, self._random
        everything = client.active_partitions()
        while not self._peace.is_set():
            await asyncio.sleep(random.uniform(0.0, STAY_SECONDS_MAX))
            if random.random() < 0.5:  # calls begin at that moment, too
                await unless_peace(self._application.has_applied.wait(), self._peace)
            leaving = random.choice(everything)
            try:
                await client.set_partitions([each for each in everything if each != leaving])
                await asyncio.sleep(random.uniform(0.0, STAY_SECONDS_MAX))
                await client.set_partitions(everything)
            except ClientClosedError:
                return
