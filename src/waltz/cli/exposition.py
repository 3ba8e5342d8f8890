"""The state of a storage node or a server as metric families of Prometheus.

Owns names and labels as Prometheus wants them. Imported only where a port serves it: the library
takes 30 ms and 5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from waltz.figures import Metric
from waltz.server.server_metrics import SERVER_METRICS, SERVER_PARTITION_METRICS, ServerState
from waltz.storage.storage_metrics import (
    DRAIN_MEANING,
    DRAIN_SECONDS,
    NODE_METRICS,
    PARTITION_METRICS,
    NodeState,
)
from waltz.types import PartitionId

S = TypeVar("S")

STORAGE_PREFIX: Final = "waltz_storage_"
SERVER_PREFIX: Final = "waltz_server_"


class Partitioned(Protocol):
    @property
    def partition_id(self) -> PartitionId: ...


P = TypeVar("P", bound=Partitioned)


def storage_families(state: NodeState, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of a node, then of its partitions; one family per figure, one sample per
    partition."""
    yield InfoMetricFamily(
        "waltz_storage",
        "Which node this is.",
        {"cluster_key": state.cluster_key, "directory": state.directory, "version": version},
    )
    yield from _of_process(STORAGE_PREFIX, NODE_METRICS, state)
    yield from _of_partitions(STORAGE_PREFIX, PARTITION_METRICS, state.partitions)
    drains = HistogramMetricFamily(
        STORAGE_PREFIX + DRAIN_SECONDS, DRAIN_MEANING, labels=["partition"]
    )
    for partition in state.partitions:
        durations = partition.drain_seconds
        buckets = [(f"{bound:g}", float(count)) for bound, count in durations.cumulative()]
        drains.add_metric(
            [str(partition.partition_id)],
            [*buckets, ("+Inf", durations.count)],
            durations.sum_seconds,
        )
    yield drains


def server_families(state: ServerState, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of a server, then of its partitions."""
    yield InfoMetricFamily(
        "waltz_server",
        "Which server this is.",
        {"server_id": str(state.server_id), "advertised": state.advertised, "version": version},
    )
    yield from _of_process(SERVER_PREFIX, SERVER_METRICS, state)
    yield from _of_partitions(SERVER_PREFIX, SERVER_PARTITION_METRICS, state.partitions)


def _of_process(prefix: str, figures: Sequence[Metric[S]], state: S) -> Iterator[MetricFamily]:
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        value = figure.value(state)
        if value is not None:
            yield kind(prefix + figure.name, figure.meaning, value=value)


def _of_partitions(
    prefix: str, figures: Sequence[Metric[P]], partitions: Sequence[P]
) -> Iterator[MetricFamily]:
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        samples = kind(prefix + figure.name, figure.meaning, labels=["partition"])
        for partition in partitions:
            value = figure.value(partition)
            if value is not None:
                samples.add_metric([str(partition.partition_id)], value)
        yield samples


class StateCollector(Collector):
    """A registry asks it at each scrape; `read` returns the families of that moment."""

    def __init__(self, read: Callable[[], Iterator[MetricFamily]]) -> None:
        self._read = read

    def describe(self) -> Iterator[MetricFamily]:
        return iter(())

    def collect(self) -> Iterator[MetricFamily]:
        return self._read()
