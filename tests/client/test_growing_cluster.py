"""A cluster that gets more partitions while clients run."""

from __future__ import annotations

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import ROOT, FakeCluster, FakePartition, run_with_cluster, until
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.store_params import ClusterParams
from waltz.errors import NotFoundError
from waltz.host import ANY_VERSION
from waltz.types import PartitionId


def test_running_clients_follow_the_partitions_that_are_added() -> None:
    """CI-09: from three to five, without a restart."""

    async def work(cluster: FakeCluster) -> None:
        recorder = Recorder()
        async with AsyncWaltzClient(cluster.host, recorder, ClientOptions()) as client:
            await client.append(2, b"")
            with pytest.raises(NotFoundError, match="partition 3; expected 0 to 2"):
                await client.get_high_water_mark(3)
            for number in (3, 4):
                cluster.server.partitions[number] = FakePartition()
                cluster.server.partitions[number].add(b"before")
            coordinator = cluster.coordinator
            await coordinator.write(
                ROOT.root, ClusterParams("fake", 5).encode(), version=ANY_VERSION
            )
            await coordinator.assign({cluster.server.address: dict.fromkeys(range(5), 1)})
            await until(lambda: client.partition_count == 5)
            assert await client.append(3, b"new") == 1
            await until(lambda: recorder.applied_in(4) == [0])
            assert await client.append(2, b"") == 1
        assert recorder.applied_in(3) == [0, 1]

    run_with_cluster(work, partition_count=3)


def test_whoever_wants_only_what_comes_later_gets_all_of_a_partition_that_is_added() -> None:
    """F-35: what was written there before the client has noticed came later than the client."""

    class FromNowOn(Recorder):
        def get_client_high_water_mark(self, partition_id: PartitionId) -> None:  # type: ignore[override]
            return None

    async def work(cluster: FakeCluster) -> None:
        recorder, chosen = FromNowOn(), FromNowOn()
        cluster.server.partitions[0].add(b"long before")
        async with (
            AsyncWaltzClient(cluster.host, recorder, ClientOptions()) as client,
            AsyncWaltzClient(cluster.host, chosen, ClientOptions(partitions=frozenset())) as other,
        ):
            await client.append(0, b"later")
            cluster.server.partitions[1] = FakePartition()
            cluster.server.partitions[1].add(b"before it has noticed")
            await cluster.coordinator.assign({cluster.server.address: {0: 1, 1: 1}})
            await until(lambda: recorder.applied_in(1) == [0])
            await client.append(1, b"then")
            await until(lambda: other.partition_count == 2)
            await other.set_partitions([1])
            await until(lambda: other.client_high_water_mark(1) == 1)
            await client.append(1, b"chosen since")
            await until(lambda: chosen.applied_in(1) == [2])
        assert recorder.applied_in(0) == [1]
        assert recorder.applied_in(1) == [0, 1, 2]

    run_with_cluster(work, partition_count=1)
