"""Which operations are repeated, how often, and what is left when they are not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.retry import NoRetries, Operation, RetryAll, RetryPolicy, RetryReads
from waltz.errors import ConnectionLostError, OperationTimeoutError, WaltzError
from waltz.types import TransactionId
from waltz.wire.client_protocol import AppendRequest, HighWaterMarkRequest

LOST = ConnectionLostError("gone")


def test_none_retries_nothing() -> None:
    """LC-80."""
    assert not any(NoRetries().should_retry(None, each, 0, LOST) for each in Operation)


@pytest.mark.parametrize("policy", [RetryReads(3), RetryAll(3)])
def test_the_others_retry_up_to_their_limit(policy: RetryPolicy) -> None:
    """LC-81."""
    for operation in Operation:
        answers = [policy.should_retry(None, operation, attempt, LOST) for attempt in range(5)]
        assert answers == [True, True, True, False, False]


@dataclass
class Asked:
    """Retries so many times and writes down what it was asked."""

    retries: int
    calls: list[tuple[object, Operation, int, WaltzError]] = field(default_factory=list)

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        self.calls.append((client, operation, attempt, error))
        return attempt < self.retries


def silent(cluster: FakeCluster) -> None:
    """Let the server never answer, whatever is asked."""
    cluster.server.partitions.clear()


async def ask_through_breaks(client: AsyncWaltzClient, cluster: FakeCluster, breaks: int) -> object:
    """Ask for a mark, and cut the connections `breaks` times while nobody answers."""
    asking = asyncio.create_task(client.get_high_water_mark(0))
    for number in range(1, breaks + 1):
        await until(lambda n=number: cluster.server.count(HighWaterMarkRequest) >= n)  # type: ignore[misc]
        cluster.server.cut()
    return await asking


@pytest.mark.parametrize("retries", [0, 2])
def test_the_policy_is_asked_per_attempt_and_the_last_error_has_the_earlier_ones(
    retries: int,
) -> None:
    """LC-72, LC-80: attempts count from 0."""

    async def work(cluster: FakeCluster) -> None:
        policy = Asked(retries)
        options = ClientOptions(retry_policy=policy)
        async with AsyncWaltzClient(cluster.host, Recorder(), options) as client:
            silent(cluster)
            with pytest.raises(ConnectionLostError, match="high-water mark") as raised:
                await ask_through_breaks(client, cluster, retries + 1)
            assert [call[:3] for call in policy.calls] == [
                (client, Operation.HIGH_WATER_MARK, attempt) for attempt in range(retries + 1)
            ]
            assert raised.value.earlier == tuple(call[3] for call in policy.calls[:-1])

    run_with_cluster(work)


def test_by_default_a_read_goes_on_after_a_break() -> None:
    """LC-72, LC-81."""

    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            partitions = dict(cluster.server.partitions)
            silent(cluster)
            asking = asyncio.create_task(ask_through_breaks(client, cluster, 3))
            await until(lambda: cluster.server.count(HighWaterMarkRequest) >= 3)
            cluster.server.partitions.update(partitions)
            assert await asking == -1

    run_with_cluster(work)


def test_an_append_is_no_matter_of_any_policy() -> None:
    """LC-81, PM-40: what was sent once is sent again by its context only, once it is known lost."""

    async def work(cluster: FakeCluster) -> None:
        policy = Asked(1000)
        options = ClientOptions(retry_policy=policy)
        cluster.server.partitions[0].feed_held = True
        async with AsyncWaltzClient(cluster.host, NoCallbacks(), options) as client:
            appending = asyncio.create_task(client.append(0, b"once"))
            await until(lambda: cluster.server.count(AppendRequest) == 1)
            cluster.server.cut()
            cluster.server.partitions[0].feed_held = False
            assert await appending == TransactionId(0)
            assert cluster.server.count(AppendRequest) == 1
            assert policy.calls == []

    run_with_cluster(work)


def test_all_attempts_together_have_one_time_limit() -> None:
    """LC-87."""

    async def work(cluster: FakeCluster) -> None:
        options = ClientOptions(operation_seconds_max=0.1)
        async with AsyncWaltzClient(cluster.host, NoCallbacks(), options) as client:
            silent(cluster)
            with pytest.raises(OperationTimeoutError, match=r"high-water mark: no answer in 0\.1"):
                await client.get_high_water_mark(0)
            with pytest.raises(OperationTimeoutError, match=r"0\.05"):
                await client.get_high_water_mark(0, timeout_seconds=0.05)

    run_with_cluster(work)


def test_an_append_may_have_a_time_limit() -> None:
    """LC-87: the outcome is unknown then."""

    async def work(cluster: FakeCluster) -> None:
        async with AsyncWaltzClient(cluster.host, NoCallbacks()) as client:
            await client.append(0, b"mounted")
            cluster.server.partitions[0].feed_held = True
            with pytest.raises(OperationTimeoutError) as raised:
                await client.append(0, b"a", timeout_seconds=0.5)
            assert raised.value.may_be_written
            assert not client.has_pending_transactions()

    run_with_cluster(work)
