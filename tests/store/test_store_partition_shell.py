"""The store on real connections: three storage nodes on loopback, a coordinator, real files.

Rows ST-01, ST-02, ST-06, ST-09, ST-11, ST-14, ST-17, ST-39, ST-43,
SD-17.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from struct import pack
from uuid import UUID
from zlib import crc32

import pytest

from waltz.cluster.cluster_shell import StorageEntry, create_cluster, read_partition_metadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.store_params import StoreParams
from waltz.errors import PartitionNotReadyError, UnavailableError
from waltz.host import Host
from waltz.record import NewRecord, RecordBatch
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreEvent, StoreOpened
from waltz.store.store_partition_shell import StorageConnections, StorePartition
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.types import Address, ClientId, Generation, PartitionId, ReplicaId, TransactionId
from waltz.wire.header_columns import header_columns
from waltz.wire.message import Codec
from waltz.wire.report_protocol import Standing
from waltz.wire.storage_protocol import CLIENT_NOTES_SINCE, STORAGE_CODEC, ClientNote

LOOPBACK = Address("127.0.0.1", 0)
KEY = UUID(int=7)
PARTITION = PartitionId(0)
PARAMS = StoreParams(KEY, 1)


class Nodes:
    """Three storage nodes, any of which can be stopped and started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._host = real_host(None)
        self._nodes: dict[int, StorageNode] = {}
        self._configs: dict[int, StorageConfig] = {}

    async def start(self, number: int) -> None:
        path = self._directory / str(number)
        path.mkdir(exist_ok=True)
        config = self._configs.get(number) or StorageConfig(
            directory=str(path),
            cluster_key=KEY,
            partition_count=1,
            data_address=LOOPBACK,
            admin_address=LOOPBACK,
            assigned_partitions=frozenset({PARTITION}),
        )
        node = self._nodes[number] = StorageNode(self._host, config)
        await node.start()
        self._configs[number] = StorageConfig(
            directory=str(path),
            cluster_key=KEY,
            partition_count=1,
            data_address=node.data_address,
            admin_address=node.admin_address,
            assigned_partitions=frozenset({PARTITION}),
        )

    async def stop(self, number: int) -> None:
        await self._nodes.pop(number).stop()

    async def stop_all(self) -> None:
        for number in list(self._nodes):
            await self.stop(number)

    def replica_id(self, number: int) -> ReplicaId:
        return ReplicaId(str(self._configs[number].data_address))

    def entries(self) -> list[StorageEntry]:
        return [
            StorageEntry(config.data_address, config.admin_address)
            for config in self._configs.values()
        ]


