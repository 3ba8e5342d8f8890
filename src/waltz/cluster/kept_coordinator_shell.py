"""A coordinator for occasional questions, by processes that need no session with it.

Owns when the connection is made and when it is closed: at a question, and after a while without
one. Questions come in bursts, one per partition when a server starts, and a connection costs a
session of the coordinator and a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from waltz.host import Coordinator

T = TypeVar("T")

KEPT_SECONDS: Final = 30.0
"""Time for which a connection is kept after the last question."""


class KeptCoordinator:
    """A coordinator that `connect` connects to when it is asked."""

    def __init__(self, connect: Callable[[], Coordinator]) -> None:
        self._connect = connect
        self._coordinator: Coordinator | None = None
        self._question_count = 0
        self._leaving: asyncio.Task[None] | None = None

    async def ask(self, question: Callable[[Coordinator], Awaitable[T]]) -> T:
        """Return the result of `question`. After a question that failed, the next one gets a new
        connection. Raises what `question` raises."""
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
        """Close the connection at once. Idempotent."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            await coordinator.close()
