"""Where a client learns what its cluster is: the coordinator, and the servers that it names."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.client import fake_cluster
from tests.client.applications import Recorder
from tests.client.fake_cluster import CLUSTER_KEY, FakeCluster, run_with_cluster
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.paths import DEFAULT_ROOT
from waltz.connections.cluster_connection import Role
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.connections.sources_shell import CoordinatorSource
from waltz.errors import PartitionNotReadyError, RemoteProtocolError
from waltz.wire.client_protocol import CLIENT_CODEC

OTHER_KEY = UUID(int=8)


def test_the_coordinator_says_which_cluster_it_is() -> None:
    async def work(cluster: FakeCluster) -> None:
        source = CoordinatorSource(cluster.host, DEFAULT_ROOT, lambda _: None, lambda _: None)
        assert await source.start_client() > 0
        assert source.current.cluster_key == CLUSTER_KEY
        connection = await source.open(cluster.server.address, Role.STREAM, ConnectionSettings())
        connection.close()
        await source.stop()

    run_with_cluster(work, codec=CLIENT_CODEC)


def test_a_server_of_another_cluster_is_refused_whoever_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F-1: an address that another cluster has now, in a view that is old."""
    terms = replace(fake_cluster.TERMS, cluster_key=OTHER_KEY)
    monkeypatch.setattr(fake_cluster, "TERMS", terms)

    async def work(cluster: FakeCluster) -> None:
        source = CoordinatorSource(cluster.host, DEFAULT_ROOT, lambda _: None, lambda _: None)
        await source.start()
        with pytest.raises(
            RemoteProtocolError, match=f"of cluster {OTHER_KEY}, where.*{CLUSTER_KEY}"
        ):
            await source.open(cluster.server.address, Role.STREAM, ConnectionSettings())
        await source.stop()
        cluster.server.partitions[0].log.append((None, 0, b"theirs"))  # type: ignore[arg-type]
        recorder = Recorder()
        options = ClientOptions(mount_seconds_max=0.2)
        async with AsyncWaltzClient(cluster.host, recorder, options) as client:
            with pytest.raises(PartitionNotReadyError):
                await client.append(0, b"x")
        assert recorder.applied == {}

    run_with_cluster(work, codec=CLIENT_CODEC)
