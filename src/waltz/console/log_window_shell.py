"""Reads single transactions and short ranges of the log, for pages that show them.

The reader is opened at the first use, and closed after a while without any.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from waltz.arrays import np
from waltz.console.tail_sample import Range, Row
from waltz.reader.reader_shell import AsyncLogReader
from waltz.types import RequestId

READ_SECONDS_MAX: Final = 5.0
"""Seconds that one read may take, the opening of the reader included."""

READS_MAX: Final = 4
"""Reads at a time; others wait for their turn."""

IDLE_SECONDS_MAX: Final = 60.0
"""Seconds without a read after which the reader is closed."""


class LogWindow(Protocol):
    """The reads; each raises a WaltzError, or TimeoutError."""

    async def read(self, wanted: Range, *, with_data: bool) -> list[Row]: ...


class ReaderWindow:
    """Reads with a reader of its own."""

    def __init__(self, new_reader: Callable[[], AsyncLogReader]) -> None:
        self._new_reader = new_reader
        self._reader: AsyncLogReader | None = None
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(READS_MAX)
        self._closing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(self, wanted: Range, *, with_data: bool) -> list[Row]:
        async with asyncio.timeout(READ_SECONDS_MAX), self._turns, self.using() as reader:
            return await _rows(reader, wanted, with_data=with_data)

    async def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()

    @contextlib.asynccontextmanager
    async def using(self) -> AsyncIterator[AsyncLogReader]:
        """Open the reader if need be, and keep it open. Raises as `AsyncLogReader.start`."""
        if self._closing is not None:
            self._closing.cancel()
        async with self._opening:
            if self._reader is None:
                reader = self._new_reader()
                await reader.start()
                self._reader = reader
        try:
            yield self._reader
        finally:
            loop = asyncio.get_running_loop()
            if self._closing is not None:
                self._closing.cancel()
            self._closing = loop.call_later(IDLE_SECONDS_MAX, self._end)

    def _end(self) -> None:
        task = asyncio.create_task(self.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _rows(reader: AsyncLogReader, wanted: Range, *, with_data: bool) -> list[Row]:
    rows = []
    nothing = None if with_data else (lambda headers: np.zeros(len(headers), np.bool_))
    reading = reader.read(wanted.partition_id, wanted.first, wanted.end, wants_data=nothing)
    async with contextlib.aclosing(reading) as runs:
        async for run in runs:
            for index, header in enumerate(run.headers.tolist()):
                numbers = np.frombuffer(run.request_ids, ">i4", 4, 16 * index).tolist()
                rows.append(
                    Row(
                        wanted.partition_id,
                        run.first_transaction_id + index,
                        header,
                        RequestId(*numbers),
                        bytes(run.data[index]) if with_data else None,
                    )
                )
    return rows