class Store:
    """A store partition that runs, and what it has said."""

    def __init__(self, host: Host, generation: int = 1, *, codec: Codec = STORAGE_CODEC) -> None:
        self.connections = StorageConnections(host, PARAMS, codec)
        self.events: list[StoreEvent] = []
        self.committed: list[RecordBatch] = []
        self._changed = asyncio.Event()
        self.partition = StorePartition(
            host, PARTITION, Generation(generation), self.connections, on_event=self._take
        )
        self._task = asyncio.create_task(self.partition.run())

    def _take(self, event: StoreEvent) -> None:
        self.events.append(event)
        if isinstance(event, Committed):
            self.committed.append(event.batch)
        self._changed.set()

    @property
    def committed_count(self) -> int:
        return sum(map(len, self.committed))

    @property
    def high_water_mark(self) -> int:
        """The last one that was told of, in whatever session."""
        marks = [event.high_water_mark for event in self.events if isinstance(event, StoreOpened)]
        return max(marks + [batch.last_transaction_id for batch in self.committed])

    @property
    def sessions(self) -> list[int]:
        return [event.session_id for event in self.events if isinstance(event, StoreOpened)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def append(self, *texts: str) -> None:
        wanted = self.committed_count + len(texts)
        self.partition.append([new_record(text) for text in texts])
        await self.until(lambda: self.committed_count >= wanted)

    async def close(self) -> None:
        self.partition.close()
        await self._task
        await self.connections.close()


def new_record(text: str) -> NewRecord:
    data = text.encode()
    return NewRecord(pack(">4i", len(data), 0, PARTITION, crc32(data) >> 1), 0, data, crc32(data))


def texts(batch: RecordBatch) -> list[str]:
    return [batch.data(index).decode() for index in range(len(batch))]


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[tuple[Host, Nodes]]:
    coordinator = EmbeddedCoordinatorServer(str(directory / "coordinator.json"))
    await coordinator.start(LOOPBACK)
    host = real_host(coordinator.address)
    nodes = Nodes(directory)
    try:
        for number in range(3):
            await nodes.start(number)
        await create_cluster(
            host.coordinator,
            name="test",
            partition_count=1,
            cluster_key=KEY,
            storages=nodes.entries(),
        )
        yield host, nodes
    finally:
        await host.coordinator.close()
        await nodes.stop_all()
        await coordinator.stop()


def test_appends_are_committed_in_order_and_read_back(tmp_path: Path) -> None:
    """ST-02, ST-11, ST-17."""

    async def main() -> None:
        async with world(tmp_path) as (host, _):
            store = Store(host)
            said = [f"record {number}" for number in range(3000)]
            store.partition.append([new_record(text) for text in said])
            await store.until(lambda: store.committed_count == len(said))
            assert [text for batch in store.committed for text in texts(batch)] == said
            assert len(store.committed) < 100
            assert store.high_water_mark == len(said) - 1
            found = await store.partition.reads.read(TransactionId(2995), 100)
            assert found.first_transaction_id == 2995
            assert texts(found) == said[2995:]
            assert len(await store.partition.reads.read(TransactionId(3000), 10)) == 0
            assert dict(store.connections.connectivity()) == {
                replica_id: True for replica_id, _ in store.connections.connectivity()
            }
            await store.close()
            assert isinstance(store.events[-1], StoreClosed)
            with pytest.raises(PartitionNotReadyError):
                await store.partition.reads.read(TransactionId(0), 1)

    asyncio.run(main())


@pytest.mark.parametrize("version", STORAGE_CODEC.versions)
def test_headers_are_read_from_nodes_of_every_version(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with world(tmp_path) as (host, _):
            store = Store(host, codec=STORAGE_CODEC.up_to(version))
            store.partition.append([new_record(f"record {number}") for number in range(100)])
            await store.until(lambda: store.committed_count == 100)
            for first, count_max, count in ((0, 1000, 100), (40, 7, 7), (100, 5, 0)):
                found = await store.partition.reads.read_headers(TransactionId(first), count_max)
                assert len(found) == count
                expected = await store.partition.reads.read(TransactionId(first), count_max)
                assert found == header_columns(expected)
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", [CLIENT_NOTES_SINCE - 1, CLIENT_NOTES_SINCE])
def test_replicas_whose_version_can_are_told_which_clients_there_are(
    tmp_path: Path, version: int
) -> None:
    note = ClientNote(ClientId(7), "orders\n", "cn=" + "x" * 500, "10.0.0.7:1", "shop 2")
    journals = [tmp_path / str(number) / "0" / f"{0:019d}.jnl" for number in range(3)]

    async def main() -> None:
        async with world(tmp_path) as (host, _):
            store = Store(host, codec=STORAGE_CODEC.up_to(version))
            await store.append("a")
            store.partition.note_clients([note])
            await store.append("b")

            async def have_noted() -> bool:
                found = [path.read_bytes() for path in journals if path.exists()]
                return sum(b"orders?" in content for content in found) >= 2

            if version >= CLIENT_NOTES_SINCE:
                await eventually(have_noted)
            else:
                assert not await have_noted()
            await store.close()

    asyncio.run(main())
    for path in journals:
        assert not path.exists() or path.read_bytes().count(b"orders?") <= 1


def test_the_next_owner_finds_everything_and_fences_the_last(tmp_path: Path) -> None:
    """ST-05, ST-06: without an orderly close of the first."""

    async def main() -> None:
        async with world(tmp_path) as (host, _):
            old = Store(host, generation=1)
            await old.append("a", "b")
            new = Store(host, generation=2)
            await new.until(lambda: new.sessions == [1])
            assert new.high_water_mark == 1
            old.partition.append([new_record("lost")])
            await old.until(lambda: isinstance(old.events[-1], StoreClosed))
            await new.append("c")
            assert texts(await new.partition.reads.read(TransactionId(0), 10)) == ["a", "b", "c"]
            assert old.committed_count == 2
            await old.close()
            await new.close()
            assert not any(isinstance(event, AppendsFailed) for event in old.events)

    asyncio.run(main())


def test_a_read_that_waits_for_a_session_ends_with_a_partition_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody opens a session, or closes the machine, from then on."""

    async def main() -> None:
        async with world(tmp_path) as (host, nodes):
            await nodes.stop_all()
            store = Store(host)
            reading = asyncio.create_task(store.partition.reads.read(TransactionId(0), 1))
            await asyncio.sleep(0)

            def fail(*_: object) -> None:
                raise AssertionError("a mistake")

            monkeypatch.setattr(store.partition._keeper, "step", fail)
            store.partition.append([new_record("x")])
            with pytest.raises(PartitionNotReadyError, match="was closed"):
                await reading
            with pytest.raises(AssertionError, match="a mistake"):
                await store.close()
            await store.connections.close()

    asyncio.run(main())


def test_losing_a_replica_interrupts_nothing_and_its_return_starts_a_session(
    tmp_path: Path,
) -> None:
    """ST-09, ST-14: the node that was away has everything afterwards."""

    async def main() -> None:
        async with world(tmp_path) as (host, nodes):
            store = Store(host)
            await store.append("a")

            async def has_session(count: int) -> bool:
                metadata = await read_partition_metadata(host.coordinator, PARTITION)
                states = metadata.replica_states.values()
                return sum(state.closing_high_water_mark is None for state in states) == count

            await eventually(lambda: has_session(3))
            await nodes.stop(1)
            await store.append("b", "c", "d")
            assert store.sessions == [0]
            await nodes.start(1)
            await store.until(lambda: len(store.sessions) == 2)
            await eventually(lambda: has_session(3))
            assert store.sessions == [0, 1]
            await nodes.stop(0)
            await store.append("e")
            assert store.high_water_mark == 4
            assert texts(await store.partition.reads.read(TransactionId(0), 10)) == [*"abcde"]
            await store.close()

    asyncio.run(main())


def test_without_a_majority_nothing_is_committed_until_it_returns(tmp_path: Path) -> None:
    """ST-02, ST-18: what was under way is answered exactly once."""

    async def main() -> None:
        async with world(tmp_path) as (host, nodes):
            store = Store(host)
            await store.append("a")
            await nodes.stop(0)
            await nodes.stop(1)
            await store.until(lambda: isinstance(store.events[-1], StoreClosed))
            store.partition.append([new_record("b")])
            await nodes.start(0)
            await store.until(lambda: store.committed_count == 2)
            await store.close()
            assert store.committed_count == 2
            assert not any(isinstance(event, AppendsFailed) for event in store.events)

    asyncio.run(main())


@pytest.mark.parametrize("numbers", [(0, 2, 3), (1, 3, 4), (3, 4, 5), (0, 1, 2, 3, 4)])
def test_a_changed_assignment_starts_a_session_with_the_new_replicas(
    tmp_path: Path, numbers: tuple[int, ...]
) -> None:
    """ST-39, ST-40; hazard R4."""

    async def main() -> None:
        async with world(tmp_path) as (host, nodes):
            store = Store(host)
            await store.append("a", "b")
            path = ClusterPaths().replica_assignments
            for number in numbers:
                if number > 2:
                    await nodes.start(number)
            kept = [nodes.replica_id(number) for number in numbers]
            node = await host.coordinator.read(path)
            assignment = ReplicaAssignments(dict.fromkeys(kept, (PARTITION,)))
            await host.coordinator.write(path, assignment.encode(), version=node.version)
            await store.until(lambda: len(store.sessions) >= 2)

            async def is_full() -> bool:
                metadata = await read_partition_metadata(host.coordinator, PARTITION)
                states = metadata.replica_states
                return sorted(states) == sorted(kept) and all(
                    state.closing_high_water_mark is None for state in states.values()
                )

            await eventually(is_full)
            for number in {0, 1, 2} - {*numbers}:
                await nodes.stop(number)
            await nodes.stop(numbers[-1])
            await store.append("c")
            assert texts(await store.partition.reads.read(TransactionId(0), 5)) == ["a", "b", "c"]
            await store.close()

    asyncio.run(main())


def test_no_session_is_opened_without_a_cluster(tmp_path: Path) -> None:
    async def main() -> None:
        coordinator = EmbeddedCoordinatorServer(str(tmp_path / "coordinator.json"))
        await coordinator.start(LOOPBACK)
        host = real_host(coordinator.address)
        store = Store(host)
        await asyncio.sleep(0)
        await store.close()
        assert store.events == []
        await host.coordinator.close()
        await coordinator.stop()

    asyncio.run(main())


async def rot(directory: Path) -> tuple[Path, int]:
    """Flip a bit of record 7 once it is there; return its file and where in it."""
    [segment] = (directory / str(PARTITION)).glob("*.seg")

    async def is_there() -> bool:
        return b"record 19" in segment.read_bytes()

    await eventually(is_there)
    place = segment.read_bytes().index(b"record 7")
    with segment.open("r+b") as file:
        file.seek(place)
        file.write(b"R")
    return segment, place


def test_a_record_that_rots_while_the_session_is_open_is_repaired(tmp_path: Path) -> None:
    """SD-17: a read that meets it is answered by another replica, and has it repaired."""

    async def main() -> None:
        async with world(tmp_path) as (host, _):
            store = Store(host)
            said = [f"record {number}" for number in range(20)]
            await store.append(*said)
            await store.append("one more")
            segment, place = await rot(tmp_path / "1")

            async def is_whole() -> bool:
                found = await store.partition.reads.read(TransactionId(7), 13)
                assert texts(found) == said[7:]
                return segment.read_bytes()[place : place + 1] == b"r"

            await eventually(is_whole)

            async def is_told() -> bool:
                return store.partition.reports.report().count(Standing.DAMAGED) == 0

            await eventually(is_told)
            assert store.sessions == [0]
            await store.close()

    asyncio.run(main())


def test_what_every_replica_has_damaged_is_told_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with world(tmp_path) as (host, nodes):
            store = Store(host)
            await store.append(*(f"record {number}" for number in range(20)))
            segments = [await rot(tmp_path / str(number)) for number in range(3)]
            rotten = [segment.read_bytes() for segment, _ in segments]

            async def is_told() -> bool:
                with pytest.raises(UnavailableError, match="cannot read transaction 7"):
                    await store.partition.reads.read(TransactionId(7), 1)
                texts = [each.text for each in store.partition.reports.report().replicas]
                return texts == ["records 7-7 are damaged, and no replica gives 7-7"] * 3

            await eventually(is_told)
            replicas = store.partition.reports.report().replicas
            assert {each.replica_id for each in replicas} == {*map(nodes.replica_id, range(3))}
            assert {each.standing for each in replicas} == {Standing.DAMAGED}
            await store.append("appends go on")
            said = [line for line in caplog.messages if line.startswith("damage_not_repairable")]
            assert len(said) == 3
            assert all("left=7-7" in line for line in said)
            await store.close()
            for (segment, _), content in zip(segments, rotten, strict=True):
                assert segment.read_bytes().startswith(content.rstrip(b"\0"))

    asyncio.run(main())
