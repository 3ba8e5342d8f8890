"""A coordinator that is asked now and then, by who needs no session with it.

Owns when it is connected to and when it is left: at a question, and once nobody has asked for a
while. Questions come in bursts, one per partition when a server starts, and a connection costs a
session of the coordinator and a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from waltz.host import Coordinator

T = TypeVar("T")

KEPT_SECONDS: Final = 30.0
"""How long a connection is kept after the last question."""


class KeptCoordinator:
    """Connected to by `connect`."""

    def __init__(self, connect: Callable[[], Coordinator]) -> None:
        self._connect = connect
        self._coordinator: Coordinator | None = None
        self._question_count = 0
        self._leaving: asyncio.Task[None] | None = None

    async def ask(self, question: Callable[[Coordinator], Awaitable[T]]) -> T:
        """Return what `question` returns. After one that has failed, the next one has a connection
        of its own. Raises what `question` raises."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._coordinator is None:
            self._coordinator = self._connect()
        coordinator = self._coordinator
        self._question_count += 1
        try:
            return await question(coordinator)
        except BaseException:
            if self._coordinator is coordinator:
                self._coordinator = None
                await coordinator.close()
            raise
        finally:
            self._question_count -= 1
            if not self._question_count and self._coordinator is not None:
                self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        await asyncio.sleep(KEPT_SECONDS)
        self._leaving = None
        await self.close()

    async def close(self) -> None:
        """Leave at once. Idempotent."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await coordinator.close()
