"""What the client promises as a whole, on a real server in memory."""

from __future__ import annotations

import threading

from tests.client.applications import Recorder
from tests.client.fake_cluster import FakeCluster, FakeServer, run_with_cluster, until
from tests.clusters import wait_until
from tests.testing.applications import Count, Counters, Database
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.host import Connection
from waltz.testing import InMemoryCluster
from waltz.wire.client_protocol import TransactionDataRequest, TransactionDataResponse
from waltz.wire.message import Message


def test_contexts_under_one_lock_are_executed_until_each_has_seen_the_others() -> None:
    """PM-07: four on one write lock, decided while nothing comes back."""
    with InMemoryCluster(for_tests=True) as cluster:
        database = Database()
        client = cluster.open_client(Counters(database))
        cluster.faults.suspend_feed()
        contexts = [Count(database, 0) for _ in range(4)]
        for context in contexts:
            client.submit(context)
        cluster.faults.resume_feed()
        client.flush()
        assert [context.completions for context in contexts] == [[True]] * 4
        assert sum(context.executions for context in contexts) > 4 + 3
        assert database.values[0] == 4


class Waiting(Recorder):
    """Applies nothing of partition 0 until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def apply_transaction(self, transaction: Transaction) -> None:
        if transaction.partition_id == 0:
            assert self.may_go_on.wait(60)
        super().apply_transaction(transaction)


def test_a_slow_partition_holds_up_no_other_and_each_keeps_its_order() -> None:
    """CI-24, PM-28: partitions are applied by several threads, each by one at a time."""
    with InMemoryCluster(for_tests=True, partitions=4) as cluster:
        waiting = Waiting()
        cluster.open_client(waiting)
        writer = cluster.open_client(Recorder(), max_concurrent_transactions=100)
        for number in range(120):
            writer.submit(Count(Database(), number % 4, locks=False))
        writer.flush()
        wait_until(
            lambda: all(waiting.applied_in(each) == [*range(30)] for each in (1, 2, 3)),
            "another partition waits",
        )
        assert waiting.applied_in(0) == []
        waiting.may_go_on.set()
        wait_until(lambda: waiting.applied_in(0) == [*range(30)], "the slow one is lost")


class DamagingServer(FakeServer):
    """Changes a byte of each of the next bodies that it sends."""

    damages_left = 0

    def _send(self, connection: Connection, *messages: Message) -> None:
        if self.damages_left and isinstance(messages[0], TransactionDataResponse):
            self.damages_left -= 1
            link = self.connections[connection]
            frame = bytearray(link.encode(messages[0]))
            frame[frame.index(b"body")] ^= 1
            connection.write(bytes(frame))
            return
        super()._send(connection, *messages)


def test_a_body_that_arrives_damaged_is_fetched_again() -> None:
    """CI-23, PM-32: damaged twice, right at the third time."""

    async def work(cluster: FakeCluster) -> None:
        await cluster.server.stop()
        server = DamagingServer()
        server.partitions[0].add(b"body")
        server.damages_left = 2
        await cluster.coordinator.assign({await server.start(): {0: 1}})
        recorder = Recorder()
        async with AsyncWaltzClient(cluster.host, recorder, ClientOptions()):
            await until(lambda: recorder.data == [b"body"])
        assert server.damages_left == 0
        assert server.count(TransactionDataRequest) == 3
        await server.stop()

    run_with_cluster(work)
