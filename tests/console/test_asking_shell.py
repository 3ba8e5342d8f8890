"""The console's questions to a running cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.clusters import RunningCluster, wait_until
from waltz.cli.cluster_list import ClusterMetadata
from waltz.cluster.paths import root_at
from waltz.console.answers import ServerTold
from waltz.console.asking_shell import ClusterAsker
from waltz.console.node_figures import figures_in
from waltz.errors import UnavailableError
from waltz.system.real_host import real_host
from waltz.types import Address, ReplicaId, parse_coordinator

pytestmark = pytest.mark.processes

NOWHERE = Address("127.0.0.1", 9)


Answers = tuple[ClusterMetadata, ServerTold, set[str | None]]


async def ask_all(cluster: RunningCluster) -> Answers | None:
    """Return all answers; None: the server has not got its partitions yet."""
    address = parse_coordinator(cluster.coordinator)
    assert not hasattr(address, "servers")
    host = real_host(address)
    try:
        asker = ClusterAsker(host, root_at(address))
        metadata = await asker.coordinator()
        if not metadata.membership.is_consistent or not metadata.membership.descriptors:
            return None
        ((server_id, descriptor),) = metadata.membership.descriptors.items()
        owned = sorted(metadata.membership.assignment.servers[server_id])
        told = await asker.server(descriptor.address, owned)
        reports = [await asker.node(node, metadata) for node in metadata.replicas()]
        assert all(figures_in(each.metrics_json) is not None for each in reports)
        gone = await asker.node(ReplicaId(str(NOWHERE)), metadata)
        assert gone.trouble is not None
        with pytest.raises(UnavailableError):
            await asker.server(NOWHERE, owned)
        return metadata, told, {each.unreachable() for each in reports}
    finally:
        await host.coordinator.close()


def test_every_process_answers_for_itself(cluster: RunningCluster) -> None:
    def is_whole() -> bool:
        if (found := asyncio.run(ask_all(cluster))) is None:
            return False
        metadata, told, troubles = found
        assert metadata.partition_count == 2
        assert told.reports is not None
        assert set(told.reports.reports) == {0, 1}
        assert troubles == {None}
        return all(each.writable == 1 for each in told.reports.reports.values())

    wait_until(is_whole, "the cluster does not become whole")
