"""The console's questions to a running cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.clusters import RunningCluster, wait_until
from waltz.cli.cluster_list import ClusterMetadata
from waltz.cluster.paths import root_at
from waltz.console.answers import ConsumerAnswer, ConsumersTold, ServerTold
from waltz.console.asking_shell import ClusterAsker, consumers_told
from waltz.console.node_figures import figures_in
from waltz.errors import UnavailableError
from waltz.operators.client_questions_shell import ClientMount, Lag, MountedClient
from waltz.operators.named_consumers_shell import (
    ConsumerInstance,
    ConsumerPartition,
    ConsumersView,
    NamedConsumer,
)
from waltz.system.real_host import real_host
from waltz.types import (
    Address,
    ClientId,
    PartitionId,
    ReplicaId,
    TransactionId,
    parse_coordinator,
)

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


def test_consumers_are_told_by_partition_with_who_is_connected() -> None:
    zero, one = PartitionId(0), PartitionId(1)
    mount = ClientMount(zero, TransactionId(9), TransactionId(5), 0.1, None, None, True)
    client = MountedClient(
        1, ClientId(7), "orders", "", "", "", True, "CN=o", "10.0.0.9:1", 5, True, True, 60.0, 0.1,
        (mount,), 0,
    )  # fmt: skip
    partitions = (
        ConsumerPartition(zero, None, TransactionId(5), True, TransactionId(9), Lag(1.0, 2.0)),
        ConsumerPartition(one, None, None, False, None, None),
    )
    view = ConsumersView(
        (
            NamedConsumer("orders", partitions, (ConsumerInstance(NOWHERE, client),)),
            NamedConsumer(None, partitions[:1], (ConsumerInstance(NOWHERE, client),)),
        ),
        0.1,
        {NOWHERE: "refused"},
        False,
    )
    assert consumers_told(view) == ConsumersTold(
        (
            ConsumerAnswer("orders", zero, 5, True, 4, 1.0, 2.0, ("10.0.0.9:1",), ("CN=o",)),
            ConsumerAnswer("orders", one, None, False, None, None, None, (), (), True),
            ConsumerAnswer("client 7", zero, 5, True, 4, 1.0, 2.0, ("10.0.0.9:1",), ("CN=o",)),
        ),
        {str(NOWHERE): "refused"},
        False,
    )


def test_a_consumer_whose_kept_marks_cannot_be_read_is_told() -> None:
    found = NamedConsumer("orders", (), (), "no JSON")
    view = ConsumersView((found,), 0.1, {}, True)
    assert consumers_told(view) == ConsumersTold((), {}, True, {"orders": "no JSON"})
