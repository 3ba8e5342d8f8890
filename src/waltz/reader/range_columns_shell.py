"""Ranges of the log as columns: runs of the feed, with bodies that are fetched ahead.

Owns the order of what is yielded, and how much is fetched ahead of it. Must not know connections,
nor when the reader is opened and closed: `PartitionStreams` gives the runs, `Requests` the bodies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from waltz.arrays import np
from waltz.cluster.histories import Histories
from waltz.connections.requests_shell import Requests
from waltz.connections.retry import Operation
from waltz.errors import OperationTimeoutError
from waltz.limits import READER_FETCH_ROWS_MAX, READER_FETCHES_IN_FLIGHT_MAX
from waltz.reader.followed_feed import FeedCursor, check_read
from waltz.reader.partition_streams_shell import PartitionStreams, out_of_time
from waltz.reader.transaction_columns import (
    BlockData,
    TransactionColumns,
    WantsData,
    columns_of,
    columns_of_records,
    join_columns,
)
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId
from waltz.wire.fed import FedRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

READER_ROWS_MAX: Final = 10_000
"""Runs of the feed are joined until they have this many rows, and are then yielded."""

READER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Runs of the feed are joined until they have this many bytes, and are then yielded."""


class RangeColumns:
    """The ranges that one reader yields."""

    def __init__(
        self,
        streams: PartitionStreams,
        requests: Requests,
        repeat: Callable[
            [Operation, Callable[[], Awaitable[Sequence[bytes]]]], Awaitable[Sequence[bytes]]
        ],
        histories: Callable[[], Histories],
        timeout_seconds: float,
    ) -> None:
        """`repeat` makes attempts as the reader's retry policy says; `histories` returns those of
        the newest connection to a server."""
        self._streams = streams
        self._requests = requests
        self._repeat = repeat
        self._histories = histories
        self._timeout_seconds = timeout_seconds

    async def read(
        self,
        partition_id: PartitionId,
        first: int,
        end: int | None,
        wants_data: WantsData | None = None,
        history: UUID | None = None,
    ) -> AsyncGenerator[TransactionColumns, None]:
        """Join runs of the feed, whose bodies are fetched ahead, into what is yielded."""
        if first == end:
            return
        self._streams.check_open()
        fetching: _Ahead = asyncio.Queue(READER_FETCHES_IN_FLIGHT_MAX)
        cursor = FeedCursor(partition_id, first, end, history)
        feeding = asyncio.create_task(self._fetch_ahead(partition_id, cursor, fetching, wants_data))
        feeding.add_done_callback(lambda _: _wake(fetching))
        try:
            parts: list[TransactionColumns] = []
            rows = size = 0
            while (item := await _next(fetching, feeding)) is not None:
                columns = item if isinstance(item, TransactionColumns) else await item
                if isinstance(columns.data, BlockData):  # large as they are, and not copied
                    if parts:
                        yield join_columns(parts)
                        parts, rows, size = [], 0, 0
                    yield columns
                    continue
                parts.append(columns)
                rows += len(columns)
                size += sum(map(len, columns.data))
                is_last = end is None and fetching.empty()
                if rows >= READER_ROWS_MAX or size >= READER_BYTES_MAX or is_last:
                    yield join_columns(parts)
                    parts, rows, size = [], 0, 0
            if parts:
                yield join_columns(parts)
        finally:
            feeding.cancel()
            left: list[asyncio.Task[Any]] = [feeding]
            while not fetching.empty():
                waiting = fetching.get_nowait()
                if isinstance(waiting, asyncio.Task):
                    left.append(waiting)
            for each in left:
                each.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _fetch_ahead(
        self,
        partition_id: PartitionId,
        cursor: FeedCursor,
        fetching: _Ahead,
        wants_data: WantsData | None,
    ) -> None:
        with_data = wants_data is None
        async with aclosing(self._streams.open(partition_id, cursor, with_data=with_data)) as runs:
            async for fed in runs:
                if isinstance(fed, RecordBatch):
                    await fetching.put(columns_of_records(fed))
                    continue
                if fed.data is not None:
                    await fetching.put(columns_of(fed, fed.data))
                    continue
                is_wanted = np.ones(len(fed), np.bool_)
                if wants_data is not None:
                    is_wanted = np.asarray(wants_data(fed.headers), np.bool_)
                if not is_wanted.any():
                    await fetching.put(columns_of(fed, [b""] * len(fed)))
                    continue
                for start in range(0, len(fed), READER_FETCH_ROWS_MAX):
                    rows = slice(start, start + READER_FETCH_ROWS_MAX)
                    part = fed[rows]
                    fetch = asyncio.create_task(
                        self._fetch(partition_id, part, is_wanted[rows], cursor.history)
                    )
                    try:
                        await fetching.put(fetch)
                    except asyncio.CancelledError:
                        fetch.cancel()
                        raise

    async def _fetch(
        self,
        partition_id: PartitionId,
        fed: FedRun,
        is_wanted: NDArray[np.bool_],
        history: UUID | None,
    ) -> TransactionColumns:
        """Return the run, which was fed of `history`, with the data of those that are wanted; that
        of the others is empty. Raises HistoryChangedError: the data is of another history."""
        first = fed.first_transaction_id
        places = np.flatnonzero(is_wanted).tolist()
        ids = [TransactionId(first + place) for place in places]
        fetch = partial(self._requests.fetch, partition_id, ids, fragile=True)
        try:
            bodies = await self._repeat(Operation.TRANSACTION_DATA, fetch)
        except OperationTimeoutError:
            raise out_of_time(
                self._timeout_seconds, partition_id, f"data from transaction {first} on"
            ) from None
        if history is not None:
            check_read(self._histories(), partition_id, history, first + len(fed))
        data = [b""] * len(fed)
        for place, body in zip(places, bodies, strict=True):
            data[place] = body
        return columns_of(fed, data)


_Fetch: TypeAlias = asyncio.Task[TransactionColumns]
_Ahead: TypeAlias = asyncio.Queue[_Fetch | TransactionColumns | None]
"""Runs that are to be yielded, in order: with their data, or while it is fetched."""


def _wake(queue: asyncio.Queue[Any]) -> None:
    if queue.empty():
        queue.put_nowait(None)


async def _next(
    fetching: _Ahead, feeding: asyncio.Task[None]
) -> _Fetch | TransactionColumns | None:
    """Return the next run, or its fetch; None at the end. Raises what ended the feed."""
    while True:
        if fetching.empty() and feeding.done():
            feeding.result()
            return None
        if (item := await fetching.get()) is not None:
            return item
