"""Asks the coordinator again and again whether it is there, and remembers when it answered last.

A server without a coordinator goes on serving, so nothing else would show that it has lost it: a
wait for a change ends when there is one, and not when nobody is left to tell. The question is a
read of one node, over the same connection as everything else, whatever the coordinator is.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from waltz.errors import CoordinationError, ProtocolError, UnavailableError
from waltz.host import Host
from waltz.server.server_metrics import CoordinatorContact

COORDINATOR_CHECK_SECONDS: Final = 3.0
"""Between two questions of a server whether the coordinator is there."""


logger = logging.getLogger(__name__)


class CoordinatorWatch:
    """See the module; `start` is called once the coordinator has answered."""

    def __init__(self, host: Host, root: str) -> None:
        self._host = host
        self._root = root
        self._answered_at: float | None = None
        self._trouble: str | None = None
        self._task: asyncio.Task[None] | None = None

    def contact(self) -> CoordinatorContact:
        """Return what is known at this moment; wait for nothing."""
        at = self._answered_at
        age = None if at is None else self._host.clock.now() - at
        return CoordinatorContact(age, self._trouble)

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
                self._note_trouble(f"no answer in {COORDINATOR_CHECK_SECONDS:g} s")
            except (UnavailableError, ProtocolError) as error:
                self._note_trouble(str(error))
            else:
                self._note_answer()

    def _note_answer(self) -> None:
        if self._trouble is not None:
            logger.info("coordinator_answers_again")
        self._answered_at, self._trouble = self._host.clock.now(), None

    def _note_trouble(self, trouble: str) -> None:
        if self._trouble is None:
            logger.warning("coordinator_does_not_answer error=%s", trouble)
        self._trouble = trouble
