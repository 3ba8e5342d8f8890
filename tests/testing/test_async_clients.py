"""A cluster in memory for applications that use asyncio, on a loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

import waltz
from tests.client.applications import WRITTEN, Note, Recorder
from waltz.errors import ClientClosedError, ConfigurationError, LocalProtocolError
from waltz.testing import Faults, InMemoryCluster

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.waltz(partitions=3)
def test_every_verb_of_a_client_is_there(waltz_cluster: InMemoryCluster, run: Run) -> None:
    """PM-60: on whichever loop the test runs; typed as the client of every day."""

    async def main() -> None:
        recorder = Recorder()
        client: waltz.AsyncWaltzClient
        async with waltz_cluster.open_async_client(recorder, partitions=[0, 1]) as client:
            assert isinstance(client, waltz.AsyncWaltzClient)
            assert (client.partition_count, client.cluster_name) == (3, "mock")
            while not client.connected_servers:
                await asyncio.sleep(0.01)
            assert len(client.connected_servers) == 1
            data = [b"%d" % number for number in range(5)]
            ids = await asyncio.gather(*[client.append(1, each) for each in data])
            assert sorted(ids) == [*range(5)]
            note = Note(lock=1)
            await client.submit(note)
            await client.flush()
            assert note.story == WRITTEN
            assert not client.has_pending_transactions()
            assert note.request_id is not None
            assert await client.outcome(note.request_id, note.executed_at) == 0
            assert await client.get_high_water_mark(1) == 4
            assert client.client_high_water_mark(1) == 4
            assert client.blocked_partitions() == {}
            (server,) = await client.ask_servers()
            assert await client.prefer_partitions(server, add=[1])
            await client.set_partitions([2])
            assert await client.append(2, b"x") == 0
            with pytest.raises(waltz.PartitionInactiveError):
                await client.append(0, b"x")
            other = waltz_cluster.open_async_client(Recorder())
            async with other:
                assert other.client_id != client.client_id
                assert other.cluster_key == client.cluster_key
        with pytest.raises(ClientClosedError):
            await client.append(2, b"x")
        in_order = [each for _, each in sorted(zip(ids, data, strict=True))]
        assert recorder.data[:5] == in_order
        async with waltz_cluster.open_async_reader() as reader:
            assert reader.partition_count == 3
            assert reader.cluster_key == other.cluster_key
            assert await reader.high_water_mark(1) == 4
            runs = [list(columns.data) async for columns in reader.read(1, 1, 5)]
            assert [each for run in runs for each in run] == in_order[1:]
            async for columns in reader.follow(1, 3):
                assert list(columns.data) == in_order[3:]
                break

    run(main())


def test_faults_strike_it_and_it_is_cancelled_as_usual() -> None:
    """PM-62."""

    async def main() -> None:
        async with InMemoryCluster(for_tests=True) as cluster:
            recorder, faults = Recorder(), Faults()
            async with cluster.open_async_client(recorder, faults=faults) as client:
                faults.fail_next_lock()
                refused = Note(lock=1)
                await client.submit(refused)
                await client.flush()
                assert refused.story.count("execute") == 2
                faults.suspend_feed()
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.append(0, b"x"), 0.05)
                faults.resume_feed()
                await client.flush()
                assert recorder.data[1:] == [b"x"]

    asyncio.run(main())


def test_a_callback_may_submit_and_not_wait(waltz_cluster: InMemoryCluster) -> None:
    """UA-64: from its worker's thread, through the application's loop."""
    refused: list[str] = []

    class Nested(Recorder):
        client: waltz.AsyncWaltzClient
        loop: asyncio.AbstractEventLoop

        def on_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

        def apply_transaction(self, transaction: waltz.Transaction) -> None:
            super().apply_transaction(transaction)
            if transaction.transaction_id == 0:
                self.on_loop(self.client.submit(Note("nested")))
                waits: list[Callable[[], Coroutine[Any, Any, Any]]] = [
                    self.client.flush,
                    self.client.close,
                    lambda: self.client.append(0, b""),
                ]
                for wait in waits:
                    try:
                        self.on_loop(wait())
                    except LocalProtocolError as error:
                        refused.append(str(error))

    async def main() -> None:
        nested = Nested()
        async with waltz_cluster.open_async_client(nested) as client:
            nested.client, nested.loop = client, asyncio.get_running_loop()
            await client.append(0, b"first")
            await client.flush()
            while nested.data != [b"first", b"nested"]:
                await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(main(), 240.0))
    assert len(refused) == 3


def test_it_may_be_closed_with_its_cluster_or_before_it_was_opened() -> None:
    async def main() -> None:
        cluster = InMemoryCluster(for_tests=True)
        never = cluster.open_async_client(Recorder())
        await never.close()
        client, reader = cluster.open_async_client(Recorder()), cluster.open_async_reader()
        await client.start()
        await reader.start()
        cluster.faults.suspend_feed()
        note = Note()
        await client.submit(note)
        await asyncio.to_thread(cluster.close)
        assert isinstance(note.story[-1], ClientClosedError)
        late: list[Callable[[], Awaitable[object]]] = [
            lambda: client.append(0, b""),
            lambda: reader.high_water_mark(0),
        ]
        for call in late:
            with pytest.raises(ClientClosedError):
                await call()
        await client.close()
        await reader.close()
        with pytest.raises(ConfigurationError, match="unknown option"):
            cluster.open_async_client(Recorder(), partition=3)

    asyncio.run(asyncio.wait_for(main(), 240.0))


def test_one_that_is_not_started_says_so_like_the_product(waltz_cluster: InMemoryCluster) -> None:
    """PM-60, PM-61."""

    async def main() -> None:
        client = waltz_cluster.open_async_client(Recorder(), partitions=[0])
        asked: list[Callable[[], Awaitable[object]]] = [
            lambda: client.append(0, b"x"),
            lambda: client.submit(Note()),
            lambda: client.set_partitions([0]),
        ]
        for call in asked:
            with pytest.raises(LocalProtocolError, match="this client is not started"):
                await call()
        for fact in ("client_id", "partition_count", "is_closed"):
            with pytest.raises(LocalProtocolError, match="this client is not started"):
                getattr(client, fact)
        await client.close()
        reader = waltz_cluster.open_async_reader()
        for call in (
            lambda: reader.high_water_mark(0),
            lambda: anext(reader.follow(0, 0)),
            lambda: anext(reader.read(0, 0, 1)),
        ):
            with pytest.raises(LocalProtocolError, match="this reader is not started"):
                await call()
        with pytest.raises(LocalProtocolError, match="this reader is not started"):
            _ = reader.partition_count
        await reader.close()

    asyncio.run(main())
