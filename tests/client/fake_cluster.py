"""A server in miniature that speaks real frames on loopback, and a coordinator in memory.

The server keeps a log per partition and misbehaves as it is told: it can hold the feed back, drop
appends in silence, refuse locks, not be ready, be asked in vain, and cut all connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar
from uuid import UUID, uuid4
from zlib import crc32

from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.cluster.histories import Histories
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment, ServerDescriptor
from waltz.cluster.tree import Tree
from waltz.errors import RemoteProtocolError
from waltz.host import ANY_VERSION, Connection, Host, Listener, Node
from waltz.server.clients.arrivals_shell import receive_arrival
from waltz.server.clients.reception import Terms
from waltz.system.clock import RealClock
from waltz.system.random import RealRandom
from waltz.system.real_disk import RealDisk
from waltz.system.tcp_network import RealNetwork
from waltz.system.workers import RealWorkers
from waltz.types import (
    NOTHING,
    Address,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    ServerId,
    TransactionId,
)
from waltz.wire.batch_protocol import AppendBatch
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    AppendRequest,
    ClientMessage,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.history_protocol import HistoriesAnswer, HistoriesRequest
from waltz.wire.lifecycle_protocol import Feature, HandshakeRequest
from waltz.wire.message import Codec, Message

T = TypeVar("T")
CLUSTER_KEY = UUID(int=7)
OLDER_CODEC = CLIENT_CODEC.up_to(4)
"""What the Java original speaks; logical connections have tests of their own."""
ROOT = ClusterPaths("/waltz")
TERMS = Terms(CLUSTER_KEY, ServerId(1), "fake", 0.0, 0.0, frozenset())
"""Connections that end for good when they break."""


class MemoryCoordinator:
    """Implements `host.Coordinator` on a tree in memory."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.closed = False
        self._waiting: list[asyncio.Future[None]] = []

    async def read(self, path: str) -> Node:
        return self.tree.read(path)

    async def children(self, path: str) -> Sequence[str]:
        return self.tree.children(path)

    async def create(
        self, path: str, data: bytes | None, *, ephemeral: bool = False, sequential: bool = False
    ) -> str:
        created = self.tree.create(path, data, sequential=sequential)
        self._wake()
        return created

    async def write(self, path: str, data: bytes, *, version: int) -> int:
        written = self.tree.write(path, data, version=version)
        self._wake()
        return written

    async def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        self.tree.delete(path, version=version)
        self._wake()

    async def changed(self, path: str, seen: Node | None) -> None:
        while not self.tree.differs(path, seen):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    async def close(self) -> None:
        self.closed = True

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def assign(self, servers: dict[Address, dict[int, int]]) -> None:
        """Give each server these partitions with their generations."""
        for name in await self.children(ROOT.server_descriptors):
            await self.delete(f"{ROOT.server_descriptors}/{name}")
        ids = {address: ServerId(index + 1) for index, address in enumerate(servers)}
        for address, server_id in ids.items():
            await self.create(
                ROOT.server_node_prefix,
                ServerDescriptor(server_id, address).encode(),
                sequential=True,
            )
        node = self.tree.read(ROOT.server_descriptors)
        assignment = PartitionAssignment(
            node.child_version,
            1 + max((key for held in servers.values() for key in held), default=0),
            {
                ids[address]: {PartitionId(p): Generation(g) for p, g in held.items()}
                for address, held in servers.items()
            },
        )
        await self.write(ROOT.server_descriptors, assignment.encode(), version=ANY_VERSION)


async def new_coordinator(partition_count: int) -> MemoryCoordinator:
    coordinator = MemoryCoordinator()
    storage = StorageEntry(Address("localhost", 1), Address("localhost", 2))
    await create_cluster(
        coordinator,
        name="fake",
        partition_count=partition_count,
        cluster_key=CLUSTER_KEY,
        storages=[storage],
    )
    return coordinator


