"""Calls that cannot be right: each says what is wrong, and none leaves anything behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import waltz
from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from tests.server.real_server import running_server
from tests.tls_files import TlsFiles
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import TransactionBuilder
from waltz.errors import AlreadyClosedError, LocalProtocolError, OperationTimeoutError
from waltz.reader.reader_shell import AsyncLogReader
from waltz.system.tcp_network import RealNetwork
from waltz.testing import InMemoryCluster
from waltz.types import ClientId, Generation, PartitionId, RequestId

REQUEST = RequestId(ClientId(1), Generation(1), PartitionId(0), 2)

VERBS: dict[str, Callable[[Any], Any]] = {
    "append": lambda client: client.append(0, b"x"),
    "append_many": lambda client: client.append_many(0, [b"x"]),
    "submit": lambda client: client.submit(Note()),
    "get_high_water_mark": lambda client: client.get_high_water_mark(0),
    "outcome": lambda client: client.outcome(REQUEST),
    "set_partitions": lambda client: client.set_partitions([0]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_closed_client_says_that_it_is_closed_and_that_nothing_was_sent(verb: str) -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder(), partitions=[0])
        client.close()
        with pytest.raises(AlreadyClosedError, match="closed before this call") as raised:
            VERBS[verb](client)
        assert not raised.value.may_be_written

        async def ask() -> None:
            async with cluster.open_async_client(Recorder(), partitions=[0]) as client:
                pass
            with pytest.raises(AlreadyClosedError, match="closed before this call"):
                await VERBS[verb](client)

        asyncio.run(ask())


@pytest.mark.parametrize("verb", VERBS)
def test_a_client_that_is_not_started_says_so(verb: str) -> None:
    async def work(cluster: FakeCluster) -> None:
        client = AsyncWaltzClient(cluster.host, Recorder())
        with pytest.raises(LocalProtocolError, match="this client is not started") as raised:
            await VERBS[verb](client)
        assert not raised.value.may_be_written
        for fact in ("client_id", "partition_count", "cluster_key", "connected_servers"):
            with pytest.raises(LocalProtocolError, match="this client is not started"):
                getattr(client, fact)
        await client.close()

    run_with_cluster(work)


def test_a_reader_that_is_not_started_says_so() -> None:
    async def work(cluster: FakeCluster) -> None:
        reader = AsyncLogReader(cluster.host)
        for call in (
            lambda: reader.high_water_mark(0),
            lambda: anext(reader.follow(0, 0)),
            lambda: anext(reader.read(0, 0, 1)),
        ):
            with pytest.raises(LocalProtocolError, match="this reader is not started"):
                await call()
        for fact in ("partition_count", "cluster_key"):
            with pytest.raises(LocalProtocolError, match="this reader is not started"):
                getattr(reader, fact)
        await reader.close()

    run_with_cluster(work)


def test_who_waits_when_a_client_is_closed_is_told_that_nobody_knows() -> None:
    with InMemoryCluster(for_tests=True) as cluster:

        async def close_meanwhile() -> None:
            async with cluster.open_async_client(Recorder()) as client:
                cluster.faults.suspend_feed()
                appending = asyncio.create_task(client.append(0, b"x"))
                while not client.has_pending_transactions():
                    await asyncio.sleep(0.01)
            with pytest.raises(waltz.ClientClosedError, match="before the outcome") as raised:
                await appending
            assert raised.value.may_be_written

        asyncio.run(close_meanwhile())


@pytest.mark.parametrize("kind", ["write_locks", "read_locks", "append_locks"])
def test_a_lock_may_be_a_pair_of_its_name_and_its_number(kind: str) -> None:
    lock = waltz.PartitionLocalLock("account", 1)
    builder, same = TransactionBuilder(), TransactionBuilder()
    getattr(builder, f"set_{kind}")([lock, ("account", 1)])
    getattr(same, f"set_{kind}")([lock, lock])
    assert getattr(builder, kind) == getattr(same, kind) == (lock.hash, lock.hash)
    assert builder.checked == same.checked
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        locks: Any = {kind: [("account", 1)]}
        assert [client.append(0, b"x", **locks) for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("lock", ["account", ("account",), ("account", "1"), (1, 1), None, 5])
def test_what_is_no_lock_is_named(lock: Any) -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        with pytest.raises(LocalProtocolError, match=r"lock .*; expected a "):
            client.append(0, b"x", write_locks=[lock])
        assert client.append(0, b"x") == 0, "nothing was sent"


def test_a_partition_whose_server_cannot_be_reached_says_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong CA, with a coordinator that is reached without TLS."""
    (tmp_path / "server").mkdir()
    (tmp_path / "client").mkdir()
    files, others = TlsFiles(tmp_path / "server"), TlsFiles(tmp_path / "client")

    async def play() -> None:
        async with running_server(tmp_path, tls=files.peer("127.0.0.1", "localhost")) as (host, _):
            there = replace(host, network=RealNetwork(others.peer("127.0.0.1")))
            options = ClientOptions(mount_seconds_max=1.0)
            async with AsyncWaltzClient(there, Recorder(), options) as client:
                await until(lambda: "connection_failed" in caplog.text)
                with pytest.raises(waltz.PartitionNotReadyError) as raised:
                    await client.append(0, b"x")
            text = str(raised.value)
            assert text.startswith("the context's partition had no usable server for 1 s: ")
            assert text.count("certificate") >= 1
            assert text.count("no connection to") == 1, text

    caplog.set_level("INFO")
    asyncio.run(asyncio.wait_for(play(), 240.0))


def test_a_time_that_passes_says_where_to_ask_later() -> None:
    with InMemoryCluster(for_tests=True) as cluster:
        client = cluster.open_client(Recorder())
        client.append(0, b"mounted")
        cluster.faults.suspend_feed()
        with pytest.raises(OperationTimeoutError, match=r"unknown") as raised:
            client.append(0, b"x", timeout_seconds=0.5)
        request_id = raised.value.request_id
        assert request_id is not None
        assert raised.value.executed_at is not None
        cluster.faults.resume_feed()
        assert client.outcome(request_id, raised.value.executed_at, timeout_seconds=30) == 1
