"""Storage directories that our node has written, through its port, with all that a life brings."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from uuid import UUID
from zlib import crc32

from tests.storage.independent_reader import read_files
from waltz.host import Connection, Host
from waltz.record import NewRecord, RecordBatch, pack_records
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.clock import RealClock
from waltz.system.real_host import real_host
from waltz.types import NO_SESSION, Address, PartitionId, SessionId, TransactionId
from waltz.wire.handshake import Link
from waltz.wire.message import Message
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AppendRecordsRequest,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    OpenRequest,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)

KEY = UUID("00112233-4455-6677-8899-aabbccddeeff")
LOOPBACK = Address("127.0.0.1", 0)
NOBODY = PartitionId(-1)


class SteadyClock(RealClock):
    """The wall clock of every run says the same: a second later each time it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self._milliseconds = 1_700_000_000_000

    def wall_milliseconds(self) -> int:
        self._milliseconds += 1_000
        return self._milliseconds


class SeededRandom:
    """Implements `host.Random`."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def steady_host(seed: str) -> Host:
    return replace(real_host(None), clock=SteadyClock(), random=SeededRandom(seed))


def records(partition: int, first: int, sizes: Sequence[int], *, draw: Random) -> RecordBatch:
    """Records of the partition with random data of the given sizes."""
    new = []
    for number, size in enumerate(sizes, first):
        data = draw.randbytes(size)
        request_id = struct.pack(">iiii", 7, 3, partition, number)
        new.append(NewRecord(request_id, draw.getrandbits(31), data, crc32(data)))
    return pack_records(TransactionId(first), new)


@dataclass
class NodeClient:
    """What a server does to one partition of a node, over a connection of its own."""

    connection: Connection
    link: Link
    partition: PartitionId
    session: SessionId = NO_SESSION
    next_transaction_id: int = 0

    @classmethod
    async def connect(
        cls, node: StorageNode, partition: int, *, key: UUID = KEY, partition_count: int
    ) -> NodeClient:
        connection = await real_host(None).network.connect(node.data_address)
        link = Link(STORAGE_CODEC, "a test")
        connection.write(link.hello())
        while link.version is None:
            link.receive(await connection.read())
        client = cls(connection, link, PartitionId(partition))
        opened = await client.ask(OpenRequest(NO_SESSION, -1, NOBODY, key, partition_count))
        assert isinstance(opened, SuccessResponse), opened
        return client

    async def ask(self, request: Message) -> Message:
        self.connection.write(self.link.encode(request))
        answers: list[Message] = []
        while not answers:
            data = await self.connection.read()
            assert data, "the node ended the connection"
            answers = self.link.receive(data)
        (answer,) = answers
        return answer

    async def start_session(self, session: int, *, keep: int | None = None) -> None:
        """Open a session: cut the log after `keep`, if given, and store its mark."""
        self.session = SessionId(session)
        if keep is not None:
            await self.ask(
                TruncateRequest(self.session, 1, self.partition, TransactionId(keep), False)
            )
        answer = await self.ask(MaxTransactionIdRequest(self.session, 2, self.partition, False))
        assert isinstance(answer, MaxTransactionIdResponse), answer
        self.next_transaction_id = answer.transaction_id + 1
        request = SetLowWaterMarkRequest(
            self.session, 3, self.partition, answer.transaction_id, False
        )
        done = await self.ask(request)
        assert isinstance(done, SuccessResponse), done

    async def append(self, draw: Random, sizes: Sequence[int]) -> None:
        batch = records(self.partition, self.next_transaction_id, sizes, draw=draw)
        done = await self.ask(AppendRecordsRequest(self.session, 4, self.partition, batch, False))
        assert isinstance(done, SuccessResponse), done
        self.next_transaction_id = batch.next_transaction_id


@dataclass(frozen=True)
class History:
    """A directory as it was left, and as it was at earlier moments, the oldest first."""

    name: str
    key: UUID
    partition_count: int
    files: dict[str, bytes]
    earlier: tuple[dict[str, bytes], ...]


@dataclass(frozen=True)
class Plan:
    """A workload: sessions of two partitions, each with the mark it cuts to and what it appends.

    `sizes` are bounds of the sizes of data; equal ones make records of one size.
    """

    name: str
    segment_bytes_threshold: int
    sizes: tuple[int, int]
    sessions: tuple[tuple[int | None, int], ...]
    """Per session: how many records to cut off the end, None for no truncation; then how many to
    append."""
    first_session: int = 0


def make_history(directory: Path, plan: Plan, *, key: UUID = KEY) -> History:
    """Let a node carry out `plan` in `directory`, fresh or of that cluster, and stop cleanly."""
    moments: list[dict[str, bytes]] = []

    async def main() -> None:
        draw = Random(plan.name)
        node = StorageNode(
            steady_host(plan.name),
            StorageConfig(
                directory=str(directory),
                cluster_key=key,
                partition_count=2,
                data_address=LOOPBACK,
                admin_address=LOOPBACK,
                segment_bytes_threshold=plan.segment_bytes_threshold,
                assigned_partitions=frozenset((PartitionId(0), PartitionId(1))),
            ),
        )
        await node.start()
        running = asyncio.create_task(node.run())
        try:
            clients = [
                await NodeClient.connect(node, number, key=key, partition_count=2)
                for number in (0, 1)
            ]
            for session, (cut, count) in enumerate(plan.sessions, plan.first_session):
                for client in clients:
                    keep = None if cut is None else client.next_transaction_id - 1 - cut
                    await client.start_session(session, keep=keep)
                    sizes = [draw.randint(*plan.sizes) for _ in range(count)]
                    await client.append(draw, sizes[: count // 2])
                    moments.append(read_files(directory))
                    await client.append(draw, sizes[count // 2 :])
                    moments.append(read_files(directory))
            for client in clients:
                client.connection.close()
        finally:
            await node.stop()
        await running

    directory.mkdir(exist_ok=True)
    asyncio.run(main())
    return History(plan.name, key, 2, read_files(directory), tuple(moments))