def host_with(coordinator: MemoryCoordinator) -> Host:
    return Host(RealClock(), RealNetwork(), RealDisk(), RealRandom(), RealWorkers(), coordinator)


@dataclass
class FakePartition:
    """A log, and what the server does wrong with it."""

    log: list[tuple[RequestId, int, bytes]] = field(default_factory=list)
    appends: list[AppendRequest] = field(default_factory=list)
    feed_held: bool = False
    appends_dropped: int = 0
    """So many of the next appends are ignored in silence."""
    refusals: list[TransactionId] = field(default_factory=list)
    """The next appends are refused for these transactions."""
    mounts_not_ready: int = 0
    mounts_unanswered: int = 0
    data_failures: int = 0
    data_cuts: int = 0
    """Number of the next questions for data that end all connections."""
    data_held: bool = False
    """Whether questions for data have no answer."""
    old_marks: int = 0
    """Number of the next questions for the mark that are answered as if the log were empty."""
    generation: int = 1

    @property
    def high_water_mark(self) -> TransactionId:
        return TransactionId(len(self.log) - 1)

    def add(self, data: bytes, header: int = 0, client_id: int = 99) -> TransactionId:
        """Let another client have appended something."""
        number = len(self.log) + 1
        request_id = RequestId(ClientId(client_id), Generation(1), PartitionId(0), number)
        self.log.append((request_id, header, data))
        return self.high_water_mark


@dataclass
class _Feed:
    request_id: RequestId
    position: int
    quota: int


def one_by_one(batch: AppendBatch) -> Iterator[AppendRequest]:
    """Yield the appends of `batch` as the versions before 5 say them."""
    columns, first = batch.appends, batch.request_id
    locks = iter(columns.lock_hashes.tolist())
    for index, counts in enumerate(columns.lock_counts.tolist()):
        write_locks, read_locks, append_locks = (tuple(islice(locks, count)) for count in counts)
        yield AppendRequest(
            first._replace(sequence_number=first.sequence_number + index),
            TransactionId(int(columns.client_high_water_marks[index])),
            write_locks,
            read_locks,
            append_locks,
            int(columns.headers[index]),
            columns.bodies.data[index],
            int(columns.bodies.checksums[index]),
        )


