"""The reader beside a server in miniature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.client.fake_cluster import CLUSTER_KEY, FakeCluster, FakeServer, run_with_cluster, until
from waltz.connections.retry import NoRetries
from waltz.errors import (
    ClientAheadError,
    ClientClosedError,
    ConnectionLostError,
    LocalProtocolError,
    NotFoundError,
    UnavailableError,
)
from waltz.host import Connection
from waltz.reader.range_columns_shell import READER_ROWS_MAX
from waltz.reader.reader_shell import AsyncLogReader
from waltz.reader.transaction_columns import TransactionColumns
from waltz.system.tcp_network import RealNetwork
from waltz.types import Address
from waltz.wire.client_protocol import HighWaterMarkRequest


def opened(cluster: FakeCluster, timeout_seconds: float = 10.0) -> AsyncLogReader:
    return AsyncLogReader(cluster.host, timeout_seconds=timeout_seconds)


def fill(cluster: FakeCluster, count: int, partition: int = 0) -> None:
    for number in range(count):
        cluster.server.partitions[partition].add(b"%d" % number, header=-number)


async def collect(runs: AsyncIterator[TransactionColumns]) -> list[TransactionColumns]:
    return [columns async for columns in runs]


def check(found: list[TransactionColumns], first: int, end: int) -> None:
    position = first
    for columns in found:
        assert columns.first_transaction_id == position
        assert 0 < len(columns) <= READER_ROWS_MAX + 1_000
        expected = range(position, position + len(columns))
        assert columns.data == [b"%d" % number for number in expected]
        assert columns.headers.tolist() == [-number for number in expected]
        assert len(columns.request_ids) == 16 * len(columns)
        position += len(columns)
    assert position == end


@pytest.mark.parametrize(("first", "end"), [(0, 2500), (0, 1), (7, 7), (100, 2499)])
def test_a_range_is_read_dense_and_complete(first: int, end: int) -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 2500)
        async with opened(cluster) as reader:
            check(await collect(reader.read(0, first, end)), first, end)
            assert reader.partition_count == 1
            assert reader.cluster_key == CLUSTER_KEY
            assert await reader.high_water_mark(0) == 2499

    run_with_cluster(work)


def test_data_that_nobody_wants_is_not_asked_for() -> None:
    """PS-06, PM-45."""

    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 2500)
        async with opened(cluster) as reader:
            found = await collect(reader.read(0, 100, 2400, wants_data=lambda each: each % 7 == 0))
            assert reader._requests is not None
            fetch, fetched = reader._requests.fetch, []

            async def counted(partition_id: Any, ids: Any, **options: Any) -> Any:
                fetched.extend(ids)
                return await fetch(partition_id, ids, **options)

            reader._requests.fetch = counted  # type: ignore[method-assign,assignment]
            again = await collect(reader.read(0, 100, 2400, wants_data=lambda each: each % 7 == 0))
        data = [each for columns in found for each in columns.data]
        assert data == [b"" if n % 7 else b"%d" % n for n in range(100, 2400)]
        assert [each for columns in again for each in columns.data] == data
        assert fetched == [n for n in range(100, 2400) if n % 7 == 0]
        assert found[0].first_transaction_id == 100

    run_with_cluster(work)


def test_reads_of_one_partition_do_not_disturb_each_other() -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 900)
        async with opened(cluster) as reader:
            found = await asyncio.gather(
                *[collect(reader.read(0, start, start + 300)) for start in (0, 300, 600)]
            )
        for index, columns in enumerate(found):
            check(columns, 300 * index, 300 * index + 300)

    run_with_cluster(work)


def test_a_read_survives_cut_connections() -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 3000)

        async def cut() -> None:
            for _ in range(3):
                await asyncio.sleep(0.01)
                cluster.server.cut()

        async with opened(cluster) as reader:
            cutting = asyncio.create_task(cut())
            check(await collect(reader.read(0, 0, 3000)), 0, 3000)
            await cutting

    run_with_cluster(work)


def test_a_server_that_is_not_ready_is_asked_again() -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 10)
        cluster.server.partitions[0].mounts_not_ready = 1
        async with opened(cluster) as reader:
            check(await collect(reader.read(0, 0, 10)), 0, 10)

    run_with_cluster(work)


def test_a_read_without_progress_ends_in_time() -> None:
    """Hazards H2, H3: some mounts are never answered."""

    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 10)
        cluster.server.partitions[0].mounts_unanswered = 1
        async with opened(cluster, timeout_seconds=0.1) as reader:
            with pytest.raises(UnavailableError, match=r"partition 0 in 0\.1 s.*transaction 4"):
                await collect(reader.read(0, 4, 10))
        cluster.server.partitions[0].data_failures = 1_000_000
        # Long enough for the mount before it, on any machine.
        async with opened(cluster, timeout_seconds=2.0) as reader:
            with pytest.raises(UnavailableError, match="data from transaction 4"):
                await collect(reader.read(0, 4, 10))
            cluster.server.partitions.clear()
            with pytest.raises(UnavailableError, match="its high-water mark"):
                await reader.high_water_mark(0)

    run_with_cluster(work)


def test_a_partition_without_a_server_is_unavailable() -> None:
    async def work(cluster: FakeCluster) -> None:
        await cluster.coordinator.assign({})
        async with opened(cluster, timeout_seconds=0.1) as reader:
            with pytest.raises(UnavailableError, match="no progress"):
                await collect(reader.read(0, 0, 1))

    run_with_cluster(work)


def test_a_log_that_is_shorter_than_expected_is_an_error() -> None:
    """UA-18: a cluster that was made anew must not hang those with old positions."""

    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 10)
        async with opened(cluster) as reader:
            with pytest.raises(NotFoundError, match="ends before transaction 10"):
                await collect(reader.read(0, 5, 12))
            with pytest.raises(ClientAheadError):
                await collect(reader.read(0, 50, 60))

    run_with_cluster(work)


def test_what_is_no_range_is_refused() -> None:
    async def work(cluster: FakeCluster) -> None:
        async with opened(cluster) as reader:
            for first, end in ((-1, 3), (4, 3)):
                with pytest.raises(LocalProtocolError, match="expected 0 or more"):
                    reader.read(0, first, end)
            with pytest.raises(LocalProtocolError):
                reader.follow(0, -1)
            with pytest.raises(NotFoundError):
                reader.read(1, 0, 1)

    run_with_cluster(work)


def test_following_yields_what_comes_as_it_comes() -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 3)
        async with opened(cluster, timeout_seconds=2.0) as reader:
            runs = reader.follow(0, 1)
            check([await anext(runs)], 1, 3)
            partition = cluster.server.partitions[0]
            following = asyncio.create_task(anext(runs))
            await asyncio.sleep(2.5)  # silence is not lack of progress
            partition.add(b"3", header=-3)
            cluster.server.feed()
            check([await following], 3, 4)
            cluster.server.cut()
            partition.add(b"4", header=-4)
            check([await anext(runs)], 4, 5)
            await runs.aclose()
        await until(lambda: not cluster.server.connections)

    run_with_cluster(work)


def test_following_goes_with_the_partition_to_another_server() -> None:
    """The old server says nothing when it has lost a partition."""

    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 2)
        other = FakeServer(1)
        other.partitions[0] = cluster.server.partitions[0]
        await other.start()
        async with opened(cluster) as reader:
            runs = reader.follow(0, 0)
            check([await anext(runs)], 0, 2)
            await cluster.coordinator.assign({other.address: {0: 2}})
            other.partitions[0].add(b"2", header=-2)
            check([await anext(runs)], 2, 3)
            await runs.aclose()
        await other.stop()

    run_with_cluster(work)


class MovingNetwork(RealNetwork):
    """Once, something happens between a connection's opening and its use."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    @property
    def is_armed(self) -> bool:
        return self.meanwhile is not None

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        connection = await super().connect(address, name=name)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return connection


