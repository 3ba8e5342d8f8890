"""A storage node on virtual time: its disk is the test's, seconds cost nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

from tests.storage.support import DIRECTORY, KEY, SESSION, batch, t
from waltz.host import Connection, Host
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import (
    Process,
    SimulatedClock,
    SimulatedLoop,
    SimulatedRandom,
    SimulatedWorkers,
)
from waltz.sim.simulated_coordinator import SimulatedCoordinatorService
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.simulated_network import SimulatedNetwork, draw_weather
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.types import NO_SESSION, Address, PartitionId, SessionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    AdminFailureResponse,
    AdminOpenRequest,
    AdminSuccessResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AppendRecordsRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    RecordListRequest,
    RecordListResponse,
    SuccessResponse,
)

NODE = Process("node")
DATA, ADMIN = Address("node", 1), Address("node", 2)
P0, P1 = PartitionId(0), PartitionId(1)

M = TypeVar("M", bound=Message)


class World:
    """A node that runs, and a peer that asks it."""

    def __init__(self, seed: int, disk: SimulatedDisk, changes: dict[str, Any]) -> None:
        self.loop = SimulatedLoop(seed)
        self.disk = disk
        self._random = Random(seed)
        self._network = SimulatedNetwork(
            self.loop, self._random, draw_weather(self._random), RunTrace()
        )
        self._changes = changes
        self._coordinator = SimulatedCoordinatorService(self.loop, self._random)
        self.node = self.new_node()

    def new_node(self) -> StorageNode:
        values: dict[str, Any] = {
            "directory": DIRECTORY,
            "cluster_key": KEY,
            "partition_count": 2,
            "data_address": DATA,
            "admin_address": ADMIN,
            "assigned_partitions": frozenset((P0, P1)),
            "ends_with_partition": True,
        }
        return StorageNode(self._host(NODE), StorageConfig(**(values | self._changes)))

    def _host(self, process: Process) -> Host:
        return Host(
            clock=SimulatedClock(self.loop, self._random),
            network=self._network.door(process),
            disk=self.disk,
            random=SimulatedRandom(self._random),
            workers=SimulatedWorkers(self.loop, self._random),
            coordinator=self._coordinator.door(process),
        )

    async def data_peer(self) -> PeerOfNode:
        return await self._peer(DATA, Link(STORAGE_CODEC, "a test"), OpenRequest(*NOBODY, KEY, 2))

    async def admin_peer(self) -> PeerOfNode:
        return await self._peer(ADMIN, Link(ADMIN_CODEC, "a test"), AdminOpenRequest(-1, KEY, 2))

    async def _peer(self, address: Address, link: Link, opening: Message) -> PeerOfNode:
        peer = PeerOfNode(await self._network.door(Process("peer")).connect(address), link)
        await peer.open(opening)
        return peer


NOBODY = (NO_SESSION, -1, PartitionId(-1))


class PeerOfNode:
    """The other end of a connection; one request at a time."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self._connection = connection
        self._link = link
        self._answers: list[Message] = []

    async def open(self, opening: Message) -> None:
        self._connection.write(self._link.hello())
        while self._link.version is None:
            self._answers += self._link.receive(await self._connection.read())
        answer = await self.ask(opening)
        assert isinstance(answer, SuccessResponse | AdminSuccessResponse), answer

    async def ask(self, message: Message) -> Message:
        self._connection.write(self._link.encode(message))
        while not self._answers:
            data = await self._connection.read()
            assert data, "the connection ended"
            self._answers += self._link.receive(data)
        return self._answers.pop(0)

    async def succeed(self, message: Message) -> None:
        answer = await self.ask(message)
        assert isinstance(answer, SuccessResponse | AdminSuccessResponse), answer

    async def refusal(self, message: Message) -> str:
        answer = await self.ask(message)
        assert isinstance(answer, FailureResponse | AdminFailureResponse), answer
        return answer.message

    async def last_id(self, partition_id: PartitionId = P0) -> int:
        request = MaxTransactionIdRequest(SESSION, 0, partition_id, offline=False)
        answer = await self.ask(request)
        assert isinstance(answer, MaxTransactionIdResponse), answer
        return answer.transaction_id

    async def read(self, first: int, count: int) -> list[bytes]:
        """The data of the records, all of partition 0."""
        answer = await self.ask(RecordListRequest(SESSION, 0, P0, t(first), count))
        assert isinstance(answer, RecordListResponse), answer
        return [record.data for record in answer.records.records()]


def append(
    first: int,
    count: int,
    *,
    size: int | None = None,
    partition: PartitionId = P0,
    session: int = 0,
) -> AppendRecordsRequest:
    records = batch(first, count, size=size, partition=partition)
    return AppendRecordsRequest(SessionId(session), first, partition, records, offline=False)


def run_node(
    test: Callable[[World], Awaitable[None]], disk: SimulatedDisk, *, seed: int = 1, **changes: Any
) -> None:
    """Run `test` against a node on `disk`, with `changes` to its configuration; it must not have
    failed unseen."""
    world = World(seed, disk, changes)

    async def main() -> None:
        await world.node.start()
        await test(world)
        await world.node.stop()

    try:
        world.loop.run_until_complete(world.loop.spawn(NODE, main()))
        assert world.loop.failures() == []
    finally:
        world.loop.shut_down()
