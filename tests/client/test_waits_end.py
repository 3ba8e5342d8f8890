"""Every wait of a client ends: with what it waits for, or with the reason why that never comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import waltz
from tests.client.applications import Recorder
from tests.clusters import wait_until
from waltz.client.transaction import PlainAppend
from waltz.errors import PartitionBlockedError, PartitionInactiveError, WaltzError
from waltz.testing import InMemoryCluster


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
    def apply_transaction(self, transaction: waltz.Transaction) -> None:
        raise ValueError("no")


class Ended:
    """Calls `function` on a thread of its own, and keeps how it ended."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.error: WaltzError | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._function()
        except WaltzError as error:
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
            await there.engine.runner(0).applied(transaction_id)

    client._thread.call(append_and_wait())


def test_who_waits_for_a_partition_that_is_given_up_is_told(cluster: InMemoryCluster) -> None:
    cluster.open_client(waltz.NoCallbacks()).append(0, b"x")
    held = Held()
    client = cluster.open_client(held, partitions=[0, 1], mount_seconds_max=0.1)
    assert held.began.wait(60)
    waiting = Ended(client.wait_until_applied)
    wait_until(lambda: bool(client._there.engine.runner(0)._waiting), "nobody waits")
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
    cluster.faults.suspend_feed()
    context = PlainAppend(0, b"x")
    client.submit(context)
    wait_until(lambda: context.request_id is not None, "it was not sent")
    request_id = context.request_id
    assert request_id is not None
    asking = Ended(lambda: client.outcome(request_id))
    wait_until(lambda: bool(client._there.engine.runner(0)._outcomes), "nobody asks")
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
    waiting = Ended(client.wait_until_applied)
    assert waiting.within(60)
    assert isinstance(waiting.error, PartitionBlockedError)
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
    wait_until(lambda: not machine.has_room, "the buffer is not full")
    leaving = Ended(lambda: client.set_partitions({1}))
    wait_until(lambda: machine.closed, "the partition is not closed")
    held.go.set()
    assert leaving.within(60)
    writer.append(1, b"y")
    assert client.wait_until_applied(timeout_seconds=10) == {1: 0}
