"""`append` and `append_many` as an application sees them, in both faces."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import waltz
from tests.client.applications import Recorder
from tests.client.fake_cluster import hosts_for, server_thread
from tests.clusters import wait_until
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.errors import (
    ClientClosedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
)
from waltz.testing import InMemoryCluster


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        yield cluster


def log_of(cluster: InMemoryCluster, partition: int) -> list[tuple[int, bytes]]:
    with cluster.open_reader() as reader:
        end = reader.high_water_mark(partition) + 1
        return [
            (header, data)
            for run in reader.read(partition, 0, end)
            for header, data in zip(run.headers.tolist(), run.data, strict=True)
        ]


def test_many_are_in_the_log_in_order_and_applied_when_it_returns(
    cluster: InMemoryCluster,
) -> None:
    """B-3. The application has the data without fetching it."""
    recorder = Recorder(prefetch=False)
    data = [b"%d" % number for number in range(3_000)]
    client = cluster.open_client(recorder)
    assert client.append(1, b"first") == 0
    ids = client.append_many(1, data, headers=range(3_000))
    assert ids.tolist() == list(range(1, 3_001))
    assert client.client_high_water_mark(1) == 3_000
    assert recorder.data == [b"first", *data]
    assert log_of(cluster, 1) == [(0, b"first"), *enumerate(data)]
    assert client.append_many(0, []).tolist() == []
    assert not client.has_pending_transactions()


@pytest.mark.parametrize("knob", ["fail_next_append", "fail_next_lock"])
def test_what_is_lost_or_refused_comes_later_and_nothing_twice(
    cluster: InMemoryCluster, knob: str
) -> None:
    """PM-44, PM-62."""
    client = cluster.open_client(waltz.NoCallbacks(), long_wait_seconds=0.05)
    client.append(0, b"connected")
    getattr(cluster.faults, knob)(7)
    data = [b"%d" % number for number in range(100)]
    locks = waltz.lock_hashes("row", range(100))
    ids = client.append_many(0, data, write_locks=locks)
    log = log_of(cluster, 0)
    assert [log[each][1] for each in ids.tolist()] == data
    assert len(log) == 101


def test_rows_that_write_the_same_lock_wait_for_each_other(cluster: InMemoryCluster) -> None:
    """PM-20: each has seen the one before."""
    client = cluster.open_client(waltz.NoCallbacks())
    lock = waltz.PartitionLocalLock("account", 1)
    ids = client.append_many(0, [b"a", b"b", b"c"], write_locks=[[lock]] * 3)
    assert sorted(ids.tolist()) == [0, 1, 2]


def test_several_threads_and_contexts_go_on_beside_it(cluster: InMemoryCluster) -> None:
    client = cluster.open_client(waltz.NoCallbacks())
    found: dict[int, list[int]] = {}

    def work(number: int) -> None:
        data = [b"%d %d" % (number, each) for each in range(500)]
        found[number] = client.append_many(0, data).tolist()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    ones = [client.append(0, b"one") for _ in range(20)]
    for thread in threads:
        thread.join()
    log = log_of(cluster, 0)
    assert len(log) == 1_520
    for number, ids in found.items():
        assert [log[each][1] for each in ids] == [b"%d %d" % (number, at) for at in range(500)]
    assert {log[each][1] for each in ones} == {b"one"}


def test_servers_of_older_versions_are_told_one_by_one() -> None:
    """CX-06: versions 0 to 4 know no batches."""
    with server_thread(1) as server:
        with WaltzClient(hosts_for(server), Recorder(), ClientOptions()) as client:
            assert client.append_many(0, [b"x", b"y"], headers=[5, 6]).tolist() == [0, 1]
        assert [header for _, header, _ in server.partitions[0].log] == [5, 6]


def test_what_cannot_be_is_said_at_once(cluster: InMemoryCluster) -> None:
    client = cluster.open_client(waltz.NoCallbacks())
    with pytest.raises(NotFoundError):
        client.append_many(9, [b"x"])
    with pytest.raises(LocalProtocolError, match="2 headers; expected 1"):
        client.append_many(0, [b"x"], headers=[1, 2])
    client.close()
    with pytest.raises(ClientClosedError):
        client.append_many(0, [b"x"])


def test_time_that_is_up_ends_the_wait(cluster: InMemoryCluster) -> None:
    """CX-05. What has been sent may be in the log, and nothing more is sent."""
    client = cluster.open_client(waltz.NoCallbacks())
    client.append(0, b"connected")
    cluster.faults.suspend_feed()
    with pytest.raises(OperationTimeoutError):
        client.append_many(0, [b"x"] * 20_000, timeout_seconds=0.2)
    cluster.faults.resume_feed()
    client.flush(20.0)
    assert client.append_many(0, [b"again"]).tolist() == [client.client_high_water_mark(0)]


def test_the_same_on_a_loop() -> None:
    """CI-01."""

    async def main() -> None:
        async with (
            InMemoryCluster(for_tests=True, partitions=1) as cluster,
            cluster.open_async_client(waltz.NoCallbacks()) as client,
        ):
            assert await client.append(0, b"first") == 0
            ids = await client.append_many(0, [b"x"] * 2_500)
            assert np.array_equal(ids, np.arange(1, 2_501))
            assert (await client.append_many(0, [])).tolist() == []

    asyncio.run(main())


class Held(Recorder):
    """Applies nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        self.go.wait()
        super().apply_transaction(transaction)


