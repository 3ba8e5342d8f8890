"""A node's state as metric families of Prometheus.

Owns names and labels as Prometheus wants them. Imported only where a port serves it: the library
takes 30 ms and 5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from waltz.storage.metrics import (
    DRAIN_MEANING,
    DRAIN_SECONDS,
    NODE_METRICS,
    PARTITION_METRICS,
    NodeState,
)

PREFIX: Final = "waltz_storage_"


def families(state: NodeState, *, version: str) -> Iterator[Metric]:
    """Node, then partitions; one family per figure, one sample per partition."""
    yield InfoMetricFamily(
        "waltz_storage",
        "Which node this is.",
        {"cluster_key": state.cluster_key, "directory": state.directory, "version": version},
    )
    for figure in NODE_METRICS:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        value = figure.value(state)
        if value is not None:
            yield kind(PREFIX + figure.name, figure.meaning, value=value)
    for metric in PARTITION_METRICS:
        kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
        samples = kind(PREFIX + metric.name, metric.meaning, labels=["partition"])
        for partition in state.partitions:
            value = metric.value(partition)
            if value is not None:
                samples.add_metric([str(partition.partition_id)], value)
        yield samples
    drains = HistogramMetricFamily(PREFIX + DRAIN_SECONDS, DRAIN_MEANING, labels=["partition"])
    for partition in state.partitions:
        durations = partition.drain_seconds
        buckets = [(f"{bound:g}", float(count)) for bound, count in durations.cumulative()]
        drains.add_metric(
            [str(partition.partition_id)],
            [*buckets, ("+Inf", durations.count)],
            durations.sum_seconds,
        )
    yield drains


class StateCollector(Collector):
    """What a registry asks for at each scrape; `read` gives the state of that moment."""

    def __init__(self, read: Callable[[], NodeState], *, version: str) -> None:
        self._read = read
        self._version = version

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        return families(self._read(), version=self._version)
