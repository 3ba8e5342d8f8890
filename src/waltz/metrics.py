"""Figures as metric families of Prometheus.

Owns how a figure becomes a family. Imported only where a registry wants it: the library of
Prometheus takes 30 ms and 5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from waltz.figures import Durations, Family, Kind, Metric
from waltz.types import PartitionId

S = TypeVar("S")


class Partitioned(Protocol):
    @property
    def partition_id(self) -> PartitionId: ...


P = TypeVar("P", bound=Partitioned)


def process_families(
    prefix: str, figures: Sequence[Metric[S]], families: Sequence[Family[S]], state: S
) -> Iterator[MetricFamily]:
    """Yield the families of a process; an unknown figure has none."""
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        value = figure.value(state)
        if value is not None:
            yield kind(prefix + figure.name, figure.meaning, value=value)
    for family in families:
        samples = _empty(prefix, family, ())
        for labels, reading in family.samples(state):
            _add(samples, labels, reading)
        yield samples


def partition_families(
    prefix: str,
    figures: Sequence[Metric[P]],
    families: Sequence[Family[P]],
    partitions: Sequence[P],
) -> Iterator[MetricFamily]:
    """Yield one family per figure, with the samples of each partition."""
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        samples = kind(prefix + figure.name, figure.meaning, labels=["partition"])
        for partition in partitions:
            value = figure.value(partition)
            if value is not None:
                samples.add_metric([str(partition.partition_id)], value)
        yield samples
    for family in families:
        found = _empty(prefix, family, ("partition",))
        for partition in partitions:
            for labels, reading in family.samples(partition):
                _add(found, (str(partition.partition_id), *labels), reading)
        yield found


def _empty(prefix: str, family: Family[S], labels: Sequence[str]) -> MetricFamily:
    names = [*labels, *(label.name for label in family.labels)]
    match family.kind:
        case Kind.GAUGE:
            return GaugeMetricFamily(prefix + family.name, family.meaning, labels=names)
        case Kind.COUNTER:
            return CounterMetricFamily(prefix + family.name, family.meaning, labels=names)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(prefix + family.name, family.meaning, labels=names)


def _add(family: MetricFamily, labels: Sequence[str], reading: float | Durations) -> None:
    if isinstance(reading, Durations):
        assert isinstance(family, HistogramMetricFamily)
        buckets = [(f"{bound:g}", float(count)) for bound, count in reading.cumulative()]
        family.add_metric(labels, [*buckets, ("+Inf", reading.count)], reading.sum_seconds)
    else:
        assert isinstance(family, (GaugeMetricFamily, CounterMetricFamily))
        family.add_metric(labels, reading)


class StateCollector(Collector):
    """A registry asks it at each scrape; `read` returns the families of that moment."""

    def __init__(self, read: Callable[[], Iterator[MetricFamily]]) -> None:
        self._read = read

    def describe(self) -> Iterator[MetricFamily]:
        return iter(())

    def collect(self) -> Iterator[MetricFamily]:
        return self._read()