def test_all_that_the_log_holds_at_that_moment_is_waited_for(cluster: InMemoryCluster) -> None:
    """F-48: and the marks are those of the servers, not of what has been fed."""
    writer = cluster.open_client(waltz.NoCallbacks())
    held = Held()
    client = cluster.open_client(held)
    assert client.wait_until_applied() == {0: -1, 1: -1}
    writer.append_many(0, [b"x"] * 5)
    writer.append(1, b"y")

    def tells_the_mark() -> bool:
        with pytest.raises(OperationTimeoutError) as told:
            client.wait_until_applied(timeout_seconds=0.2)
        return "partition 0 is at -1 of 4" in str(told.value)

    wait_until(tells_the_mark, "the marks are not told")
    held.go.set()
    assert client.wait_until_applied() == {0: 4, 1: 0}
    assert (held.applied_in(0), held.applied_in(1)) == ([0, 1, 2, 3, 4], [0])
    writer.append(1, b"z")
    assert client.wait_until_applied(partitions=[1]) == {1: 1}
    assert held.applied_in(1) == [0, 1]


def test_waiting_for_what_cannot_be_waited_for_is_an_error(cluster: InMemoryCluster) -> None:
    client = cluster.open_client(Recorder(), partitions=[0])
    assert client.wait_until_applied() == {0: -1}
    with pytest.raises(NotFoundError):
        client.wait_until_applied(partitions=[2])
    with pytest.raises(PartitionInactiveError):
        client.wait_until_applied(partitions=[1])
    client.close()
    with pytest.raises(ClientClosedError):
        client.wait_until_applied()


def test_who_waits_when_the_client_closes_is_let_go(cluster: InMemoryCluster) -> None:
    cluster.open_client(waltz.NoCallbacks()).append(0, b"x")
    held = Held()
    client = cluster.open_client(held, close_seconds_max=0.1)
    ended: list[BaseException] = []

    def wait() -> None:
        try:
            client.wait_until_applied()
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    client.close()
    thread.join()
    held.go.set()
    assert [type(error) for error in ended] == [ClientClosedError]


def test_a_callback_may_not_wait_for_itself(cluster: InMemoryCluster) -> None:
    raised: list[Exception] = []

    class Waiting(Recorder):
        def apply_transaction(self, transaction: waltz.Transaction) -> None:
            try:
                client.wait_until_applied()
            except Exception as error:
                raised.append(error)

    client = cluster.open_client(Waiting())
    client.append(0, b"")
    assert [type(error) for error in raised] == [LocalProtocolError]


def test_all_faces_wait(cluster: InMemoryCluster) -> None:
    cluster.open_client(waltz.NoCallbacks()).append(0, b"x")

    async def main() -> None:
        async with cluster.open_async_client(Recorder()) as client:
            assert client.active_partitions() == [0, 1]
            assert client.parked_transactions() == {}
            assert await client.wait_until_applied(timeout_seconds=60) == {0: 0, 1: -1}

    asyncio.run(main())
    client = cluster.open_client(Recorder())
    assert client.active_partitions() == [0, 1]
    assert client.parked_transactions() == {}
