"""One server process: its connections, its partitions, its place in the cluster.

Turns reads into events and effects into writes. All messages of one read reach their partitions at
once; each partition is stepped once for all that waits for it. What a connection or a partition
cannot take is not read from the network: that is the whole of back pressure. Decides nothing.
Source: Waltz Server, "Waltz Server".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from waltz.cluster.paths import DEFAULT_ROOT
from waltz.cluster.shell import ServerMembership, read_replica_assignments, read_store_params
from waltz.errors import (
    CoordinationError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    UnavailableError,
    WaltzError,
)
from waltz.host import Connection, Host, Listener
from waltz.limits import (
    CONNECTIVITY_SECONDS_MAX,
    FEED_CACHE_BYTES,
    HANDSHAKE_SECONDS_MAX,
    SERVER_MAILBOX_EVENTS_MAX,
    WRITE_BUFFER_BYTES_HIGH,
)
from waltz.server.connection import Mounts, Sorter, answer_without_partition
from waltz.server.feed_cache import FeedCache
from waltz.server.fetches import ReadRecords
from waltz.server.outbox import Part, Send
from waltz.server.partition import (
    AppendRecords,
    CloseConnection,
    ConnectionDrained,
    ConnectionFilled,
    ConnectionLost,
    PartitionEffect,
    PartitionEvent,
    PartitionRevoked,
    ReadFailed,
    RecordsRead,
    ReleaseRequested,
    RequestsDropped,
    ResumeReading,
    ServerPartition,
    StopReading,
)
from waltz.shell import Mailbox, run
from waltz.store.events import StoreEvent
from waltz.store.shell import StorageConnections, StorePartition
from waltz.types import Address, Generation, PartitionId, ReplicaId, TransactionId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    SERVER_GREETING,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ClientMessage,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Message

OpenStore: TypeAlias = Callable[[Callable[[StoreEvent], None]], StorePartition]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """`advertised` is where clients reach the server, if not at `address` (SV-02)."""

    address: Address
    advertised: Address | None = None
    preferred_partitions: tuple[PartitionId, ...] = ()
    feed_cache_bytes: int = FEED_CACHE_BYTES
    root: str = DEFAULT_ROOT


class _Client:
    """One accepted connection."""

    def __init__(self, connection_id: int, connection: Connection) -> None:
        self.connection_id = connection_id
        self.connection = connection
        self.link = Link(CLIENT_CODEC, SERVER_GREETING)
        self.sorter = Sorter(connection_id)
        self.draining: asyncio.Task[None] | None = None
        """Runs while the connection has more to send than it should."""

    def send(self, parts: Sequence[Part]) -> None:
        """Write `parts` at once. Raises LocalProtocolError: nothing was written."""
        encode = self.link.encode
        frames = [part if isinstance(part, bytes) else encode(part) for part in parts]
        self.connection.write(frames[0] if len(frames) == 1 else b"".join(frames))


class _Partition:
    """Runs the machine of one partition beside its store."""

    def __init__(self, server: Server, machine: ServerPartition, store: OpenStore) -> None:
        self.machine = machine
        self._server = server
        self._mailbox: Mailbox[PartitionEvent] = Mailbox(
            server.host.clock, SERVER_MAILBOX_EVENTS_MAX
        )
        self._store = store(self._mailbox.put)
        self._reads: dict[TransactionId, asyncio.Task[None]] = {}
        self._taking = asyncio.Event()
        self._taking.set()

    async def run(self) -> None:
        """Return once the machine has closed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._store.run())
            self._group = group
            await run(self.machine, self._mailbox, self._server.host, self._perform)
            self._store.close()
            for read in self._reads.values():
                read.cancel()

    def put(self, event: PartitionEvent) -> None:
        self._mailbox.put(event)

    async def room(self) -> None:
        """Return once the partition takes more messages, or never will again."""
        await self._taking.wait()
        if not self.machine.closed:
            await self._mailbox.room()

    def _perform(self, effect: PartitionEffect) -> None:
        match effect:
            case Send(connection_id, parts):
                self._server.send(connection_id, parts)
            case AppendRecords(records):
                self._store.append(records)
            case ReadRecords(first, count_max):
                self._reads[first] = self._group.create_task(self._read(first, count_max))
            case CloseConnection(connection_id, reason):
                self._server.cut_off(connection_id, reason)
            case StopReading():
                self._taking.clear()
            case ResumeReading():
                self._taking.set()
            case RequestsDropped(connection_id, reason, count):
                logger.debug(
                    "requests_dropped partition=%d connection=%d count=%d reason=%s",
                    self.machine.partition_id,
                    connection_id,
                    count,
                    reason,
                )
            case _:
                assert_never(effect)

    async def _read(self, first: TransactionId, count_max: int) -> None:
        try:
            self.put(RecordsRead(first, await self._store.read(first, count_max)))
        except WaltzError as error:
            self.put(ReadFailed(first, str(error)))
        finally:
            del self._reads[first]


