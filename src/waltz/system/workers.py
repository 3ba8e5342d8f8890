"""Threads for calls that block: disks and databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from waltz.limits import WORKER_THREADS_MAX

T = TypeVar("T")


class RealWorkers:
    """Implements `host.Workers`.

    Threads start when they are needed; calls beyond their number wait. A cancelled caller stops
    waiting, while its function runs to the end.
    """

    def __init__(self, threads_max: int = WORKER_THREADS_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="waltz-worker")

    async def run_blocking(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def close(self) -> None:
        """Let the threads end once what runs is done; no further calls."""
        self._pool.shutdown(wait=False)
