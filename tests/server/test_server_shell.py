"""A real server with real storage nodes on simulated machines, spoken to frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from uuid import UUID
from zlib import crc32

import pytest

from waltz.cluster.cluster_shell import (
    ClusterView,
    StorageEntry,
    create_cluster,
    read_partition_metadata,
)
from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.host import Connection, Host
from waltz.limits import HANDSHAKE_SECONDS_MAX, WRITE_BUFFER_BYTES_HIGH
from waltz.machine_shell import run as run_machine
from waltz.server.server_shell import Server, ServerConfig
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.types import (
    NOTHING,
    Address,
    ClientId,
    Generation,
    PartitionId,
    RequestId,
    TransactionId,
)
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    AppendRequest,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
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
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Message

T = TypeVar("T", bound=Message)

CLUSTER_KEY = UUID(int=7)
OLDER_CODEC = CLIENT_CODEC.up_to(4)
"""What the Java original speaks; logical connections have tests of their own."""
PARTITIONS = (PartitionId(0), PartitionId(1))
ABSENT = PartitionId(9)
STORAGES = ("storage-0", "storage-1", "storage-2")
SERVER = Address("server", 7000)


class Caller:
    """A client that says and hears single messages."""

    def __init__(self, connection: Connection, client: int) -> None:
        self.connection = connection
        self.client = client
        self.link = Link(OLDER_CODEC, CLIENT_GREETING)
        self.generation = 1
        self.heard: list[Message] = []
        self._sequence = 0

    @classmethod
    async def connect(cls, host: Host, client: int = 7) -> Caller:
        caller = cls(await host.network.connect(SERVER), client)
        caller.connection.write(caller.link.hello())
        while caller.link.version is None:
            caller.heard += caller.link.receive(await caller.connection.read())
        return caller

    def id(self, partition: PartitionId = PARTITIONS[0]) -> RequestId:
        self._sequence += 1
        return RequestId(
            ClientId(self.client), Generation(self.generation), partition, self._sequence
        )

    def say(self, *messages: Message) -> None:
        self.connection.write(b"".join(map(self.link.encode, messages)))

    async def hear(self, kind: type[T]) -> T:
        """Return the next message, which must be of that kind. EOFError: the server hung up."""
        message = await self.hear_any()
        assert isinstance(message, kind), message
        return message

    async def hear_any(self) -> Message:
        while not self.heard:
            data = await self.connection.read()
            if not data:
                raise EOFError
            self.heard += self.link.receive(data)
        return self.heard.pop(0)

    async def ask(self, question: Message, kind: type[T]) -> T:
        self.say(question)
        return await self.hear(kind)

    async def mount(self, mark: int = -1, partition: PartitionId = PARTITIONS[0]) -> None:
        """Mount, as often as it takes, and ask for the feed; fed transactions stay unheard."""
        while True:
            request_id = self.id(partition)
            self.say(MountRequest(request_id, TransactionId(mark), 0))
            while not any(isinstance(message, MountResponse) for message in self.heard):
                self.heard += self.link.receive(await self.connection.read())
            answer = self.heard.pop()
            assert isinstance(answer, MountResponse)
            if answer.state is MountState.READY:
                self.say(FeedRequest(request_id, TransactionId(mark + len(self.heard))))
                return
            await asyncio.sleep(0.1)

    def append(self, data: bytes, mark: int = -1, *locks: int) -> RequestId:
        request_id = self.id()
        self.say(
            AppendRequest(request_id, TransactionId(mark), locks, (), (), 5, data, crc32(data))
        )
        return request_id


class World:
    """Three storage nodes and a server, each on its machine."""

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.server: Server | None = None

    async def start(self) -> None:
        await self.sites.run("creator", self._create)
        for name in STORAGES:
            self.sites.add(name, partial(self._run_storage, name), SimulatedDisk(["/storage"]))
        self.sites.add("server", self._run_server, SimulatedDisk())
        while self.server is None:
            await asyncio.sleep(0.1)

    @staticmethod
    async def _create(host: Host) -> None:
        await create_cluster(
            host.coordinator,
            name="test",
            partition_count=len(PARTITIONS),
            cluster_key=CLUSTER_KEY,
            storages=[StorageEntry(Address(name, 7000), Address(name, 7001)) for name in STORAGES],
        )

    @staticmethod
    async def _run_storage(name: str, host: Host) -> None:
        config = StorageConfig(
            directory="/storage",
            cluster_key=CLUSTER_KEY,
            partition_count=len(PARTITIONS),
            data_address=Address(name, 7000),
            admin_address=Address(name, 7001),
            assigned_partitions=frozenset(PARTITIONS),
            ends_with_partition=True,
        )
        node = StorageNode(host, config)
        await node.start()
        await node.run()

    async def _run_server(self, host: Host) -> None:
        server = Server(host, ServerConfig(SERVER))
        await server.start()
        self.server = server
        await server.run()
        await asyncio.Event().wait()


Scene = Callable[[World, Host], Coroutine[Any, Any, None]]


def play(scene: Scene, seeds: int = 3) -> None:
    for seed in range(seeds):
        loop = SimulatedLoop(seed)
        sites = Sites(loop, seed, RunTrace())

        async def run(sites: Sites = sites) -> None:
            world = World(sites)
            await world.start()
            await sites.run("client", partial(scene, world))

        try:
            loop.run_until_complete(asyncio.wait_for(run(), 300.0))
            assert loop.failures() == []
        finally:
            loop.shut_down()


def test_append_comes_back_in_the_feed_and_its_data_can_be_read() -> None:
    """PM-02, SV-06, CS-16, CS-17."""

    async def scene(_: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        request_id = caller.append(b"hello")
        assert await caller.hear(FeedData) == FeedData(request_id, TransactionId(0), 5)
        question = TransactionDataRequest(caller.id(), TransactionId(0))
        answer = await caller.ask(question, TransactionDataResponse)
        assert (answer.data, answer.checksum) == (b"hello", crc32(b"hello"))
        missing = TransactionDataRequest(caller.id(), TransactionId(1))
        assert (await caller.ask(missing, TransactionDataResponse)).data is None
        mark = await caller.ask(HighWaterMarkRequest(caller.id()), HighWaterMarkResponse)
        assert mark.transaction_id == 0
        flushed = await caller.ask(FlushRequest(caller.id()), FlushResponse)
        assert flushed.transaction_id == 0

    play(scene)


def test_burst_of_appends_is_fed_in_order_and_conflicts_are_refused() -> None:
    """PM-04, PM-20, SV-09, SV-16."""

    async def scene(_: World, host: Host) -> None:
        writer, reader = await Caller.connect(host, 7), await Caller.connect(host, 8)
        await writer.mount()
        await reader.mount()
        first = [writer.append(b"%d" % number) for number in range(60)]
        winner = writer.append(b"w", -1, 42)
        loser = writer.append(b"l", -1, 42)
        for number, request_id in enumerate([*first, winner]):
            expected = FeedData(request_id, TransactionId(number), 5)
            assert await reader.hear(FeedData) == expected
        heard = [await writer.hear(Message) for _ in range(62)]
        assert LockFailure(loser, TransactionId(60)) in heard

    play(scene)


def test_quota_is_refilled_on_request() -> None:
    async def scene(_: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        for number in range(250):
            caller.append(b"%d" % number)
        expected = 0
        while expected < 250:
            message = await caller.hear(Message)
            if isinstance(message, FeedSuspended):
                caller.say(FeedRequest(message.request_id, TransactionId(expected - 1)))
                continue
            assert isinstance(message, FeedData)
            assert message.transaction_id == expected
            expected += 1

    play(scene, seeds=1)


def test_new_client_reads_old_transactions_from_the_replicas_after_a_restart() -> None:
    """SV-10, SV-22: the new server process has nothing cached."""

    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        for number in range(30):
            caller.append(b"%d" % number)
        for _ in range(30):
            await caller.hear(FeedData)
        server = Server(host, ServerConfig(Address("client", 7000)))
        assert world.server is not None
        await world.server.stop()
        await server.start()
        later = Caller(await host.network.connect(Address("client", 7000)), 8)
        later.connection.write(later.link.hello())
        while later.link.version is None:
            later.heard += later.link.receive(await later.connection.read())
        await later.mount()
        assert [m.transaction_id for m in later.heard if isinstance(m, FeedData)] == [*range(30)]
        later.heard.clear()
        question = TransactionDataRequest(later.id(), TransactionId(17))
        assert (await later.ask(question, TransactionDataResponse)).data == b"17"
        await server.stop()

    play(scene)


def test_server_begins_a_new_store_session_after_so_many_transactions() -> None:
    """SV-28: and its clients notice nothing."""

    async def scene(world: World, host: Host) -> None:
        assert world.server is not None
        await world.server.stop()
        server = Server(host, ServerConfig(Address("client", 7000), checkpoint_transactions=10))
        await server.start()
        caller = Caller(await host.network.connect(Address("client", 7000)), 8)
        caller.connection.write(caller.link.hello())
        while caller.link.version is None:
            caller.heard += caller.link.receive(await caller.connection.read())
        caller.generation = 2
        await caller.mount()
        before = await read_partition_metadata(host.coordinator, PARTITIONS[0])
        for number in range(45):
            request_id = caller.append(b"%d" % number)
            assert await caller.hear(FeedData) == FeedData(request_id, TransactionId(number), 5)
        after = await read_partition_metadata(host.coordinator, PARTITIONS[0])
        assert after.session_id - before.session_id >= 3
        await server.stop()

    play(scene)


def test_partition_that_is_not_here_is_not_ready() -> None:
    """SV-04."""

    async def scene(_: World, host: Host) -> None:
        caller = await Caller.connect(host)
        mount = MountRequest(caller.id(ABSENT), NOTHING, 0)
        assert (await caller.ask(mount, MountResponse)).state is MountState.NOT_READY
        question = TransactionDataRequest(caller.id(ABSENT), TransactionId(0))
        answer = await caller.ask(question, TransactionDataResponse)
        assert answer.error == "partition not ready"
        caller.say(FlushRequest(caller.id(ABSENT)), HighWaterMarkRequest(caller.id(ABSENT)))
        assert (await caller.ask(mount, MountResponse)).state is MountState.NOT_READY

    play(scene, seeds=1)


def test_server_tells_of_itself() -> None:
    """CS-22, SV-26, SV-27."""

    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        await caller.mount(partition=PARTITIONS[1])
        assigned = await caller.ask(
            ServerPartitionsAssignmentRequest(caller.id()), ServerPartitionsAssignmentResponse
        )
        assert assigned.partition_ids == PARTITIONS
        health = await caller.ask(
            ServerPartitionsHealthRequest(caller.id()), ServerPartitionsHealthResponse
        )
        assert health.health == ((PARTITIONS[0], True), (PARTITIONS[1], True))
        reached = await caller.ask(
            CheckStorageConnectivityRequest(caller.id()), CheckStorageConnectivityResponse
        )
        assert reached.connectivity == tuple((f"{name}:7000", True) for name in STORAGES)
        added = await caller.ask(
            AddPreferredPartitionRequest(caller.id(), PARTITIONS), AddPreferredPartitionResponse
        )
        removed = await caller.ask(
            RemovePreferredPartitionRequest(caller.id(), PARTITIONS),
            RemovePreferredPartitionResponse,
        )
        assert added.result
        assert removed.result

    play(scene, seeds=1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(b"GET / HTTP/1.0\r\n\r\n", id="not a frame"),
        pytest.param(b"L\x00\x04\x00\x00\x00\x01\x63", id="unknown message"),
        pytest.param(b"L\x00\x04\x7f\xff\xff\xff", id="endless frame"),
    ],
)
def test_client_that_breaks_the_protocol_is_cut_off_and_others_are_not(fault: bytes) -> None:
    """CS-04, CS-27."""

    async def scene(_: World, host: Host) -> None:
        good, bad = await Caller.connect(host, 7), await Caller.connect(host, 8)
        await good.mount()
        bad.connection.write(fault)
        with pytest.raises(EOFError):
            await bad.hear(Message)
        request_id = good.append(b"still here")
        assert (await good.hear(FeedData)).request_id == request_id

    play(scene, seeds=1)


def test_damaged_append_ends_the_connection() -> None:
    """CS-13, CS-26."""

    async def scene(_: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        frame = caller.link.encode(
            AppendRequest(caller.id(), NOTHING, (), (), (), 0, b"hello", crc32(b"hello"))
        )
        caller.connection.write(frame[:-6] + bytes([frame[-6] ^ 1]) + frame[-5:])
        with pytest.raises(EOFError):
            await caller.hear(Message)

    play(scene, seeds=1)


def test_feed_request_ahead_of_the_log_ends_the_connection() -> None:
    async def scene(_: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        caller.say(FeedRequest(caller.id(), TransactionId(5)))
        with pytest.raises(EOFError):
            await caller.hear(Message)

    play(scene, seeds=1)


def test_connection_without_a_hello_is_closed() -> None:
    async def scene(_: World, host: Host) -> None:
        connection = await host.network.connect(SERVER)
        started_at = host.clock.now()
        assert await connection.read(), "the server's own Hello"
        assert await connection.read() == b""
        assert host.clock.now() - started_at >= HANDSHAKE_SECONDS_MAX - 1.0

    play(scene, seeds=1)


def test_client_that_does_not_read_holds_up_nobody_and_misses_nothing() -> None:
    """SV-19, CS-29."""

    async def scene(_: World, host: Host) -> None:
        writer, sleeper = await Caller.connect(host, 7), await Caller.connect(host, 8)
        await writer.mount()
        await sleeper.mount()
        body = bytes(WRITE_BUFFER_BYTES_HIGH // 2)
        for _number in range(8):
            writer.append(body)
        for number in range(8):
            assert (await writer.hear(FeedData)).transaction_id == number
        for number in range(8):
            sleeper.say(TransactionDataRequest(sleeper.id(), TransactionId(number)))
        await asyncio.sleep(5.0)
        writer.append(b"meanwhile")
        assert (await writer.hear(FeedData)).transaction_id == 8
        fed, bodies = 0, 0
        while fed < 9 or bodies < 8:
            message = await sleeper.hear(Message)
            if isinstance(message, FeedData):
                assert message.transaction_id == fed
                fed += 1
            else:
                assert isinstance(message, TransactionDataResponse)
                assert message.data == body
                bodies += 1

    play(scene)


def test_lost_connections_are_forgotten() -> None:
    """SV-17."""

    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        caller.connection.close()
        assert world.server is not None
        while world.server._clients:
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        machine = world.server._partitions.running[PARTITIONS[0]].machine
        assert len(machine._mounts) == 0
        assert len(machine._feeds) == 0

    play(scene, seeds=1)


def test_stopping_decides_what_was_taken_and_leaves_the_cluster() -> None:
    """SV-31."""

    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        sent = [caller.append(b"%d" % number) for number in range(20)]
        assert (await caller.hear(FeedData)).request_id == sent[0]
        assert world.server is not None
        await world.server.stop()
        await world.server.stop()
        while (data := await caller.connection.read()) != b"":
            caller.heard += caller.link.receive(data)
        fed = [message.request_id for message in caller.heard if isinstance(message, FeedData)]
        assert fed == sent[1 : 1 + len(fed)]
        with pytest.raises(ConnectionFailedError):
            await host.network.connect(SERVER)
        view = ClusterView(host)
        await view.start()
        assert view.current.partitions == {}
        await view.stop()

    play(scene)


def kept_tasks() -> int:
    """The number of tasks that run the machines of servers for as long as these live."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return sum(getattr(each, "__qualname__", "") == run_machine.__qualname__ for each in coroutines)


def test_port_in_use_is_refused() -> None:
    """SV-32."""

    async def scene(world: World, host: Host) -> None:
        assert world.server is not None
        first = await host.network.listen(
            Address("client", 7000), lambda connection: asyncio.sleep(0)
        )
        known = kept_tasks()
        with pytest.raises(ConfigurationError, match="7000"):
            await Server(host, ServerConfig(Address("client", 7000))).start()
        assert kept_tasks() == known, "nothing is left behind"
        await first.close()

    play(scene, seeds=1)
