"""Every wait of a client ends: with what it waits for, or with the reason why that never comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import waltz
from tests.client.applications import Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from tests.clusters import wait_until
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import PlainAppend
from waltz.errors import PartitionBlockedError, PartitionInactiveError
from waltz.sim.knobs import turned
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId
from waltz.wire.client_protocol import TransactionDataRequest


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        yield cluster


class Held(Recorder):
    """Applies nothing of partition 0 until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.go = threading.Event()

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        if transaction.partition_id == 0:
            self.began.set()
            self.go.wait(60)
        super().apply_transaction(transaction)


class Failing(Recorder):
    """Applies nothing of partition 0."""

    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        if transaction.partition_id == 0:
            raise ValueError("no")
        super().apply_transaction(transaction)


class Ended:
    """Calls `function` on a thread of its own, and keeps how it ended."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.error: Exception | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:
            self.error = error

    def within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


def test_a_wait_that_begins_as_the_last_transaction_is_applied_ends(
    cluster: InMemoryCluster,
) -> None:
    """The append returns when its transaction has been applied, one turn of the loop before the
    partition's machine knows; nothing is applied later that could end the wait."""

    client = cluster.open_client(Recorder())
    there = client._there

    async def append_and_wait() -> None:
        transaction_id = await there.append(0, b"x")
        async with asyncio.timeout(60):
            await there.engine.runner(0).waiting.applied(transaction_id)

    client._thread.call(append_and_wait())


def test_who_waits_for_a_partition_that_is_given_up_is_told(cluster: InMemoryCluster) -> None:
    cluster.open_client(waltz.NoCallbacks()).append(0, b"x")
    held = Held()
    client = cluster.open_client(held, partitions=[0, 1], mount_seconds_max=0.1)
    assert held.began.wait(60)
    waiting = Ended(client.wait_until_applied)
    wait_until(lambda: bool(client._there.engine.runner(0).waiting._waiting), "nobody waits")
    leaving = Ended(lambda: client.set_partitions({1}))
    try:
        assert waiting.within(60)
        assert isinstance(waiting.error, PartitionInactiveError)
    finally:
        held.go.set()
    assert leaving.within(60)


def test_who_asks_for_an_outcome_in_a_partition_that_is_given_up_is_told(
    cluster: InMemoryCluster,
) -> None:
    client = cluster.open_client(Recorder(), partitions=[0, 1], mount_seconds_max=0.1)
    wait_until(lambda: client._there.engine.runner(0).gate.is_mounted, "it is not mounted")
    cluster.faults.suspend_feed()
    context = PlainAppend(0, b"x")
    client.submit(context)
    wait_until(lambda: context.request_id is not None, "it was not sent")
    request_id = context.request_id
    assert request_id is not None
    asking = Ended(lambda: client.outcome(request_id))
    wait_until(lambda: bool(client._there.engine.runner(0).waiting._outcomes), "nobody asks")
    client.set_partitions({1})
    assert asking.within(60)
    assert isinstance(asking.error, PartitionInactiveError)
    cluster.faults.resume_feed()


def test_no_question_goes_to_a_partition_that_has_stopped(cluster: InMemoryCluster) -> None:
    """`on_apply_failure="stop"` ends the partition: nobody would answer."""
    client = cluster.open_client(Failing(), on_apply_failure="stop", apply_attempts_max=1)
    context = PlainAppend(0, b"x")
    client.submit(context)
    wait_until(lambda: context.request_id is not None, "it was not sent")
    request_id = context.request_id
    assert request_id is not None

    def has_stopped() -> bool:
        """Before the append is in the log there is nothing to wait for."""
        waiting = Ended(client.wait_until_applied)
        assert waiting.within(60)
        return isinstance(waiting.error, PartitionBlockedError)

    wait_until(has_stopped, "the partition does not stop")
    asking = Ended(lambda: client.outcome(request_id))
    assert asking.within(60)
    assert isinstance(asking.error, PartitionBlockedError)


def test_a_partition_that_leaves_with_a_full_buffer_does_not_hold_up_the_others(
    cluster: InMemoryCluster,
) -> None:
    """All partitions of a server share a connection, and it is not read while one is full."""
    writer = cluster.open_client(waltz.NoCallbacks())
    writer.append_many(0, [b"x" * 100_000] * 400)
    held = Held()
    client = cluster.open_client(held, partitions=[0, 1], mount_seconds_max=0.1)
    assert held.began.wait(60)
    machine = client._there.engine.runner(0).machine
    wait_until(lambda: not machine.feed.has_room, "the buffer is not full")
    leaving = Ended(lambda: client.set_partitions({1}))
    wait_until(lambda: machine.closed, "the partition is not closed")
    held.go.set()
    assert leaving.within(60)
    writer.append(1, b"y")
    assert client.wait_until_applied(timeout_seconds=60) == {1: 0}