class FakeServer:
    """Serves the partitions it is asked for; `received` is everything it was ever sent."""

    def __init__(self, partition_count: int = 1, codec: Codec = OLDER_CODEC) -> None:
        self.partitions = {number: FakePartition() for number in range(partition_count)}
        self.received: list[Message] = []
        self.connections: dict[Connection, Link] = {}
        self.histories: Histories | None = None
        """What the server knows of the histories of its log; None: it is of an earlier release."""
        self._codec = codec
        self._feeds: dict[tuple[Connection, int], list[_Feed]] = {}
        self._listener: Listener | None = None
        self._accepted: set[Connection] = set()
        """All connections, those included that have not shaken hands."""
        self._is_stopped = False

    async def start(self) -> Address:
        return await self.start_again(Address("127.0.0.1", 0))

    async def start_again(self, at: Address) -> Address:
        """Listen, where it listened before it was stopped."""
        self._is_stopped = False
        self._listener = await RealNetwork().listen(at, self._serve)
        return self.address

    @property
    def address(self) -> Address:
        assert self._listener is not None
        return self._listener.address

    async def stop(self) -> None:
        self._is_stopped = True
        if self._listener is not None:
            await self._listener.close()
        self.cut()

    def cut(self) -> None:
        """End all connections at once."""
        for connection in list(self._accepted):
            connection.close()

    def count(self, kind: type[Message]) -> int:
        return sum(isinstance(message, kind) for message in self.received)

    def feed(self, number: int = 0) -> None:
        """Send what waits in the log to everybody who has asked for it."""
        for (connection, partition_id), feeds in self._feeds.items():
            if partition_id == number:
                self._feed(connection, number, feeds)

    async def _serve(self, connection: Connection) -> None:
        if self._is_stopped:
            return  # the loop had accepted it before the listener was closed
        self._accepted.add(connection)
        try:
            arrival = await receive_arrival(connection, self._codec)
            if arrival is None:
                return
            link, data = arrival.link, arrival.rest
            if arrival.request is not None:
                assert isinstance(arrival.request, HandshakeRequest), "nothing is kept here"
                connection.write(link.encode(self._terms.answer(arrival.request, uuid4())))
                link.opened()
            self.connections[connection] = link
            while True:
                for message in link.receive(data):
                    self.received.append(message)
                    self._answer(connection, link, message)
                if not (data := await connection.read()):
                    return
        except RemoteProtocolError:
            pass
        finally:
            self._accepted.discard(connection)
            self.connections.pop(connection, None)
            for key in [key for key in self._feeds if key[0] is connection]:
                del self._feeds[key]

    def _send(self, connection: Connection, *messages: Message) -> None:
        link = self.connections.get(connection)
        if link is not None:
            connection.write(b"".join(map(link.encode, messages)))

    @property
    def _terms(self) -> Terms:
        if self.histories is None:
            return TERMS
        newest = self.histories.current if self.histories.restores else None
        return replace(TERMS, features=frozenset({Feature.HISTORY}), history=newest)

    def _answer(self, connection: Connection, link: Link, message: Message) -> None:
        if isinstance(message, HistoriesRequest) and self.histories is not None:
            answer = HistoriesAnswer(message.request_number, self.histories.to_tell())
            self._send(connection, answer)
        if not isinstance(message, ClientMessage):
            return  # a farewell
        request_id = message.request_id
        number = int(request_id.partition_id)
        partition = self.partitions.get(number)
        match message:
            case MountRequest():
                self._mount(connection, number, partition, message)
            case AppendRequest() if partition is not None:
                self._append(connection, number, partition, message)
            case AppendBatch() if partition is not None:
                for each in one_by_one(message):
                    self._append(connection, number, partition, each)
            case FeedRequest() if partition is not None:
                start = message.client_high_water_mark + 1
                quota = max(len(partition.log) - start, 100)
                self._feeds.setdefault((connection, number), []).append(
                    _Feed(request_id, start, quota)
                )
                self.feed(number)
            case FlushRequest() if partition is not None:
                self._send(connection, FlushResponse(request_id, partition.high_water_mark))
            case HighWaterMarkRequest() if partition is not None:
                mark = partition.high_water_mark
                if partition.old_marks:
                    partition.old_marks -= 1
                    mark = NOTHING
                self._send(connection, HighWaterMarkResponse(request_id, mark))
            case TransactionDataRequest() if partition is not None and partition.data_cuts:
                partition.data_cuts -= 1
                self.cut()
            case TransactionDataRequest() if partition is None or not partition.data_held:
                self._send(connection, self._data(partition, message))
            case _:
                pass  # as the original: no answer

    def _mount(
        self,
        connection: Connection,
        number: int,
        partition: FakePartition | None,
        message: MountRequest,
    ) -> None:
        request_id, mark = message.request_id, message.client_high_water_mark
        state = MountState.READY
        if partition is None or partition.mounts_not_ready:
            state = MountState.NOT_READY
            if partition is not None:
                partition.mounts_not_ready -= 1
        elif partition.mounts_unanswered:
            partition.mounts_unanswered -= 1
            return
        elif mark > partition.high_water_mark:
            state = MountState.CLIENT_AHEAD
        else:
            for position in range(mark + 1, len(partition.log)):
                self._send(connection, self._feed_data(number, position))
        self._send(connection, MountResponse(request_id, state))

    def _append(
        self, connection: Connection, number: int, partition: FakePartition, message: AppendRequest
    ) -> None:
        partition.appends.append(message)
        if partition.appends_dropped:
            partition.appends_dropped -= 1
        elif partition.refusals:
            failure = LockFailure(message.request_id, partition.refusals.pop(0))
            self._send(connection, failure)
        elif message.request_id.generation == partition.generation:
            partition.log.append((message.request_id, message.header, message.data))
            self.feed(number)

    def _data(
        self, partition: FakePartition | None, message: TransactionDataRequest
    ) -> TransactionDataResponse:
        transaction_id, request_id = message.transaction_id, message.request_id
        if partition is None or partition.data_failures:
            if partition is not None:
                partition.data_failures -= 1
            return TransactionDataResponse(request_id, transaction_id, None, 0, "not ready")
        data = partition.log[transaction_id][2]
        return TransactionDataResponse(request_id, transaction_id, data, crc32(data), None)

    def _feed_data(self, number: int, position: int) -> FeedData:
        request_id, header, _ = self.partitions[number].log[position]
        request_id = request_id._replace(partition_id=PartitionId(number))
        return FeedData(request_id, TransactionId(position), header)

    def _feed(self, connection: Connection, number: int, feeds: list[_Feed]) -> None:
        partition = self.partitions[number]
        for each in list(feeds):
            while each.quota and each.position < len(partition.log) and not partition.feed_held:
                self._send(connection, self._feed_data(number, each.position))
                each.position += 1
                each.quota -= 1
            if not each.quota:
                feeds.remove(each)
                self._send(connection, FeedSuspended(each.request_id))


