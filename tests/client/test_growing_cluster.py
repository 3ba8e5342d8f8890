"""A cluster that gets more partitions while clients run."""

from __future__ import annotations

import pytest

from tests.client.applications import Recorder
from tests.client.fake_cluster import ROOT, FakeCluster, FakePartition, run_with_cluster, until
from waltz.client.options import ClientOptions
from waltz.client.shell import AsyncWaltzClient
from waltz.cluster.store_params import ClusterParams
from waltz.errors import NotFoundError
from waltz.host import ANY_VERSION


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
