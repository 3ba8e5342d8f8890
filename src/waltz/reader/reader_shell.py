"""The reader: ranges of the log as columns, bodies fetched ahead.

Owns one stream connection per read, which ends with it, and the connections for bodies. Stateless
between reads. Decisions are those of `FeedCursor`, `ClusterConnection` and `PendingRequests`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from uuid import UUID

from waltz.arrays import np
from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.connections.cluster_connection import Role
from waltz.connections.connection_shell import UNRESTORED, Connections, ServerConnection
from waltz.connections.discovery_shell import DiscoverySettings, source_for
from waltz.connections.requests_shell import Requests
from waltz.connections.retry import Operation, RetryPolicy, RetryReads
from waltz.connections.retrying_shell import with_retries
from waltz.connections.tasks_shell import Tasks
from waltz.errors import (
    ClientClosedError,
    ClusterChangedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    RemoteProtocolError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import (
    CONNECTION_SECONDS_MAX,
    NOT_READY_SECONDS_MAX,
    NOT_READY_SECONDS_MIN,
    READER_FETCH_ROWS_MAX,
    READER_FETCHES_IN_FLIGHT_MAX,
    READER_SECONDS_MAX,
    RECONNECT_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
)
from waltz.reader.followed_feed import FeedCursor, FeedPhase
from waltz.reader.range_blocks import BlockCursor
from waltz.reader.transaction_columns import (
    BlockData,
    TransactionColumns,
    columns_of,
    columns_of_records,
    join_columns,
)
from waltz.record import RecordBatch
from waltz.types import Address, ClientId, Generation, PartitionId, TransactionId
from waltz.wire.batch_protocol import DataWanted
from waltz.wire.fed import FedRun

if TYPE_CHECKING:
    from numpy.typing import NDArray

READER_ROWS_MAX: Final = 10_000
"""Runs of the feed are joined until they have this many rows, and are then yielded."""

READER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Runs of the feed are joined until they have this many bytes, and are then yielded."""


logger = logging.getLogger(__name__)

T = TypeVar("T")

WantsData: TypeAlias = "Callable[[NDArray[np.int32]], NDArray[np.bool_]]"
"""Says for each of some headers whether the data is to be fetched."""


