"""A group of tasks that outlives the call that started it.

Owns the end of those tasks: they end together, and the first one that fails is reported once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Tasks:
    """Tasks that end together. `on_failure` is called at most once, with an unexpected exception of
    a task."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure: Callable[[BaseException], None] | None = on_failure
        self._running: dict[asyncio.Task[None], None] = {}

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until it ends or all tasks are stopped."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None  # the loop itself keeps only weak references
        task.add_done_callback(self._finished)
        return task

    async def stop(self) -> None:
        """Cancel all tasks and return once they have ended. Idempotent."""
        self._on_failure = None
        current = asyncio.current_task()
        running = [task for task in self._running if task is not current]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        on_failure, self._on_failure = self._on_failure, None
        if on_failure is not None:
            logger.error("task_failed", exc_info=error)
            on_failure(error)


def ends_caller(error: BaseException) -> bool:
    """Return whether `error` is to end the running task: it is the task's own cancellation, not
    that of another task that it has waited for, or an interruption."""
    if not isinstance(error, asyncio.CancelledError):
        return not isinstance(error, Exception)
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
