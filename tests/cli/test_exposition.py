"""A node's state as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.parser import text_string_to_metric_families

from tests.storage.states import healthy, node_of
from tests.storage.support import KEY
from waltz.cli.exposition import server_families, storage_families
from waltz.figures import BOUNDS, Durations, Metric
from waltz.metrics import StateCollector
from waltz.server.clients.consumer_lags import ConsumersState
from waltz.server.server_metrics import (
    SERVER_METRICS,
    SERVER_PARTITION_METRICS,
    ServerPartitionCounters,
    ServerPartitionState,
    ServerStage,
    ServerState,
)
from waltz.storage.partition_replica import ReplicaCounters
from waltz.storage.storage_metrics import NODE_METRICS, PARTITION_METRICS, NodeState
from waltz.types import Generation, PartitionId, ServerId, TransactionId


def scraped(node: NodeState) -> dict[tuple[str, str], float]:
    return samples_of(storage_families(node, version="7"))


def samples_of(families: Iterator[MetricFamily]) -> dict[tuple[str, str], float]:
    """What a scraper sees: sample and partition to value."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(lambda: families))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            place = sample.labels.get("partition", "")
            if (bound := sample.labels.get("le")) is not None:
                place += f" le {bound}"
            found[sample.name, place] = sample.value
    return found


def name_of(metric: Metric[Any], prefix: str = "waltz_storage_") -> str:
    return f"{prefix}{metric.name}" + ("_total" if metric.is_counter else "")


def test_a_scraper_sees_every_figure_of_every_partition() -> None:
    node = node_of(healthy(0, counters=ReplicaCounters(requests=7)), healthy(4, segments=3))
    samples = scraped(node)
    assert samples["waltz_storage_partitions", ""] == 2
    assert samples["waltz_storage_requests_total", "0"] == 7
    assert samples["waltz_storage_segments", "4"] == 3
    assert samples["waltz_storage_durable_transaction_id", "4"] == 9
    for metric in PARTITION_METRICS:
        for partition in node.partitions:
            place = str(partition.partition_id)
            assert samples[name_of(metric), place] == metric.value(partition)
    for figure in NODE_METRICS:
        assert samples.get((name_of(figure), "")) == figure.value(node)


def test_durations_are_a_histogram() -> None:
    durations = Durations()
    for seconds in (0.0005, 0.002, 30.0):
        durations.add(seconds)
    samples = scraped(node_of(healthy(1, drain_seconds=durations)))
    name = "waltz_storage_drain_seconds"
    assert samples[f"{name}_count", "1"] == 3
    assert samples[f"{name}_sum", "1"] == 30.0025
    assert samples[f"{name}_bucket", "1 le 0.0005"] == 1
    assert samples[f"{name}_bucket", "1 le 10"] == 2
    assert samples[f"{name}_bucket", "1 le +Inf"] == 3
    assert sum(key[0] == f"{name}_bucket" for key in samples) == len(BOUNDS) + 1


def test_the_node_is_named() -> None:
    info = next(storage_families(node_of(), version="7"))
    assert info.samples[0].labels == {
        "cluster_key": str(KEY),
        "directory": "/storage",
        "version": "7",
    }


def test_a_node_without_partitions_can_be_scraped() -> None:
    assert scraped(node_of())["waltz_storage_partitions", ""] == 0


def test_a_scraper_sees_every_figure_of_a_server() -> None:
    well = ServerPartitionState(
        partition_id=PartitionId(0),
        generation=Generation(2),
        reason=None,
        high_water_mark=TransactionId(9),
        counters=ServerPartitionCounters(appends=7),
    )
    unwell = ServerPartitionState(
        partition_id=PartitionId(3), generation=Generation(1), reason="no quorum"
    )
    state = ServerState(
        stage=ServerStage.SERVING,
        server_id=ServerId(4),
        advertised="host:7000",
        connections=5,
        partitions=(well, unwell),
    )
    samples = samples_of(server_families(state, ConsumersState(), version="7"))
    assert samples["waltz_server_connections", ""] == 5
    assert samples["waltz_server_appends_total", "0"] == 7
    assert ("waltz_server_high_water_mark", "3") not in samples
    for metric in SERVER_PARTITION_METRICS:
        for partition in state.partitions:
            place = str(partition.partition_id)
            name = name_of(metric, "waltz_server_")
            assert samples.get((name, place)) == metric.value(partition)
    for figure in SERVER_METRICS:
        assert samples.get((name_of(figure, "waltz_server_"), "")) == figure.value(state)
