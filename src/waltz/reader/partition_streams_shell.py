"""The streams of a reader: a connection for each read, opened again until the range is complete.

Owns these connections. One on which a range has come whole is kept for a moment, for the next range
of that server. What has come and what comes next is decided by `FeedCursor` and
`BlockCursor`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from waltz.cluster.cluster_shell import ClusterSnapshot
from waltz.cluster.histories import Histories
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
from waltz.types import Address, ClientId, Generation, PartitionId
from waltz.wire.batch_protocol import DataWanted
from waltz.wire.client_protocol import MountRequest
from waltz.wire.fed import FedRun, run_of_headers
from waltz.wire.lifecycle_protocol import Feature

logger = logging.getLogger(__name__)

IDLE_STREAM_SECONDS: Final = 1.0
"""A connection on which a range has come whole waits this long for the next range: less than it
takes until silence ends it."""


@dataclass(slots=True)
class _Stream:
    """A connection with a read under way; `histories` are those that it may bring."""

    partition_id: PartitionId
    address: Address
    connection: ServerConnection
    histories: Histories | None
    is_idle: bool = False


class _Idle(NamedTuple):
    """A connection with nothing under way, and the timer that closes it."""

    connection: ServerConnection
    histories: Histories | None
    closing: asyncio.TimerHandle


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
        self._feeds: dict[int, _Stream] = {}
        self._idle: dict[Address, _Idle] = {}
        """A connection to each server on which nothing is under way."""
        self._free_client_ids: list[ClientId] = []

    def check_open(self) -> None:
        if self.error is not None:
            raise self.error

    def end(self, error: Exception) -> None:
        """End all streams, and raise `error` for each that is opened from now on."""
        self.error = self.error or error
        self._view_changed.set()
        for stream in self._feeds.values():
            stream.connection.close()
        for address in list(self._idle):
            self._close_idle(address)

    def change_view(self, snapshot: ClusterSnapshot) -> None:
        """Close the streams to servers that no longer have the partition: such a server falls
        silent; nothing else would tell."""
        self._view_changed.set()
        for stream in list(self._feeds.values()):
            owner = snapshot.partitions.get(stream.partition_id)
            if owner is None or owner[0] != stream.address:
                stream.connection.close()

    async def open(
        self, partition_id: PartitionId, cursor: FeedCursor, *, with_data: bool
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield runs of the feed, or of the log, through lost connections and moved partitions."""
        try:
            async with aclosing(self._open(partition_id, cursor, with_data=with_data)) as runs:
                async for fed in runs:
                    yield fed
        finally:
            if cursor.client_id is not None:
                self._free_client_ids.append(cursor.client_id)

    async def _open(
        self, partition_id: PartitionId, cursor: FeedCursor, *, with_data: bool
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        loop = asyncio.get_running_loop()
        progress_at = loop.time()
        pause = RECONNECT_SECONDS_MIN
        while not cursor.done:
            seconds_left = progress_at + self._timeout_seconds - loop.time()
            try:
                async with asyncio.timeout(seconds_left):
                    address, generation = await self._owner(partition_id)
                    connection = self._take_idle(address) if cursor.end is not None else None
                    is_used = connection is not None
                    if connection is None:
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
            stream = _Stream(partition_id, address, connection, self._source.histories)
            with self._kept(stream) as sequence:
                runs: AsyncGenerator[FedRun | RecordBatch, None]
                gives_headers = connection.has(Feature.HEADERS)
                knows_ranges = connection.knows_batches if with_data else gives_headers
                if cursor.end is not None and knows_ranges:
                    runs = self._blocks_from(cursor, stream, progress_at, with_data)
                else:
                    await self._name(cursor)
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
            if is_used:
                continue  # it had ended before; a new connection may do at once
            if cursor.is_caught_up:
                progress_at = loop.time()  # silence was no lack of progress
            if not cursor.done:
                await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
                pause = min(2 * pause, RECONNECT_SECONDS_MAX)

    @contextmanager
    def _kept(self, stream: _Stream) -> Iterator[int]:
        """Keep the connection, which a change of the view may end, and close it in the end unless
        it is idle then; return the sequence number of the stream."""
        sequence = self._next_sequence
        self._next_sequence += 1
        self._feeds[sequence] = stream
        try:
            yield sequence
        finally:
            del self._feeds[sequence]
            if not stream.is_idle or not self._keep_idle(stream):
                stream.connection.close()

    # Connections on which nothing is under way

    def _take_idle(self, address: Address) -> ServerConnection | None:
        idle = self._idle.pop(address, None)
        if idle is None:
            return None
        idle.closing.cancel()
        if idle.histories != self._source.histories:  # a server of before a restore is not asked
            idle.connection.close()
            return None
        return idle.connection

    def _keep_idle(self, stream: _Stream) -> bool:
        """Keep the connection for the next range; return False if there is one to that server
        already."""
        if self.error is not None or stream.address in self._idle:
            return False
        loop = asyncio.get_running_loop()
        closing = loop.call_later(IDLE_STREAM_SECONDS, self._close_idle, stream.address)
        self._idle[stream.address] = _Idle(stream.connection, stream.histories, closing)
        return True

    def _close_idle(self, address: Address) -> None:
        if (idle := self._idle.pop(address, None)) is not None:
            idle.closing.cancel()
            idle.connection.close()

    async def _name(self, cursor: FeedCursor) -> None:
        """Give the cursor a client ID: only who mounts needs one, and two feeds of one partition
        need two: the newer mount would end the older. Raises UnavailableError."""
        if cursor.client_id is not None:
            return
        if self._free_client_ids:
            cursor.client_id = self._free_client_ids.pop()
            return
        trouble, pause = "", RECONNECT_SECONDS_MIN
        try:
            async with asyncio.timeout(self._timeout_seconds):
                while cursor.client_id is None:
                    self.check_open()
                    try:
                        cursor.client_id = await self._source.allocate_client_id()
                    except UnavailableError as error:  # a coordinator that is away
                        trouble = f": {error}"
                        logger.info("no_client_id error=%s", error)
                        await asyncio.sleep(self._host.random.uniform(pause / 2, pause))
                        pause = min(2 * pause, RECONNECT_SECONDS_MAX)
        except TimeoutError:
            raise UnavailableError(
                f"no server gave a client ID in {self._timeout_seconds:g} s{trouble}"
            ) from None

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
        cursor: FeedCursor,
        stream: _Stream,
        progress_at: float,
        with_data: bool,
    ) -> AsyncGenerator[FedRun | RecordBatch, None]:
        """Yield blocks of the log until it is done or the connection has ended."""
        loop = asyncio.get_running_loop()
        assert cursor.end is not None
        partition_id, connection = stream.partition_id, stream.connection
        blocks = BlockCursor(partition_id, cursor.position, cursor.end, with_data=with_data)
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
            stream.is_idle = blocks.is_answered
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