class Server:
    """A server of the cluster, from `start` to `stop`."""

    def __init__(self, host: Host, config: ServerConfig) -> None:
        self.host = host
        self._config = config
        self._cache = FeedCache(config.feed_cache_bytes)
        self._clients: dict[int, _Client] = {}
        self._client_count = 0
        self._partitions: dict[PartitionId, _Partition] = {}
        self._left_behind: dict[PartitionId, Mounts] = {}
        """Who was mounted on partitions that have gone to other servers."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listener: Listener | None = None
        self._membership: ServerMembership | None = None
        self._ended: asyncio.Future[None] | None = None
        self._is_stopping = False

    @property
    def address(self) -> Address:
        """Where it listens; the real port where port 0 was asked for."""
        assert self._listener is not None, "started"
        return self._listener.address

    async def start(self) -> None:
        """Listen, then join the cluster under an address that already answers.

        Raises ConfigurationError: the port is in use, or the cluster contradicts itself.
        NoNodeError: there is no cluster. CoordinatorLostError.
        """
        self._ended = asyncio.get_running_loop().create_future()
        params = await read_store_params(self.host.coordinator, self._config.root)
        self._storages = StorageConnections(self.host, params)
        self._listener = await self.host.network.listen(self._config.address, self._accept)
        self._membership = ServerMembership(
            self.host,
            self._config.advertised or self.address,
            self._on_assignment,
            preferred_partitions=self._config.preferred_partitions,
            root=self._config.root,
        )
        try:
            await self._membership.start()
        except BaseException:
            await self._listener.close()
            raise
        logger.info(
            "server_started server_id=%s address=%s", self._membership.server_id, self.address
        )

    async def run(self) -> None:
        """Return once the server was stopped. Raises what ended it otherwise."""
        assert self._ended is not None, "started"
        await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """Take nothing more, wait for what is undecided, release the partitions, leave. Idempotent.

        Whoever gets the partitions next finds them at rest (SV-31).
        """
        if self._is_stopping or self._listener is None or self._membership is None:
            return
        self._is_stopping = True
        await self._listener.close()
        for partition in self._partitions.values():
            partition.put(ReleaseRequested())
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._membership.stop()
        for client in list(self._clients.values()):
            client.connection.close()
        await self._storages.close()
        self._end(None)
        logger.info("server_stopped server_id=%s", self._membership.server_id)

    # For the partitions

    def send(self, connection_id: int, parts: Sequence[Part]) -> None:
        """Write `parts` if the connection is still there, and tell all when it is full."""
        client = self._clients.get(connection_id)
        if client is None:
            return
        try:
            client.send(parts)
        except LocalProtocolError as error:
            self.cut_off(connection_id, str(error))
        if client.draining is None and client.connection.unsent_bytes > WRITE_BUFFER_BYTES_HIGH:
            self._tell_all(ConnectionFilled(connection_id))
            client.draining = asyncio.get_running_loop().create_task(self._drain(client))

    def cut_off(self, connection_id: int, reason: str) -> None:
        client = self._clients.get(connection_id)
        if client is not None:
            logger.warning("client_cut_off peer=%s reason=%s", client.connection.peer, reason)
            client.connection.close()

    async def _drain(self, client: _Client) -> None:
        await client.connection.drain()
        client.draining = None
        if client.connection_id in self._clients:
            self._tell_all(ConnectionDrained(client.connection_id))

    def _tell_all(self, event: PartitionEvent) -> None:
        for partition in self._partitions.values():
            partition.put(event)

    # Connections

    async def _accept(self, connection: Connection) -> None:
        """Serve one connection to its end."""
        self._client_count += 1
        client = _Client(self._client_count, connection)
        self._clients[client.connection_id] = client
        try:
            await self._serve(client)
        except TimeoutError:
            logger.warning("client_silent peer=%s", connection.peer)
        except RemoteProtocolError as error:
            logger.warning("client_faulted peer=%s error=%s", connection.peer, error)
        finally:
            del self._clients[client.connection_id]
            self._tell_all(ConnectionLost(client.connection_id))
            if client.draining is not None:
                client.draining.cancel()

    async def _serve(self, client: _Client) -> None:
        """Raises RemoteProtocolError. TimeoutError: no Hello."""
        link, read = client.link, client.connection.read
        client.connection.write(link.hello())
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            messages: list[Message] = []
            while link.version is None:
                if not (data := await read()):
                    return
                messages = link.receive(data)
        while data:
            await self._hand_on(client, messages)
            data = await read()
            messages = link.receive(data)

    async def _hand_on(self, client: _Client, messages: Sequence[Message]) -> None:
        """Give `messages` to those they are for; return when there is room for more."""
        if not messages or self._is_stopping:
            return
        assert client.link.version is not None
        for_partitions, for_server = client.sorter.sort(messages, client.link.version)
        told: list[_Partition] = []
        for partition_id, event in for_partitions:
            partition = self._partitions.get(partition_id)
            if partition is not None:
                partition.put(event)
                told.append(partition)
                continue
            answers = [answer_without_partition(message) for message in event.messages]
            if parts := [answer for answer in answers if answer is not None]:
                self.send(client.connection_id, parts)
        for message in for_server:
            self.send(client.connection_id, [await self._answer(message)])
        for partition in told:
            await partition.room()
        if client.draining is not None:
            await client.connection.drain()

    async def _answer(self, message: ClientMessage) -> ClientMessage:
        """Answer what is asked of the server as a whole."""
        request_id = message.request_id
        match message:
            case CheckStorageConnectivityRequest():
                return CheckStorageConnectivityResponse(request_id, await self._connectivity())
            case ServerPartitionsAssignmentRequest():
                return ServerPartitionsAssignmentResponse(request_id, tuple(self._partitions))
            case ServerPartitionsHealthRequest():
                health = [(p, found.machine.is_open) for p, found in self._partitions.items()]
                return ServerPartitionsHealthResponse(request_id, tuple(health))
            case AddPreferredPartitionRequest(_, partition_ids):
                logger.warning("preferred_partitions_unchanged add=%s", partition_ids)
                return AddPreferredPartitionResponse(request_id, False)
            case RemovePreferredPartitionRequest(_, partition_ids):
                logger.warning("preferred_partitions_unchanged remove=%s", partition_ids)
                return RemovePreferredPartitionResponse(request_id, False)
            case _:
                raise AssertionError(f"{type(message).__name__} is for a partition")

    async def _connectivity(self) -> tuple[tuple[str, bool], ...]:
        """Whether this server has, or gets in time, a connection to each storage node."""
        try:
            replicas = sorted(
                await read_replica_assignments(self.host.coordinator, self._config.root)
            )
        except (UnavailableError, CoordinationError, ProtocolError) as error:
            logger.warning("replicas_unknown error=%s", error)
            return self._storages.connectivity()
        waits = [self._is_connected(replica_id) for replica_id in replicas]
        return tuple(zip(replicas, await asyncio.gather(*waits), strict=True))

    async def _is_connected(self, replica_id: ReplicaId) -> bool:
        try:
            async with asyncio.timeout(CONNECTIVITY_SECONDS_MAX):
                await self._storages.to(replica_id).connected()
        except TimeoutError:
            return False
        return True

    # Partitions

    def _on_assignment(self, assigned: dict[PartitionId, Generation]) -> None:
        """Open what is new, close what is gone.

        A partition that is kept under a higher generation was another server's in between: nothing
        known here holds any more, so it is closed and opened like any other. One that comes back
        later finds clients that never heard that it was away: they are cut off, or they would wait
        for ever, since a generation alone makes no client mount again.
        """
        if self._is_stopping:
            return
        for partition_id, partition in list(self._partitions.items()):
            generation = assigned.get(partition_id)
            if generation != partition.machine.generation:
                del self._partitions[partition_id]
                partition.put(PartitionRevoked(comes_back=generation is not None))
                if generation is None:
                    self._left_behind[partition_id] = partition.machine.mounts
                logger.info(
                    "partition_closing partition=%d generation=%d",
                    partition_id,
                    partition.machine.generation,
                )
        for partition_id, generation in sorted(assigned.items()):
            if partition_id not in self._partitions:
                self._open(partition_id, generation)

    def _open(self, partition_id: PartitionId, generation: Generation) -> None:
        def open_store(on_event: Callable[[StoreEvent], None]) -> StorePartition:
            return StorePartition(
                self.host,
                partition_id,
                generation,
                self._storages,
                on_event=on_event,
                root=self._config.root,
            )

        left_behind = self._left_behind.pop(partition_id, None)
        for connection_id in left_behind.connection_ids() if left_behind is not None else ():
            self.cut_off(connection_id, f"partition {partition_id} has been away")
        machine = ServerPartition(partition_id, generation, self._cache)
        partition = _Partition(self, machine, open_store)
        for client in self._clients.values():
            if client.draining is not None:
                partition.put(ConnectionFilled(client.connection_id))
        self._partitions[partition_id] = partition
        task = asyncio.get_running_loop().create_task(partition.run())
        self._tasks[task] = None
        task.add_done_callback(self._on_partition_end)
        logger.info("partition_opened partition=%d generation=%d", partition_id, generation)

    def _on_partition_end(self, task: asyncio.Task[None]) -> None:
        """A partition that fails is a bug: the server ends, and others take its partitions."""
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("partition_failed error=%r", error, exc_info=error)
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
