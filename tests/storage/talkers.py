"""The other ends of a node's connections: servers and tools, over loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.storage.support import KEY, SESSION, batch
from waltz.host import Connection
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.real_host import real_host
from waltz.types import NO_SESSION, Address, PartitionId
from waltz.wire.admin_protocol import (
    ADMIN_CODEC,
    AdminFailureResponse,
    AdminOpenRequest,
    AdminSuccessResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Codec, Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AppendRecordsRequest,
    FailureResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    SuccessResponse,
)

LOOPBACK = Address("127.0.0.1", 0)
NOBODY = PartitionId(-1)
P0, P1, P2 = PartitionId(0), PartitionId(1), PartitionId(2)


def config(directory: Path, **changes: object) -> StorageConfig:
    values: dict[str, object] = {
        "directory": str(directory),
        "cluster_key": KEY,
        "partition_count": 3,
        "data_address": LOOPBACK,
        "admin_address": LOOPBACK,
        "assigned_partitions": frozenset((P0, P1)),
    }
    return StorageConfig(**(values | changes))  # type: ignore[arg-type]


class Talker:
    """The other end of a connection to a node."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection = connection
        self.link = link
        self.answers: list[Message] = []

    @classmethod
    async def connect(cls, address: Address, admin: bool, codec: Codec = STORAGE_CODEC) -> Talker:
        connection = await real_host(None).network.connect(address)
        talker = cls(connection, Link(ADMIN_CODEC if admin else codec, "a test"))
        connection.write(talker.link.hello())
        while talker.link.version is None:
            talker.answers += talker.link.receive(await connection.read())
        return talker

    def send(self, *messages: Message) -> None:
        self.connection.write(b"".join(self.link.encode(message) for message in messages))

    async def receive(self, count: int) -> list[Message]:
        while len(self.answers) < count:
            data = await self.connection.read()
            assert data, f"the connection ended after {self.answers}"
            self.answers += self.link.receive(data)
        answers, self.answers = self.answers[:count], self.answers[count:]
        return answers

    async def ask(self, message: Message) -> Message:
        self.send(message)
        (answer,) = await self.receive(1)
        return answer

    async def refusal(self, message: Message) -> str:
        answer = await self.ask(message)
        assert isinstance(answer, FailureResponse | AdminFailureResponse), answer
        return answer.message


async def data_talker(node: StorageNode, codec: Codec = STORAGE_CODEC) -> Talker:
    talker = await Talker.connect(node.data_address, admin=False, codec=codec)
    assert await talker.ask(OpenRequest(NO_SESSION, -1, NOBODY, KEY, 3)) == SuccessResponse(
        NO_SESSION, -1, NOBODY
    )
    return talker


async def admin_talker(node: StorageNode) -> Talker:
    talker = await Talker.connect(node.admin_address, admin=True)
    assert await talker.ask(AdminOpenRequest(-1, KEY, 3)) == AdminSuccessResponse(-1)
    return talker


async def next_of(talker: Talker, partition: PartitionId) -> int:
    answer = await talker.ask(MaxTransactionIdRequest(SESSION, 0, partition, offline=False))
    assert isinstance(answer, MaxTransactionIdResponse), answer
    return answer.transaction_id + 1


async def load(talker: Talker, partition: PartitionId, answered: Callable[[int], None]) -> None:
    """Append one record after the other until the connection ends; tell after each answer how many
    the partition holds at least."""
    first = await next_of(talker, partition)
    talker.send(*(append(number, first + number, 1, partition) for number in range(30)))
    while data := await talker.connection.read():
        for message in talker.link.receive(data):
            assert isinstance(message, SuccessResponse), message
            answered(first + message.sequence_number + 1)
    talker.connection.close()


def append(
    number: int, first: int, count: int, partition: PartitionId = P0
) -> AppendRecordsRequest:
    return AppendRecordsRequest(
        SESSION, number, partition, batch(first, count, partition=partition), offline=False
    )
