"""A caller with a token waits until a client has applied the transactions of the token."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import CLUSTER_KEY, FakeCluster, run_with_cluster, until
from tests.client.test_following_one_history import FORK, RESTORE, by_servers, fill, restore
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.consistency_token import ConsistencyToken
from waltz.errors import (
    HistoryChangedError,
    LocalProtocolError,
    NotFoundError,
    OperationTimeoutError,
    PartitionInactiveError,
)
from waltz.testing import InMemoryCluster
from waltz.wire.client_protocol import CLIENT_CODEC


def token_of(mark: int, history: UUID = CLUSTER_KEY) -> ConsistencyToken:
    return ConsistencyToken.of(history, {0: mark})


def test_what_one_client_has_appended_another_one_has_applied_after_the_wait() -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        writer, recorder = cluster.open_client(Recorder()), Recorder()
        reader = cluster.open_client(recorder)
        for number in range(50):
            token = writer.token({number % 2: writer.append(number % 2, b"%d" % number)})
            travelled = ConsistencyToken.parse(str(token))
            assert reader.wait_until_applied(token=travelled) == token.marks
            assert reader.has_applied(travelled)
            assert b"%d" % number in recorder.data


def test_a_client_that_has_not_applied_says_so_and_what_is_missing() -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, 3)
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            await client.wait_until_applied(token=token_of(2))
            assert client.has_applied(token_of(2))
            assert not client.has_applied(token_of(3))
            with pytest.raises(OperationTimeoutError, match="partition 0 is at 2 of 3"):
                await client.wait_until_applied(token=token_of(3), timeout_seconds=0.01)
            waiting = asyncio.create_task(client.wait_until_applied(token=token_of(3)))
            fill(cluster, 1)
            cluster.server.feed()
            assert await waiting == {0: 3}

    run_with_cluster(work)


def test_what_this_client_cannot_know_is_refused() -> None:
    async def work(cluster: FakeCluster) -> None:
        options = ClientOptions(partitions=[0])
        async with AsyncWaltzClient(cluster.host, Recorder(), options) as client:
            for partition, error in ((1, PartitionInactiveError), (2, NotFoundError)):
                token = ConsistencyToken.of(CLUSTER_KEY, {partition: 0})
                with pytest.raises(error):
                    await client.wait_until_applied(token=token)
                with pytest.raises(error):
                    client.has_applied(token)
            with pytest.raises(NotFoundError):
                client.token({2: 0})
            with pytest.raises(LocalProtocolError, match="leave out `partitions`"):
                await client.wait_until_applied(token=token_of(0), partitions=[0])
            another = token_of(0, UUID(int=99))
            with pytest.raises(HistoryChangedError, match="the token is of another log, or"):
                await client.wait_until_applied(token=another)
            with pytest.raises(HistoryChangedError):
                client.has_applied(another)

    run_with_cluster(work, partition_count=2)


def test_a_token_of_what_a_restore_has_left_out_is_refused_and_an_older_one_is_good() -> None:
    async def work(cluster: FakeCluster) -> None:
        fill(cluster, FORK + 1)
        await restore(cluster, by_servers, (RESTORE,))
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            await client.wait_until_applied(token=token_of(FORK - 1))
            with pytest.raises(HistoryChangedError, match=f"transaction {FORK} of partition 0"):
                await client.wait_until_applied(token=token_of(FORK))
            last = {0: FORK + 3}
            assert await client.wait_until_applied() == last
            assert client.token(last).history_among([RESTORE.history_id]) == RESTORE.history_id
            assert await client.wait_until_applied(token=client.token(last)) == last

    run_with_cluster(work, codec=CLIENT_CODEC)


def test_neither_a_token_nor_its_refusal_tells_the_key_of_the_cluster() -> None:
    """A storage node that authenticates nobody asks for the key (threat-model.md)."""

    async def work(cluster: FakeCluster) -> None:
        fill(cluster, FORK + 1)
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            await client.wait_until_applied()
            token, forged = client.token({0: FORK}), token_of(0, UUID(int=99))
            with pytest.raises(HistoryChangedError) as raised:
                client.has_applied(forged)
            for text in (str(token), str(raised.value)):
                assert CLUSTER_KEY.hex not in text.replace("-", "")

    run_with_cluster(work, codec=CLIENT_CODEC)


def test_a_log_that_is_restored_during_the_wait_has_other_transactions() -> None:
    """The numbers of the token come again, and are not what the token names."""

    async def work(cluster: FakeCluster) -> None:
        fill(cluster, FORK)
        async with AsyncWaltzClient(cluster.host, Recorder()) as client:
            await client.wait_until_applied()
            waiting = asyncio.create_task(client.wait_until_applied(token=token_of(FORK + 1)))
            await asyncio.sleep(0)
            await restore(cluster, by_servers, (RESTORE,))
            await until(lambda: client.client_high_water_mark(0) == FORK + 3)
            with pytest.raises(HistoryChangedError, match="or the log was restored"):
                await waiting

    run_with_cluster(work, codec=CLIENT_CODEC)