class FakeCluster:
    """One server and a coordinator on one loop."""

    def __init__(self, server: FakeServer, coordinator: MemoryCoordinator) -> None:
        self.server = server
        self.coordinator = coordinator
        self.host = host_with(coordinator)

    @classmethod
    async def start(cls, partition_count: int = 1, codec: Codec = OLDER_CODEC) -> FakeCluster:
        server = FakeServer(partition_count, codec)
        await server.start()
        coordinator = await new_coordinator(partition_count)
        await coordinator.assign({server.address: dict.fromkeys(range(partition_count), 1)})
        return cls(server, coordinator)

    async def stop(self) -> None:
        await self.server.stop()
        assert isinstance(self.host.workers, RealWorkers)
        self.host.workers.close()


def run_with_cluster(
    work: Callable[[FakeCluster], Awaitable[T]],
    partition_count: int = 1,
    codec: Codec = OLDER_CODEC,
) -> T:
    """Run `work` beside a server of its own; fails if it takes implausibly long."""

    async def main() -> T:
        cluster = await FakeCluster.start(partition_count, codec)
        try:
            async with asyncio.timeout(20):
                return await work(cluster)
        finally:
            await cluster.stop()

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Return once `condition()` holds; whoever waits for ever is stopped by its test."""
    while not condition():
        await asyncio.sleep(0.002)


@contextmanager
def served_in_thread(server: FakeServer) -> Iterator[None]:
    """Run `server` on a loop in another thread, for tests of what blocks."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result()
    try:
        yield
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def server_thread(partition_count: int = 1) -> Iterator[FakeServer]:
    server = FakeServer(partition_count)
    with served_in_thread(server):
        yield server


def hosts_for(server: FakeServer) -> Callable[[], tuple[Host, Callable[[], None]]]:
    """Make hosts, each with a coordinator of its own, of a cluster with this one server."""

    def new_host() -> tuple[Host, Callable[[], None]]:
        coordinator = MemoryCoordinator()
        prepared = asyncio.new_event_loop()
        try:
            count = len(server.partitions)

            async def prepare() -> MemoryCoordinator:
                fresh = await new_coordinator(count)
                await fresh.assign({server.address: dict.fromkeys(range(count), 1)})
                return fresh

            thread = threading.Thread(
                target=lambda: setattr(
                    coordinator, "tree", prepared.run_until_complete(prepare()).tree
                )
            )
            thread.start()
            thread.join()
        finally:
            prepared.close()
        host = host_with(coordinator)
        assert isinstance(host.workers, RealWorkers)
        return host, host.workers.close

    return new_host


def mark(number: int) -> TransactionId:
    return TransactionId(number) if number >= 0 else NOTHING
