"""The times of transactions, as applications ask for them: of simulated machines, of a cluster in
memory, and of one of processes."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

import waltz
from tests.clusters import running_cluster
from tests.operators.test_journals_shell import P0, append_slowly, t
from tests.server.test_server_shell import PARTITIONS, STORAGES, World, play
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import LocalProtocolError, NotFoundError, UnavailableError
from waltz.host import Host
from waltz.operators.log_times_shell import ACCESS_SECONDS_MAX, AsyncLogTimes
from waltz.testing import InMemoryCluster


def test_a_client_tells_when_a_transaction_was_committed_and_which_one_a_time_finds() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 5)
        async with AsyncWaltzClient(host, NoCallbacks()) as client:
            times = [await client.time_of(P0, number) for number in range(6)]
            for earlier, found in itertools.pairwise(times[:5]):
                assert earlier.not_after is not None
                assert found.not_before is not None
                assert timedelta(seconds=9) < found.not_before - earlier.not_after
                assert found.problems == {}
            assert times[5] == (None, None, {})
            between = times[2].not_after
            assert between is not None
            place = await client.transaction_at(P0, between + timedelta(seconds=5))
            assert place == (3, 3, {})
            assert await client.transaction_at(P0, datetime(1960, 1, 1, tzinfo=UTC)) == (0, 0, {})
            assert await client.transaction_at(P0, datetime(2990, 1, 1, tzinfo=UTC)) == (
                5,
                None,
                {},
            )
            with pytest.raises(LocalProtocolError, match="no time zone"):
                await client.transaction_at(P0, datetime(2990, 1, 1))
            with pytest.raises(NotFoundError, match="no partition 99"):
                await client.time_of(99, 0)
            with pytest.raises(LocalProtocolError, match="expected 0 to"):
                await client.time_of(P0, -1)

    play(scene, seeds=2)


def test_a_client_of_servers_without_a_way_to_the_coordinator_says_what_is_missing() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 1)
        async with AsyncWaltzClient(host, NoCallbacks()) as client:
            servers = tuple({address for address, _ in client.snapshot.partitions.values()})
        options = ClientOptions(servers=servers)
        async with AsyncWaltzClient(host, NoCallbacks(), options) as client:
            with pytest.raises(UnavailableError, match="open it with the coordinator's address"):
                await client.time_of(P0, 0)

    play(scene, seeds=1)


def test_nodes_that_are_away_make_intervals_wider_and_are_asked_again_later() -> None:
    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 3)
        times = AsyncLogTimes(host)
        told = await times.times_of(P0, 0, 4)
        assert np.isnat(told.not_after).tolist() == [False] * 3 + [True]
        assert (told.not_before[:3] <= told.not_after[:3]).all()
        for name in STORAGES[:2]:
            world.sites.kill(world.sites.site(name))
        await asyncio.sleep(ACCESS_SECONDS_MAX + 1)
        told = await times.times_of(P0, 0, 3)
        assert np.isnat(told.not_after).all()
        assert np.isnat(told.not_before).all()
        assert sorted(told.problems) == sorted(f"{name}:7000" for name in STORAGES[:2])
        now = datetime(2990, 1, 1, tzinfo=UTC)
        places = await times.transactions_at(now, {P0: t(2), PARTITIONS[1]: t(-1)})
        assert places[P0][:2] == (0, None), "one of three copies proves nothing"
        assert sorted(places[P0].problems) == sorted(told.problems)
        with pytest.raises(LocalProtocolError, match="expected a range"):
            await times.times_of(P0, 2, 1)
        await times.close()
        await times.close()

    play(scene, seeds=1)


def test_a_question_that_is_given_up_does_not_leave_its_answer_to_the_next_one() -> None:
    """Given up at any moment: while the question is on its way, or while its answer is."""

    async def scene(world: World, host: Host) -> None:
        await append_slowly(host, 4)
        times = AsyncLogTimes(host)
        told = [await times.time_of(P0, number) for number in range(4)]
        for number in range(1, 101):
            asking = asyncio.create_task(times.time_of(P0, 0))
            await asyncio.sleep(number / 1_000)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert await times.time_of(P0, 3) == told[3], number
        await times.close()

    play(scene, seeds=3)


def test_the_same_can_be_asked_of_a_cluster_in_memory() -> None:
    with InMemoryCluster(for_tests=True, partitions=1) as cluster:
        client = cluster.open_client(waltz.NoCallbacks())
        for number in range(3):
            client.append(0, b"%d" % number)
        found = client.time_of(0, 2)
        assert found.not_before is not None
        assert found.not_after is not None
        assert client.transaction_at(0, found.not_after).first == 3
        assert client.transaction_at(0, datetime(1960, 1, 1, tzinfo=UTC)).later == 0


@pytest.mark.processes
def test_clients_of_a_coordinator_and_of_servers_are_told_the_same(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    with (
        running_cluster(tmp_path_factory.mktemp("times") / "cluster") as cluster,
        waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client,
    ):
        written = client.append(0, b"paid")
        found = client.time_of(0, written)
        after = datetime.now(UTC) + timedelta(seconds=1)
        assert found.not_before is not None
        assert found.not_after is not None
        assert before < found.not_before <= found.not_after < after
        with waltz.open_client(servers_of(client), waltz.NoCallbacks()) as other:
            told = other.time_of(0, written)
            # More may have been noted since: the intervals differ, and have a time in common.
            assert told.not_before is not None
            assert told.not_after is not None
            assert max(told.not_before, found.not_before) <= min(told.not_after, found.not_after)
            assert other.transaction_at(0, after).first == written + 1
        with waltz.open_times(servers_of(client)) as times:
            columns = times.times_of(0, written, written + 1)
            (high,) = columns.not_after.tolist()
            assert found.not_before <= high.replace(tzinfo=UTC) < after
            marks = {waltz.PartitionId(0): written}
            assert times.transactions_at(before, marks)[waltz.PartitionId(0)][:2] == (0, 0)


def servers_of(client: waltz.WaltzClient) -> str:
    return f"waltz://{next(iter(client.connected_servers))}"
