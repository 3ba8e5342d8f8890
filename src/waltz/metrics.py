"""Figures as metric families of Prometheus; `register` shows those of an application's clients.

    client = waltz.open_client(...)
    waltz.metrics.register(client)

Owns how a figure becomes a family, and which clients a registry knows. Imported only where a
registry wants it: the library of Prometheus takes 30 ms and 5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from waltz.client.client_metrics import (
    CLIENT_FAMILIES,
    CLIENT_METRICS,
    CLIENT_PARTITION_METRICS,
    ClientMetrics,
)
from waltz.errors import ConfigurationError
from waltz.figures import Durations, Family, Kind, Metric

S = TypeVar("S")

CLIENT_PREFIX: Final = "waltz_client_"


def families(
    prefix: str,
    labels: Sequence[str],
    states: Sequence[tuple[Sequence[str], S]],
    figures: Sequence[Metric[S]],
    labelled: Sequence[Family[S]] = (),
) -> Iterator[MetricFamily]:
    """Yield one family per figure, with a sample per state; each state has the values of `labels`.

    A reading that is unknown has no sample."""
    for figure in figures:
        kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
        samples = kind(prefix + figure.name, figure.meaning, labels=labels)
        for values, state in states:
            reading = figure.value(state)
            if reading is not None:
                samples.add_metric(values, reading)
        yield samples
    for family in labelled:
        names = [*labels, *(label.name for label in family.labels)]
        found = _empty(family.kind, prefix + family.name, family.meaning, names)
        for values, state in states:
            for more, value in family.samples(state):
                _add(found, [*values, *more], value)
        yield found


def _empty(kind: Kind, name: str, meaning: str, labels: Sequence[str]) -> MetricFamily:
    match kind:
        case Kind.GAUGE:
            return GaugeMetricFamily(name, meaning, labels=labels)
        case Kind.COUNTER:
            return CounterMetricFamily(name, meaning, labels=labels)
        case Kind.HISTOGRAM:
            return HistogramMetricFamily(name, meaning, labels=labels)


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

    def __init__(self, read: Callable[[], Iterable[MetricFamily]]) -> None:
        self._read = read

    def describe(self) -> Iterator[MetricFamily]:
        return iter(())

    def collect(self) -> Iterable[MetricFamily]:
        return self._read()


# Clients


class MeasuredClient(Protocol):
    """A client, for tasks or threads."""

    @property
    def is_closed(self) -> bool: ...

    def metrics(self) -> ClientMetrics: ...


def client_families(
    clients: Sequence[tuple[str, ClientMetrics]],
) -> Iterator[MetricFamily]:
    """Yield the families of clients, each under the name that it was registered with."""
    named = [([name], client) for name, client in clients]
    partitions = [
        ([name, str(partition.partition_id)], partition)
        for name, client in clients
        for partition in client.partitions
    ]
    yield from families(CLIENT_PREFIX, ["client"], named, CLIENT_METRICS, CLIENT_FAMILIES)
    labels = ["client", "partition"]
    yield from families(CLIENT_PREFIX, labels, partitions, CLIENT_PARTITION_METRICS)


class _Clients:
    """The clients that one registry knows, by name."""

    def __init__(self) -> None:
        self.known: dict[str, MeasuredClient] = {}

    def families(self) -> Iterator[MetricFamily]:
        found: list[tuple[str, ClientMetrics]] = []
        for name, client in self.known.copy().items():
            if client.is_closed:
                self.known.pop(name, None)
            else:
                found.append((name, client.metrics()))
        return client_families(found)


_registries: WeakKeyDictionary[CollectorRegistry, _Clients] = WeakKeyDictionary()


def register(
    client: MeasuredClient, *, name: str = "waltz", registry: CollectorRegistry = REGISTRY
) -> None:
    """Show the figures of `client` to Prometheus, with the label `client` of that value, until it
    is closed.

    Call it once the client is started, from one thread at a time. Raises ConfigurationError:
    another client of this registry that is not closed has the name.
    """
    client.metrics()
    clients = _registries.get(registry)
    if clients is None:
        clients = _registries[registry] = _Clients()
        registry.register(StateCollector(clients.families))
    other = clients.known.get(name)
    if other is not None and other is not client and not other.is_closed:
        raise ConfigurationError(
            f"another client is registered as {name!r}; give each client of a process a name"
        )
    clients.known[name] = client
