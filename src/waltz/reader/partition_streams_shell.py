"""The streams of a reader: one connection per read, opened again until the range is complete.

Owns these connections. What has come and what comes next is decided by `FeedCursor` and
`BlockCursor`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import partial

from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.connections.cluster_connection import Role
from waltz.connections.connection_shell import ServerConnection
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.connections.sources_shell import ClusterSource
from waltz.errors import RemoteProtocolError, UnavailableError
from waltz.host import Host
from waltz.limits import (
    NOT_READY_SECONDS_MAX,
    NOT_READY_SECONDS_MIN,
    RECONNECT_SECONDS_MAX,
    RECONNECT_SECONDS_MIN,
)
from waltz.reader.followed_feed import FeedCursor, FeedPhase
from waltz.reader.range_blocks import BlockCursor
from waltz.record import RecordBatch
from waltz.types import Address, Generation, PartitionId
from waltz.wire.batch_protocol import DataWanted
from waltz.wire.client_protocol import MountRequest
from waltz.wire.fed import FedRun, run_of_headers

logger = logging.getLogger(__name__)


class PartitionStreams:
    """See the module. `timeout_seconds` bounds how long a stream waits without progress."""

    def __init__(
        self,
        host: Host,
        source: ClusterSource,
        settings: ConnectionSettings,
        timeout_seconds: float,
    ) -> None:
        self.error: Exception | None = None
        """Why nothing more is read; None: reads go on."""
        self._host = host
        self._source = source
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._view_changed = asyncio.Event()
        self._next_sequence = 0
        self._feeds: dict[int, tuple[PartitionId, Address, ServerConnection]] = {}

    def check_open(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self, error: Exception) -> None:
        """End all streams, and raise `error` for each that is opened from now on."""
        self.error = self.error or error
        self._view_changed.set()
        for _, _, connection in self._feeds.values():
            connection.close()

    def change_view(self, snapshot: ClusterSnapshot) -> None:
        """Close the streams to servers that no longer have the partition: such a server falls
        silent; nothing else would tell."""
        self._view_changed.set()
        for partition_id, address, connection in list(self._feeds.values()):
            owner = snapshot.partitions.get(partition_id)
            if owner is None or owner[0] != address:
                connection.close()

    async def open(
        self, partition_id: PartitionId, cursor: FeedCursor, *, with_data: bool
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
                raise out_of_time(
                    self._timeout_seconds,
                    partition_id,
                    f"transaction {cursor.position}",
                    cursor.trouble,
                ) from None
            except (UnavailableError, RemoteProtocolError) as error:
                logger.info("feed_not_opened partition=%d error=%s", partition_id, error)
                await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)
                continue
            if self.error is not None:  # closing ends those that it knows
                connection.close()
                raise self.error
            if (histories := self._source.histories) is not None:
                try:
                    cursor.go_on_with(histories)
                except BaseException:
                    connection.close()
                    raise
            owner = self._source.current.partitions.get(partition_id)
            if owner is None or owner[0] != address:
                # It has moved while the connection was opened; from now on `change_view` tells.
                connection.close()
                continue
            with self._kept(partition_id, address, connection) as sequence:
                runs: AsyncGenerator[FedRun | RecordBatch, None]
                knows_ranges = connection.knows_batches if with_data else connection.gives_headers
                if cursor.end is not None and knows_ranges:
                    runs = self._blocks_from(
                        partition_id, cursor, connection, progress_at, with_data
                    )
                else:
                    mount = partial(cursor.mount, generation, sequence)
                    runs = self._feed_from(
                        partition_id, cursor, connection, mount, progress_at, with_data
                    )
                async with aclosing(runs):
                    async for fed in runs:
                        yield fed
                        progress_at = loop.time()
                        pause = RECONNECT_SECONDS_MIN
            self.check_open()
            if cursor.is_caught_up:
                progress_at = loop.time()  # silence was no lack of progress
            if not cursor.done:
                await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)

    @contextmanager
    def _kept(
        self, partition_id: PartitionId, address: Address, connection: ServerConnection
    ) -> Iterator[int]:
        """Keep the connection, which a change of the view may end, and close it in the end; return
        the sequence number of the stream."""
        sequence = self._next_sequence
        self._next_sequence += 1
        self._feeds[sequence] = partition_id, address, connection
        try:
            yield sequence
        finally:
            del self._feeds[sequence]
            connection.close()

    async def _feed_from(
        self,
        partition_id: PartitionId,
        cursor: FeedCursor,
        connection: ServerConnection,
        mount: Callable[[], MountRequest],
        progress_at: float,
        with_data: bool,
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield runs of the feed until it is done or the connection has ended."""
        loop = asyncio.get_running_loop()
        not_ready_seconds = NOT_READY_SECONDS_MIN
        try:
            first = mount()
            if with_data:
                connection.send([DataWanted(first.request_id)])
            connection.send([first])
            while not cursor.done:
                limit = None if cursor.is_caught_up else progress_at + self._timeout_seconds
                try:
                    async with asyncio.timeout_at(limit):
                        messages = await connection.receive()
                except TimeoutError:
                    raise out_of_time(
                        self._timeout_seconds, partition_id, f"transaction {cursor.position}"
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
                    connection.send([mount()])
        except RemoteProtocolError as error:
            logger.warning("feed_broken partition=%d error=%s", partition_id, error)

    async def _blocks_from(
        self,
        partition_id: PartitionId,
        cursor: FeedCursor,
        connection: ServerConnection,
        progress_at: float,
        with_data: bool,
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield blocks of the log until it is done or the connection has ended."""
        loop = asyncio.get_running_loop()
        assert cursor.end is not None
        blocks = BlockCursor(
            cursor.client_id, partition_id, cursor.position, cursor.end, with_data=with_data
        )
        try:
            while not blocks.done:
                if requests := blocks.ask():
                    connection.send(requests)
                try:
                    async with asyncio.timeout_at(progress_at + self._timeout_seconds):
                        messages = await connection.receive()
                except TimeoutError:
                    raise out_of_time(
                        self._timeout_seconds,
                        partition_id,
                        f"transaction {blocks.position}",
                        cursor.trouble,
                    ) from None
                if messages is None:
                    return
                for batch in blocks.receive(messages):
                    cursor.position, cursor.trouble = batch.next_transaction_id, None
                    yield batch if isinstance(batch, RecordBatch) else run_of_headers(batch)
                    progress_at = loop.time()
        except RemoteProtocolError as error:
            logger.warning("read_broken partition=%d error=%s", partition_id, error)
        except UnavailableError as error:
            if loop.time() >= progress_at + self._timeout_seconds:
                raise
            cursor.trouble = str(error)
            logger.info("read_failed partition=%d error=%s", partition_id, error)

    async def _owner(self, partition_id: PartitionId) -> tuple[Address, Generation]:
        """Wait until the partition has a server."""
        while True:
            self.check_open()
            owner = self._source.current.partitions.get(partition_id)
            if owner is not None:
                return owner
            self._view_changed.clear()
            await self._view_changed.wait()


def out_of_time(
    seconds: float, partition_id: int, what: str, trouble: str | None = None
) -> UnavailableError:
    return UnavailableError(
        f"no progress with partition {partition_id} in {seconds:g} s: waited for"
        f" {what}{'' if trouble is None else f'; the server said: {trouble}'}"
    )