def test_a_partition_that_moves_while_its_server_is_connected_is_read_at_the_other() -> None:
    """The old server would say for ever that it is not ready, or nothing at all."""

    async def work(cluster: FakeCluster) -> None:
        other = FakeServer(1)
        await other.start()
        other.partitions[0].add(b"0")

        async def move() -> None:
            await cluster.coordinator.assign({other.address: {0: 2}})
            await asyncio.sleep(0.1)

        network = MovingNetwork()
        host = replace(cluster.host, network=network)
        async with AsyncLogReader(host, timeout_seconds=10.0) as reader:
            await reader.high_water_mark(0)  # all else is connected
            network.meanwhile = move
            check(await collect(reader.read(0, 0, 1)), 0, 1)
        assert not network.is_armed
        await other.stop()

    run_with_cluster(work)


def test_a_closed_reader_ends_its_reads() -> None:
    async def work(cluster: FakeCluster) -> None:
        reader = opened(cluster)
        await reader.start()
        runs = reader.follow(0, 0)
        following = asyncio.create_task(anext(runs))
        await asyncio.sleep(0.05)
        await reader.close()
        await reader.close()
        with pytest.raises(ClientClosedError):
            await following
        with pytest.raises(ClientClosedError):
            reader.read(0, 0, 1)

    run_with_cluster(work)


def test_a_closed_reader_ends_its_reads_of_partitions_without_a_server() -> None:
    async def work(cluster: FakeCluster) -> None:
        reader = opened(cluster, timeout_seconds=60.0)
        await reader.start()
        await cluster.coordinator.assign({})
        await until(lambda: not reader._source.current.partitions)
        following = asyncio.create_task(anext(reader.follow(0, 0)))
        await until(lambda: not reader._streams._view_changed.is_set())
        await reader.close()
        with pytest.raises(ClientClosedError):
            await following

    run_with_cluster(work)


def test_a_reader_that_is_closed_while_it_connects_ends_its_reads() -> None:
    async def work(cluster: FakeCluster) -> None:
        network = MovingNetwork()
        reader = AsyncLogReader(replace(cluster.host, network=network), timeout_seconds=10.0)
        await reader.start()
        await reader.high_water_mark(0)  # all else is connected
        network.meanwhile = reader.close
        with pytest.raises(ClientClosedError):
            await anext(reader.follow(0, 0))

    run_with_cluster(work)


def test_a_reader_has_a_retry_policy() -> None:
    """LC-72, LC-80."""

    async def work(cluster: FakeCluster) -> None:
        reader = AsyncLogReader(cluster.host, retry_policy=NoRetries())
        await reader.start()
        cluster.server.partitions.clear()
        asking = asyncio.create_task(reader.high_water_mark(0))
        await until(lambda: cluster.server.count(HighWaterMarkRequest) == 1)
        cluster.server.cut()
        with pytest.raises(ConnectionLostError):
            await asking
        await reader.close()

    run_with_cluster(work)
