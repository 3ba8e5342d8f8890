"""Calls for the data of one transaction, when the server is lost, silent, or no longer asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import FakeCluster, run_with_cluster, until
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.transaction import Transaction
from waltz.connections.retry import NoRetries, Operation
from waltz.errors import (
    ClientClosedError,
    ConnectionLostError,
    LocalProtocolError,
    OperationTimeoutError,
    WaltzError,
)
from waltz.wire.client_protocol import TransactionDataRequest


def opened(cluster: FakeCluster, recorder: Recorder, **options: object) -> AsyncWaltzClient:
    settings = ClientOptions(reconnect_seconds_max=0.01, **options)  # type: ignore[arg-type]
    return AsyncWaltzClient(cluster.host, recorder, settings)


def filled(cluster: FakeCluster, count: int) -> list[bytes]:
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        cluster.server.partitions[0].add(body)
    return bodies


class Noting:
    """A policy for retries that notes what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[Operation, int, str]] = []

    def should_retry(
        self, client: object, operation: Operation, attempt: int, error: WaltzError
    ) -> bool:
        self.seen.append((operation, attempt, str(error)))
        return attempt < 5


def test_a_call_whose_connection_is_lost_is_repeated_as_the_policy_allows() -> None:
    """PM-32."""

    async def work(cluster: FakeCluster) -> None:
        bodies = filled(cluster, 1)
        cluster.server.partitions[0].data_cuts = 2
        recorder, policy = Recorder(prefetch=False), Noting()
        async with opened(cluster, recorder, retry_policy=policy):
            await until(recorder.has_applied(0))
        assert recorder.data == bodies
        assert recorder.uncaught == []
        lost = "transaction data: the connection to the server of partition 0 was lost"
        expected = [(Operation.TRANSACTION_DATA, attempt, lost) for attempt in range(2)]
        # Connections that are back before the policy has answered ask again by themselves: then the
        # second cut meets no call, and the policy is asked once.
        assert policy.seen in (expected, expected[:1])

    run_with_cluster(work)


def test_a_policy_without_retries_has_the_callback_told() -> None:
    """PM-38: the callback is called again."""

    async def work(cluster: FakeCluster) -> None:
        bodies = filled(cluster, 1)
        cluster.server.partitions[0].data_cuts = 1
        recorder = Recorder(prefetch=False)
        async with opened(cluster, recorder, retry_policy=NoRetries()):
            await until(recorder.has_applied(0))
        ((_, transaction_id, error),) = recorder.uncaught
        assert (transaction_id, type(error)) == (0, ConnectionLostError)
        assert recorder.data == bodies

    run_with_cluster(work)


def test_data_requested_ahead_comes_over_the_next_connection() -> None:
    """CI-04: connections end in the midst of reading one body after the other."""

    async def work(cluster: FakeCluster) -> None:
        bodies = filled(cluster, 400)
        recorder = Recorder(prefetch=False)
        cuts = iter((37, 38, 90, 91, 92, 200))
        cut_at = next(cuts)

        def wants(transaction: Transaction) -> bool:
            nonlocal cut_at
            if transaction.transaction_id >= cut_at:
                cut_at = next(cuts, 1_000)
                cluster.server.partitions[0].data_cuts += 1
            return True

        recorder.wants = wants
        async with opened(cluster, recorder):
            await until(recorder.has_applied(399))
        assert recorder.data == bodies
        assert recorder.applied_in() == [*range(400)]

    run_with_cluster(work)


def test_a_call_ends_when_its_time_is_up() -> None:
    async def work(cluster: FakeCluster) -> None:
        filled(cluster, 1)
        partition = cluster.server.partitions[0]
        partition.data_held = True
        recorder = Recorder(prefetch=False)
        async with opened(cluster, recorder, operation_seconds_max=0.05):
            await until(lambda: bool(recorder.uncaught))
        error = recorder.uncaught[0][2]
        assert isinstance(error, OperationTimeoutError)
        assert str(error) == "transaction data: no answer in 0.05 s"

    run_with_cluster(work)


def test_all_attempts_of_a_call_share_its_time() -> None:
    async def work(cluster: FakeCluster) -> None:
        filled(cluster, 1)
        partition = cluster.server.partitions[0]
        partition.data_cuts, partition.data_held = 1, True
        recorder = Recorder(prefetch=False)
        async with opened(cluster, recorder, operation_seconds_max=1.0):
            await until(lambda: bool(recorder.uncaught))
        error = recorder.uncaught[0][2]
        assert isinstance(error, OperationTimeoutError)
        assert str(error) == "transaction data: no answer in 1 s"
        assert [type(each) for each in error.earlier] == [ConnectionLostError]

    run_with_cluster(work)


def test_closing_ends_a_call_that_waits() -> None:
    """PM-44."""

    async def work(cluster: FakeCluster) -> None:
        filled(cluster, 1)
        cluster.server.partitions[0].data_held = True
        errors: list[Exception] = []

        class Keeping(Recorder):
            def apply_transaction(self, transaction: Transaction) -> None:
                try:
                    super().apply_transaction(transaction)
                except Exception as error:
                    errors.append(error)
                    raise

        async with opened(cluster, Keeping(prefetch=False)):
            await until(lambda: cluster.server.count(TransactionDataRequest) == 1)
        await until(lambda: bool(errors))
        assert isinstance(errors[0], ClientClosedError)

    run_with_cluster(work)


def test_data_is_not_waited_for_on_the_loop() -> None:
    async def work(cluster: FakeCluster) -> None:
        filled(cluster, 8)
        kept: list[Transaction] = []

        class Keeping(Recorder):
            def apply_transactions(self, transactions: Sequence[Transaction]) -> None:
                kept.extend(transactions)

        async with opened(cluster, Keeping(prefetch=False)):
            await until(lambda: len(kept) == 8)
            for transaction in kept:
                with pytest.raises(LocalProtocolError, match="asked for on the event loop"):
                    transaction.data  # noqa: B018 - fetched by this

    run_with_cluster(work)