def test_a_client_that_is_closed_while_it_leaves_a_partition_ends(
    cluster: InMemoryCluster,
) -> None:
    """Both wait for the callback that runs, and the partition is gone when it has returned."""
    cluster.open_client(waltz.NoCallbacks()).append(0, b"x")
    held = Held()
    client = cluster.open_client(held, partitions=[0, 1], mount_seconds_max=0.1)
    assert held.began.wait(60)
    machine = client._there.engine.runner(0).machine
    leaving = Ended(lambda: client.set_partitions({1}))
    wait_until(lambda: machine.closed, "the partition is not closed")
    closing = Ended(client.close)
    wait_until(lambda: client._there.engine.error is not None, "the client does not close")
    held.go.set()
    assert leaving.within(60)
    assert isinstance(leaving.error, waltz.ClientClosedError)
    assert closing.within(60)
    assert closing.error is None
    assert not client._there.engine._tasks._running


def test_a_partition_that_has_stopped_does_not_hold_up_the_next_client_id() -> None:
    """It will never say that its appends are decided."""
    with (
        turned({"SEQUENCE_NUMBERS_PER_CLIENT_ID": 30}),
        InMemoryCluster(for_tests=True, partitions=2) as cluster,
    ):
        client = cluster.open_client(Failing(), on_apply_failure="stop", apply_attempts_max=1)
        client.submit(PlainAppend(0, b"x"))
        machine = client._there.engine.runner(0).machine
        wait_until(lambda: machine.closed, "the partition does not stop")
        assert len(client.append_many(1, [b"y"] * 100, timeout_seconds=60)) == 100


def options() -> ClientOptions:
    partitions = frozenset(map(PartitionId, (0, 1)))
    return ClientOptions(partitions=partitions, mount_seconds_max=0.1)


def test_who_waits_for_a_mark_that_no_server_tells_learns_that_the_partition_is_given_up() -> None:
    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder(), options()) as client:
            await client.wait_until_applied()
            await cluster.coordinator.assign({cluster.server.address: {1: 1}})
            waiting = asyncio.create_task(client.wait_until_applied())
            runner = client.engine.runner(0)
            await until(lambda: bool(client.engine._requests._marks.get(PartitionId(0))))
            await client.set_partitions({1})
            with pytest.raises(PartitionInactiveError):
                await waiting
            with pytest.raises(PartitionInactiveError):
                await runner.waiting.unless_ended(asyncio.sleep(0))

    run_with_cluster(work, partition_count=2)


def test_a_mark_before_what_is_applied_here_is_asked_for_again() -> None:
    """A server that has lost the partition and does not know yet answers with an old one."""

    async def work(cluster: FakeCluster) -> None:
        log = cluster.server.partitions[0]
        log.add(b"x")
        async with AsyncWaltzClient(cluster.host, Recorder(), options()) as client:
            assert (await client.wait_until_applied())[PartitionId(0)] == 0
            log.old_marks = 2
            assert await client.get_high_water_mark(0) == -1
            assert (await client.wait_until_applied())[PartitionId(0)] == 0
            assert not log.old_marks

    run_with_cluster(work, partition_count=2)


@pytest.mark.parametrize("partitions", [{1}, {0, 1}])
def test_a_partition_leaves_although_no_server_gives_the_data_of_its_transactions(
    partitions: set[int],
) -> None:
    """The application is to be handed them, and a call of it is waited for."""

    async def work(cluster: FakeCluster) -> None:
        cluster.server.partitions[0].add(b"x")
        cluster.server.partitions[0].data_failures = 1_000_000
        async with AsyncWaltzClient(cluster.host, Recorder(), options()) as client:
            await until(lambda: cluster.server.count(TransactionDataRequest) > 0)
            await client.set_partitions({1})
            await client.set_partitions(partitions)
            assert client.active_partitions() == sorted(partitions)

    run_with_cluster(work, partition_count=2)


def test_a_partition_leaves_while_its_application_cannot_say_its_mark() -> None:
    """Nobody asks the application for the mark of a partition that is gone."""

    class Away(Recorder):
        asked = 0

        def get_client_high_water_mark(self, partition_id: PartitionId) -> waltz.TransactionId:
            if partition_id == 0:
                self.asked += 1
                raise waltz.PostponedError("database away", 0.001)
            return super().get_client_high_water_mark(partition_id)

    async def work(cluster: FakeCluster) -> None:
        away = Away()
        async with AsyncWaltzClient(cluster.host, away, options()) as client:
            await until(lambda: away.asked > 3)
            runner = client.engine.runner(0)
            await client.set_partitions({1})
            await until(lambda: not runner.application._loading)

    run_with_cluster(work, partition_count=2)


def test_a_question_that_is_asked_no_longer_leaves_nothing_behind(
    cluster: InMemoryCluster,
) -> None:
    client = cluster.open_client(Recorder())
    cluster.faults.suspend_feed()
    context = PlainAppend(0, b"x")
    client.submit(context)
    wait_until(lambda: context.request_id is not None, "it was not sent")
    request_id = context.request_id
    assert request_id is not None
    with pytest.raises(waltz.OperationTimeoutError):
        client.outcome(request_id, timeout_seconds=0.01)
    assert not client._there.engine.runner(0).waiting._outcomes
    cluster.faults.resume_feed()
    assert client.outcome(request_id, timeout_seconds=60) == 0
