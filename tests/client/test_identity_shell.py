"""A client goes over to another client ID, and nobody who uses it can tell."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.client.applications import Note, Recorder
from tests.clusters import wait_until
from waltz.client.appends import request_numbers
from waltz.client.appends.request_numbers import SEQUENCE_NUMBERS_PER_CLIENT_ID
from waltz.client.identity_shell import ClientIdentity
from waltz.client.partitions.client_partition_events import ClientIdRunsOut
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.skipping_shell import pass_over_numbers
from waltz.errors import ClientClosedError
from waltz.sim.knobs import turned
from waltz.testing import InMemoryCluster
from waltz.types import PartitionId, SessionId

LAST = SEQUENCE_NUMBERS_PER_CLIENT_ID


@pytest.fixture
def near_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients begin 40 appends before the end of the client ID that they get first, and ask for the
    next one 20 later: the first appends are made under the first client ID, however long the client
    is kept from sending."""
    start = ClientIdentity.__init__

    def started(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        self._sequence_numbers = {PartitionId(number): LAST - 40 for number in range(2)}

    monkeypatch.setattr(ClientIdentity, "__init__", started)
    monkeypatch.setattr(request_numbers, "CLIENT_ID_RENEWAL_SHARE", (LAST - 20) / LAST)


def logged(cluster: InMemoryCluster, partition_id: int, end: int) -> list[tuple[bytes, bytes]]:
    """Data and request ID of each transaction."""
    with cluster.open_reader() as reader:
        return [
            (data, columns.request_ids[16 * place : 16 * place + 16])
            for columns in reader.read(partition_id, 0, end)
            for place, data in enumerate(columns.data)
        ]


@pytest.mark.usefixtures("near_the_end")
@pytest.mark.parametrize("version", [4, 5])
def test_threads_and_append_many_pass_the_last_number(version: int) -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        recorder = Recorder()
        client = cluster.open_client(recorder, protocol_version_max=version)
        before = client.client_id
        with ThreadPoolExecutor(4) as threads:
            singles = [
                threads.submit(client.append, number % 2, b"single %d" % number)
                for number in range(100)
            ]
            rows = [b"row %d" % number for number in range(150)]
            many = [threads.submit(client.append_many, each, rows) for each in (0, 1)]
            taken = [(number % 2, single.result(60)) for number, single in enumerate(singles)]
            places = [each.result(60).tolist() for each in many]
        assert client.client_id != before
        for partition_id in (0, 1):
            found = logged(cluster, partition_id, 200)
            assert client.get_high_water_mark(partition_id) == 199, "nothing is there twice"
            assert len({request_id for _, request_id in found}) == 200
            for number, (partition, place) in enumerate(taken):
                if partition == partition_id:
                    assert found[place][0] == b"single %d" % number
            assert [found[place][0] for place in places[partition_id]] == rows
        wait_until(lambda: recorder.applied_in(1) == [*range(200)], "not all is applied")


@pytest.mark.usefixtures("near_the_end")
def test_tasks_pass_the_last_number_and_ask_for_outcomes_of_both_client_ids() -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:

        async def work() -> None:
            async with cluster.open_async_client(Recorder()) as client:
                before = client.client_id
                notes = [Note(f"{number}") for number in range(60)]
                for note in notes:
                    await client.submit(note)
                await client.flush(60)
                rows = await client.append_many(1, [b"row"] * 100, timeout_seconds=60)
                assert rows.tolist() == [*range(100)]
                assert client.client_id != before
                asked = [note.request_id for note in notes if note.request_id is not None]
                assert {each.client_id for each in asked} == {before, client.client_id}
                assert len(set(asked)) == 60
                found = await asyncio.gather(*(client.outcome(each) for each in asked))
                assert sorted(each for each in found if each is not None) == [*range(60)]

        asyncio.run(work())


def test_client_ids_follow_on_each_other_while_contexts_and_rows_go_on() -> None:
    with (
        turned({"SEQUENCE_NUMBERS_PER_CLIENT_ID": 30}),
        InMemoryCluster(for_tests=True, partitions=2) as cluster,
    ):
        client = cluster.open_client(Recorder())
        for number in range(20):
            rows = [b"%d %d" % (number, row) for row in range(40)]
            assert len(client.append_many(number % 2, rows, timeout_seconds=60)) == 40
            client.append(1, b"single")
        assert client.client_id > 10
        assert len({request_id for _, request_id in logged(cluster, 1, 420)}) == 420
        assert client.get_high_water_mark(0) == 399


def test_a_partition_that_comes_while_appends_are_held_holds_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would send under the client ID before, and be left behind with what is undecided."""
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:

        async def work() -> None:
            async with cluster.open_async_client(Recorder(), partitions=[0]) as client:
                before = client.client_id
                identity = client.engine.identity

                async def renew() -> None:
                    identity.see_to(ClientIdRunsOut())

                await client._do(renew())  # type: ignore[attr-defined]
                await client.set_partitions([0, 1])
                await client.append(1, b"of the new one")
                await client.append(0, b"of the old one")
                while client.client_id == before:
                    await client.append(0, b"again")
                assert await client.append(1, b"under the next") == 1

        asyncio.run(work())


def test_a_client_that_doubts_its_client_id_sends_nothing_more_under_it() -> None:
    """The second doubt comes while another client ID is being taken, and is of that one, too."""
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        client = cluster.open_client(Recorder())
        before = client.client_id
        for number in range(10):
            client.append(0, b"%d" % number)

        async def doubt() -> None:
            client.engine.identity.doubt()
            await asyncio.sleep(0)
            client.engine.identity.doubt()

        cluster._thread.call(doubt())
        for number in range(10, 20):
            client.append(0, b"%d" % number)
        after = client.client_id
        assert after == before + 2
        found = logged(cluster, 0, 20)
        assert [int(data) for data, _ in found] == [*range(20)]
        ids = [int.from_bytes(request_id[:4], "big") for _, request_id in found]
        assert ids == [before] * 10 + [after] * 10


def test_a_server_that_raises_doubts_for_ever_costs_one_client_id_per_second() -> None:
    with InMemoryCluster(for_tests=True, partitions=1) as cluster:
        client = cluster.open_client(Recorder())
        before = client.client_id

        async def doubt() -> None:
            loop = asyncio.get_running_loop()
            end = loop.time() + 2.5
            while loop.time() < end:
                client.engine.identity.doubt()
                await asyncio.sleep(0.001)

        cluster._thread.call(doubt())
        taken = cluster.open_client(Recorder()).client_id - before - 1
        assert 1 <= taken <= 4, "one at once, and one per second since"
        client.append(0, b"the doubts have ended")


async def set_back(cluster: InMemoryCluster) -> None:
    """Let a server pass over numbers, as if the coordinator had been set back."""
    host, release = cluster._new_host()
    path = ClusterPaths().server_descriptors
    node = await host.coordinator.read(path)
    (held,) = PartitionAssignment.decode(node.data or b"").servers.values()
    generation = held[PartitionId(0)]
    await pass_over_numbers(
        host.coordinator, host.random, DEFAULT_ROOT, PartitionId(0), generation, SessionId(600_000)
    )
    await host.coordinator.close()
    release()


def test_a_coordinator_that_was_set_back_gives_a_client_another_client_id() -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        client = cluster.open_client(Recorder())
        client.append(1, b"before")
        cluster._thread.call(set_back(cluster))
        wait_until(lambda: client.client_id > 1_000_000, "the client has no other client ID")
        assert [client.append(each, b"after") for each in (0, 1)] == [0, 1]


def test_a_client_that_keeps_its_client_id_ends_when_the_coordinator_was_set_back() -> None:
    with InMemoryCluster(for_tests=True, partitions=2) as cluster:
        client = cluster.open_client(Recorder(), keeps_client_id=True)
        before = client.client_id
        client.append(1, b"before")
        cluster._thread.call(set_back(cluster))
        wait_until(lambda: client.is_closed, "the client goes on")
        with pytest.raises(ClientClosedError, match="the coordinator was set back"):
            client.append(1, b"after")
        with cluster.open_reader() as reader:
            assert reader.high_water_mark(1) == 0
        assert client.client_id == before
