"""Asks the coordinator again and again whether it is there, and remembers when it answered last.

A server without a coordinator goes on serving, so nothing else would show that it has lost it: a
wait for a change ends when there is one, and not when nobody is left to tell. The question is a
read of one node, over the same connection as everything else, whatever the coordinator is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from waltz.errors import CoordinationError, ProtocolError, UnavailableError
from waltz.host import ANY_VERSION, Coordinator, Host, Node
from waltz.server.server_metrics import CoordinatorContact

COORDINATOR_CHECK_SECONDS: Final = 3.0
"""Between two questions of a server whether the coordinator is there."""


logger = logging.getLogger(__name__)

T = TypeVar("T")


class CountedCoordinator:
    """A coordinator, and the number of calls of it that ended without an answer."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.lost = 0
        self._coordinator = coordinator

    async def _answered(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except UnavailableError:
            self.lost += 1
            raise

    async def read(self, path: str) -> Node:
        return await self._answered(self._coordinator.read(path))

    async def children(self, path: str) -> Sequence[str]:
        return await self._answered(self._coordinator.children(path))

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        call = self._coordinator.create(path, data, ephemeral=ephemeral, sequential=sequential)
        return await self._answered(call)

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        return await self._answered(self._coordinator.write(path, data, version=version))

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        await self._answered(self._coordinator.delete(path, version=version))

    async def changed(self, path: str, seen: Node | None) -> None:
        await self._answered(self._coordinator.changed(path, seen))

    async def close(self) -> None:
        await self._coordinator.close()


class CoordinatorWatch:
    """See the module; `start` is called once the coordinator has answered."""

    def __init__(self, host: Host, root: str, calls: CountedCoordinator) -> None:
        self._host = host
        self._root = root
        self._calls = calls
        self._changed_at: float | None = None
        """The time at which answers began, or ceased, to come."""
        self._answered_at: float | None = None
        self._trouble: str | None = None
        self._task: asyncio.Task[None] | None = None

    def contact(self) -> CoordinatorContact:
        """Return what is known at this moment; wait for nothing."""
        now, lost = self._host.clock.now(), self._calls.lost
        if self._answered_at is None or self._changed_at is None:
            return CoordinatorContact(None, self._trouble, None, lost)
        return CoordinatorContact(
            now - self._answered_at, self._trouble, now - self._changed_at, lost
        )

    def start(self) -> None:
        self._note_answer()
        self._task = asyncio.get_running_loop().create_task(self._ask_for_ever())

    async def stop(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _ask_for_ever(self) -> None:
        while True:
            await asyncio.sleep(COORDINATOR_CHECK_SECONDS)
            try:
                async with asyncio.timeout(COORDINATOR_CHECK_SECONDS):
                    await self._host.coordinator.read(self._root)
            except CoordinationError:
                self._note_answer()  # that the cluster is gone is an answer as well
            except TimeoutError:
                self._calls.lost += 1
                self._note_trouble(f"no answer in {COORDINATOR_CHECK_SECONDS:g} s")
            except (UnavailableError, ProtocolError) as error:
                self._note_trouble(str(error))
            else:
                self._note_answer()

    def _note_answer(self) -> None:
        if self._trouble is not None:
            logger.info("coordinator_answers_again")
        now = self._host.clock.now()
        if self._trouble is not None or self._answered_at is None:
            self._changed_at = now
        self._answered_at, self._trouble = now, None

    def _note_trouble(self, trouble: str) -> None:
        if self._trouble is None:
            self._changed_at = self._host.clock.now()
            logger.warning("coordinator_does_not_answer error=%s", trouble)
        self._trouble = trouble
