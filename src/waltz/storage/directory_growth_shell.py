"""Makes room in a storage node's directory when its cluster gets more partitions.

Owns when the coordinator is asked: once a peer of the cluster speaks of more partitions than the
directory has. Only the coordinator is believed, and it is asked at most once per
`GROWTH_LOOK_SECONDS`, however many peers speak of more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from waltz.errors import StorageError, WaltzError
from waltz.host import Host
from waltz.limits import GROWTH_LOOK_SECONDS
from waltz.storage.directory.control_file import ControlFile
from waltz.storage.partition_queue_shell import PartitionQueue

GROWTH_READ_SECONDS_MAX: Final = 3.0
"""The coordinator has this long to answer; the peer that waits for the answer is in a handshake."""

GROWTH_HOLD_SECONDS_MAX: Final = 1.0
"""Growth waits at most this long until each partition has finished its disk call; partitions that
have finished theirs are held up meanwhile."""


log = logging.getLogger(__name__)

ReadCount = Callable[[], Awaitable[int]]
"""Asks the coordinator how many partitions the cluster has. Raises WaltzError."""


class Growth:
    """Grows the directory of one node when it has to."""

    def __init__(
        self,
        host: Host,
        control_file: ControlFile,
        queues: Callable[[], Iterable[PartitionQueue]],
        read_count: ReadCount | None,
    ) -> None:
        """`queues` returns the queues of all partitions that may write to the control file.
        `read_count` None: there is no coordinator to ask, and the number never changes."""
        self._host = host
        self._control_file = control_file
        self._queues = queues
        self._read_count = read_count
        self._look: asyncio.Task[None] | None = None
        self._began = -GROWTH_LOOK_SECONDS
        """The time at which the last look began."""
        self.opening = asyncio.Lock()
        """Held while a partition that has no queue yet is opened."""

    async def look(self) -> None:
        """Ask the coordinator, with a question sent after this call, and make room for all
        partitions of the cluster.

        Raises StorageError: the coordinator did not answer, or the disk refused.
        """
        if self._read_count is None:
            return
        came = self._host.clock.now()
        while self._look is not None or self._began < came:
            if self._look is None:
                self._look = asyncio.create_task(self._look_once(self._read_count))
                # The callers that wait may be gone by the time the look fails.
                self._look.add_done_callback(lambda task: task.cancelled() or task.exception())
            # Other callers wait for the same look, and growth must not stop half way.
            await asyncio.shield(self._look)

    async def stop(self) -> None:
        """Return once no look is under way."""
        if self._look is not None:
            await asyncio.wait([self._look])

    async def _look_once(self, read_count: ReadCount) -> None:
        clock = self._host.clock
        try:
            await asyncio.sleep(max(0.0, self._began + GROWTH_LOOK_SECONDS - clock.now()))
            self._began = clock.now()
            try:
                async with asyncio.timeout(GROWTH_READ_SECONDS_MAX):
                    count = await read_count()
            except TimeoutError:
                raise StorageError(
                    f"the coordinator has not said in {GROWTH_READ_SECONDS_MAX:g} s how many"
                    " partitions the cluster has"
                ) from None
            except WaltzError as error:
                raise StorageError(
                    f"the coordinator does not say how many partitions the cluster has: {error}"
                ) from error
            if count > self._control_file.partition_count:
                await self._grow(count)
        finally:
            self._look = None

    async def _grow(self, count: int) -> None:
        before = self._control_file.partition_count
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(GROWTH_HOLD_SECONDS_MAX):
                    await held.enter_async_context(self.opening)
                    for queue in self._queues():
                        await held.enter_async_context(queue.pause())
            except TimeoutError:
                raise StorageError(
                    f"the node could not make room for {count} partitions: a disk call of a"
                    f" partition has not returned for {GROWTH_HOLD_SECONDS_MAX:g} s"
                ) from None
            try:
                await self._host.workers.run_blocking(partial(self._control_file.grow, count))
            except OSError as error:
                raise StorageError(
                    f"the node could not make room for {count} partitions: {error}"
                ) from error
        log.info("directory_grown partitions=%d before=%d", count, before)