class AsyncLogReader:
    """Reads the log as columns, for asyncio; an async context manager, or `start` and `close`."""

    def __init__(
        self,
        host: Host,
        *,
        timeout_seconds: float = READER_SECONDS_MAX,
        root: str | None = None,
        servers: Sequence[Address] = (),
        retry_policy: RetryPolicy | None = None,
        release_host: Callable[[], None] | None = None,
    ) -> None:
        """`timeout_seconds` bounds how long anything waits without progress. With `servers` these
        tell what the cluster is, and no coordinator. `retry_policy` None: `RetryReads`.
        With `release_host` closing ends the coordinator session, too, and calls it."""
        self._host = host
        self._timeout_seconds = timeout_seconds
        self._release_host = release_host
        self._tasks = Tasks(self._crash)
        discovery = DiscoverySettings(servers, min(CONNECTION_SECONDS_MAX, timeout_seconds))
        self._source = source_for(
            host,
            self._tasks,
            root or DEFAULT_ROOT,
            discovery,
            self._change_view,
            self._change_cluster,
        )
        self._retry_policy = retry_policy or RetryReads()
        self._settings = replace(UNRESTORED, token=host.random.uuid().bytes)
        self._view_changed = asyncio.Event()
        self._free_client_ids: list[ClientId] = []
        self._next_sequence = 0
        self._feeds: dict[int, tuple[PartitionId, Address, ServerConnection]] = {}
        self._requests: Requests | None = None
        self._connections: Connections | None = None
        self._error: Exception | None = None

    async def start(self) -> None:
        """Learn the cluster. Raises NoNodeError: there is none. CoordinatorLostError. With
        `servers` ConnectionFailedError: none of them in time; RemoteProtocolError: not ours."""
        try:
            client_id = await self._source.start()
        except BaseException:
            await self.close()
            raise
        self._free_client_ids.append(client_id)
        self._requests = Requests(self._host, self._tasks, client_id)
        self._connections = Connections(
            self._host,
            self._tasks,
            {Role.REQUESTS: self._source.side(Role.REQUESTS, self._requests)},
            _ignore_generation,
            open_server=self._source.open,
            watchers=(self._source,),
        )
        self._requests.start(self._connections.send, self._connections.break_off)
        self._connections.start()
        self._change_view(self._source.current)

    async def close(self) -> None:
        """Idempotent; reads under way end with ClientClosedError."""
        self._error = self._error or ClientClosedError("the reader is closed")
        if self._requests is not None:
            self._requests.stop()
        for _, _, connection in self._feeds.values():
            connection.close()
        await self._tasks.stop()
        await self._source.stop()
        release, self._release_host = self._release_host, None
        if release is not None:
            await self._host.coordinator.close()
            release()

    async def __aenter__(self) -> AsyncLogReader:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def partition_count(self) -> int:
        return self._source.current.partition_count

    @property
    def cluster_key(self) -> UUID:
        return self._source.current.cluster_key

    async def high_water_mark(self, partition_id: int) -> TransactionId:
        """Return the last transaction in the partition's log, -1 for none.

        Raises NotFoundError; UnavailableError: no server answered in time.
        """
        self._check_partition(partition_id)
        assert self._requests is not None, "started"
        ask = partial(self._requests.high_water_mark, PartitionId(partition_id), fragile=True)
        try:
            return await self._repeat(Operation.HIGH_WATER_MARK, ask)
        except OperationTimeoutError:
            raise self._out_of_time(partition_id, "its high-water mark") from None

    def read(
        self,
        partition_id: int,
        first: int,
        end: int,
        *,
        wants_data: WantsData | None = None,
    ) -> AsyncGenerator[TransactionColumns, None]:
        """Yield the transactions from `first` to `end` - 1: dense, in order, complete.

        Fetches ahead. With `wants_data`, a function of many headers that says for which of them
        the data is wanted, only that data is fetched, one by one; the others' is empty. That pays
        where few are wanted. Raises NotFoundError: no such partition, or the log ends before
        `end`; UnavailableError: no progress for `timeout_seconds`; LocalProtocolError: not a
        range; ClientAheadError.
        """
        if not 0 <= first <= end:
            raise LocalProtocolError(
                f"the range is from transaction {first} to before {end}; expected 0 or more, and"
                " an end that is not before the first"
            )
        self._check_partition(partition_id)
        return self._read(PartitionId(partition_id), first, end, wants_data)

    def follow(self, partition_id: int, first: int) -> AsyncGenerator[TransactionColumns, None]:
        """Yield the transactions from `first` on as they come, for ever.

        Raises as `read`; NotFoundError, ClientAheadError: the log ends before `first` - 1.
        """
        if first < 0:
            raise LocalProtocolError(f"the first transaction is {first}; expected at least 0")
        self._check_partition(partition_id)
        return self._read(PartitionId(partition_id), first, None)

    # Bodies

    async def _read(
        self,
        partition_id: PartitionId,
        first: int,
        end: int | None,
        wants_data: WantsData | None = None,
    ) -> AsyncGenerator[TransactionColumns, None]:
        """Join runs of the feed, whose bodies are fetched ahead, into what is yielded."""
        if first == end:
            return
        client_id = await self._take_client_id()
        fetching: _Ahead = asyncio.Queue(READER_FETCHES_IN_FLIGHT_MAX)
        cursor = FeedCursor(client_id, partition_id, first, end)
        feeding = asyncio.create_task(self._fetch_ahead(partition_id, cursor, fetching, wants_data))
        feeding.add_done_callback(lambda _: _wake(fetching))
        try:
            parts: list[TransactionColumns] = []
            rows = size = 0
            while (item := await self._next(fetching, feeding)) is not None:
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
            self._free_client_ids.append(client_id)

    async def _next(
        self, fetching: _Ahead, feeding: asyncio.Task[None]
    ) -> _Fetch | TransactionColumns | None:
        """Return the next run, or its fetch; None at the end. Raises what ended the feed."""
        while True:
            if fetching.empty() and feeding.done():
                feeding.result()
                return None
            if (item := await fetching.get()) is not None:
                return item

    async def _fetch_ahead(
        self,
        partition_id: PartitionId,
        cursor: FeedCursor,
        fetching: _Ahead,
        wants_data: WantsData | None,
    ) -> None:
        with_data = wants_data is None
        async with aclosing(self._feed(partition_id, cursor, with_data)) as runs:
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
                    fetch = asyncio.create_task(
                        self._fetch(partition_id, fed[rows], is_wanted[rows])
                    )
                    try:
                        await fetching.put(fetch)
                    except asyncio.CancelledError:
                        fetch.cancel()
                        raise

    async def _fetch(
        self, partition_id: PartitionId, fed: FedRun, is_wanted: NDArray[np.bool_]
    ) -> TransactionColumns:
        """Return the run with the data of those that are wanted; that of the others is empty."""
        assert self._requests is not None, "started"
        first = fed.first_transaction_id
        places = np.flatnonzero(is_wanted).tolist()
        ids = [TransactionId(first + place) for place in places]
        fetch = partial(self._requests.fetch, partition_id, ids, fragile=True)
        try:
            bodies = await self._repeat(Operation.TRANSACTION_DATA, fetch)
        except OperationTimeoutError:
            raise self._out_of_time(partition_id, f"data from transaction {first} on") from None
        data = [b""] * len(fed)
        for place, body in zip(places, bodies, strict=True):
            data[place] = body
        return columns_of(fed, data)

    async def _repeat(self, operation: Operation, attempt: Callable[[], Awaitable[T]]) -> T:
        return await with_retries(
            self._host, self, self._retry_policy, operation, attempt, self._timeout_seconds
        )

    # The feed

    async def _feed(
        self, partition_id: PartitionId, cursor: FeedCursor, with_data: bool
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield runs of the feed, or of the log, through lost connections and moved partitions."""
        loop = asyncio.get_running_loop()
        progress_at = loop.time()
        pause = RECONNECT_SECONDS_MIN
        while not cursor.done:
            seconds_left = progress_at + self._timeout_seconds - loop.time()
            try:
                async with asyncio.timeout(seconds_left):
                    address, generation = await self._owner(partition_id)
                    connection = await self._source.open(address, Role.STREAM, self._settings)
            except TimeoutError:
                raise self._out_of_time(
                    partition_id, f"transaction {cursor.position}", cursor.trouble
                ) from None
            except (UnavailableError, RemoteProtocolError) as error:
                logger.info("feed_not_opened partition=%d error=%s", partition_id, error)
                await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)
                continue
            if self._error is not None:  # closing ends those that it knows
                connection.close()
                raise self._error
            owner = self._source.current.partitions.get(partition_id)
            if owner is None or owner[0] != address:
                # It has moved while the connection was opened; from now on `_change_view` tells.
                connection.close()
                continue
            runs: AsyncGenerator[FedRun | RecordBatch, None]
            if with_data and cursor.end is not None and connection.knows_batches:
                runs = self._blocks_from(partition_id, cursor, connection, address, progress_at)
            else:
                runs = self._feed_from(
                    partition_id, cursor, connection, address, generation, progress_at, with_data
                )
            async with aclosing(runs):
                async for fed in runs:
                    yield fed
                    progress_at = loop.time()
                    pause = RECONNECT_SECONDS_MIN
            self._check_open()
            if cursor.is_caught_up:
                progress_at = loop.time()  # silence was no lack of progress
            if not cursor.done:
                await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)

    async def _feed_from(
        self,
        partition_id: PartitionId,
        cursor: FeedCursor,
        connection: ServerConnection,
        address: Address,
        generation: Generation,
        progress_at: float,
        with_data: bool,
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield runs of the feed until it is done or the connection has ended."""
        loop = asyncio.get_running_loop()
        sequence = self._next_sequence
        self._next_sequence += 1
        self._feeds[sequence] = partition_id, address, connection
        not_ready_seconds = NOT_READY_SECONDS_MIN
        try:
            mount = cursor.mount(generation, sequence)
            if with_data:
                connection.send([DataWanted(mount.request_id)])
            connection.send([mount])
            while not cursor.done:
                limit = None if cursor.is_caught_up else progress_at + self._timeout_seconds
                try:
                    async with asyncio.timeout_at(limit):
                        messages = await connection.receive()
                except TimeoutError:
                    raise self._out_of_time(
                        partition_id, f"transaction {cursor.position}"
                    ) from None
                if messages is None:
                    return
                runs, replies = cursor.receive(messages)
                for run in runs:
                    yield run
                    progress_at = loop.time()
                if replies:
                    connection.send(replies)
                if cursor.phase is FeedPhase.NOT_READY:
                    await asyncio.sleep(not_ready_seconds)
                    not_ready_seconds = min(2 * not_ready_seconds, NOT_READY_SECONDS_MAX)
                    connection.send([cursor.mount(generation, sequence)])
        except RemoteProtocolError as error:
            logger.warning("feed_broken partition=%d error=%s", partition_id, error)
        finally:
            del self._feeds[sequence]
            connection.close()

    async def _blocks_from(
        self,
        partition_id: PartitionId,
        cursor: FeedCursor,
        connection: ServerConnection,
        address: Address,
        progress_at: float,
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield blocks of the log until it is done or the connection has ended."""
        loop = asyncio.get_running_loop()
        sequence = self._next_sequence
        self._next_sequence += 1
        self._feeds[sequence] = partition_id, address, connection
        assert cursor.end is not None
        blocks = BlockCursor(cursor.client_id, partition_id, cursor.position, cursor.end)
        try:
            while not blocks.done:
                if requests := blocks.ask():
                    connection.send(requests)
                try:
                    async with asyncio.timeout_at(progress_at + self._timeout_seconds):
                        messages = await connection.receive()
                except TimeoutError:
                    raise self._out_of_time(
                        partition_id, f"transaction {blocks.position}", cursor.trouble
                    ) from None
                if messages is None:
                    return
                for batch in blocks.receive(messages):
                    cursor.position, cursor.trouble = batch.next_transaction_id, None
                    yield batch
                    progress_at = loop.time()
        except RemoteProtocolError as error:
            logger.warning("read_broken partition=%d error=%s", partition_id, error)
        except UnavailableError as error:
            if loop.time() >= progress_at + self._timeout_seconds:
                raise
            cursor.trouble = str(error)
            logger.info("read_failed partition=%d error=%s", partition_id, error)
        finally:
            del self._feeds[sequence]
            connection.close()

    async def _owner(self, partition_id: PartitionId) -> tuple[Address, Generation]:
        """Wait until the partition has a server."""
        while True:
            self._check_open()
            owner = self._source.current.partitions.get(partition_id)
            if owner is not None:
                return owner
            self._view_changed.clear()
            await self._view_changed.wait()

    def _change_view(self, snapshot: ClusterSnapshot) -> None:
        self._view_changed.set()
        if self._connections is not None:
            self._connections.change_view(snapshot.partitions)
        for partition_id, address, connection in list(self._feeds.values()):
            # A server that has lost the partition falls silent; nothing else would tell.
            owner = snapshot.partitions.get(partition_id)
            if owner is None or owner[0] != address:
                connection.close()

    async def _take_client_id(self) -> ClientId:
        """Two feeds of one partition need two clients: the newer mount would end the older."""
        self._check_open()
        if self._free_client_ids:
            return self._free_client_ids.pop()
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._source.allocate_client_id()
        except TimeoutError:
            raise UnavailableError(
                f"no server gave a client ID in {self._timeout_seconds:g} s"
            ) from None

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _check_partition(self, partition_id: int) -> None:
        self._check_open()
        if not 0 <= partition_id < self.partition_count:
            raise NotFoundError(
                f"there is no partition {partition_id}; expected 0 to {self.partition_count - 1}"
            )

    def _out_of_time(
        self, partition_id: int, what: str, trouble: str | None = None
    ) -> UnavailableError:
        return UnavailableError(
            f"no progress with partition {partition_id} in {self._timeout_seconds:g} s: waited for"
            f" {what}{'' if trouble is None else f'; the server said: {trouble}'}"
        )

    def _crash(self, error: BaseException) -> None:
        self._end(ClientClosedError(f"the reader has failed: {error!r}"))

    def _change_cluster(self, error: ClusterChangedError, expected: UUID, found: UUID) -> None:
        self._end(error)

    def _end(self, error: Exception) -> None:
        """End all reads with `error`."""
        self._error = self._error or error
        self._view_changed.set()
        if self._requests is not None:
            self._requests.stop(self._error)
        if self._connections is not None:
            self._connections.stop()
        for _, _, connection in self._feeds.values():
            connection.close()


def _ignore_generation(_: PartitionId, __: Generation) -> None:
    """Only appends carry generations."""


_Fetch: TypeAlias = asyncio.Task[TransactionColumns]
_Ahead: TypeAlias = asyncio.Queue[_Fetch | TransactionColumns | None]
"""Runs that are to be yielded, in order: with their data, or while it is fetched."""


def _wake(queue: asyncio.Queue[Any]) -> None:
    if queue.empty():
        queue.put_nowait(None)
