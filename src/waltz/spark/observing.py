"""Users' own streams over the log as Prometheus sees them: `waltz.spark.observe(spark)`.

Owns what a query's progress says of the log: Spark reports the offsets of each source, and those of
a log are known by the cluster's key in them.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from waltz.errors import ConfigurationError
from waltz.spark.followed_metrics import (
    FOLLOWED_PARTITION_METRICS,
    STREAM_FAMILIES,
    STREAM_METRICS,
    FollowedLog,
    PartSeconds,
    StreamState,
)
from waltz.spark.progress import NextIds, Progress

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as MetricFamily
    from pyspark.sql import SparkSession

STREAM_PREFIX: Final = "waltz_stream_"
QUERY: Final = "query"
SOURCE: Final = "source"

QUERIES_MAX: Final = 1_000
"""Queries of one session whose figures are kept; the one that was silent longest makes room."""


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """A log among the sources of a query; `logged` is None if Spark did not tell its end."""

    place: int
    next_ids: NextIds
    logged: NextIds | None
    rows: int


def logs_among(sources: Iterable[tuple[str | None, str | None, int]]) -> list[SourceProgress]:
    """Return the logs among a query's sources, which are given with the offset at which the batch
    ends, the latest offset, and the number of rows; other sources have other offsets."""
    found = []
    for place, (end, latest, rows) in enumerate(sources):
        reached, known = _progress(end), _progress(latest)
        if reached is not None:
            logged = None if known is None else known.next_ids
            found.append(SourceProgress(place, reached.next_ids, logged, max(0, rows)))
    return found


def _progress(offset: str | None) -> Progress | None:
    try:
        found = json.loads(offset or "null")
        return Progress.decode(found) if isinstance(found, dict) else None
    except (ValueError, RecursionError, ConfigurationError):
        return None


@dataclass
class _Query:
    name: str
    last_progress_milliseconds: int = 0
    batches: int = 0
    transactions: int = 0
    seconds: PartSeconds = field(default_factory=PartSeconds)
    logs: dict[int, FollowedLog] = field(default_factory=dict)


class StreamFigures:
    """The figures of a session's queries: Spark's thread of listeners writes them, a scraper's
    thread reads them."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._queries: OrderedDict[str, _Query] = OrderedDict()
        self._failed = 0

    def progressed(
        self,
        query_id: str,
        name: str | None,
        logs: Iterable[SourceProgress],
        durations_milliseconds: Mapping[str, int],
    ) -> None:
        """Count a micro-batch. A query that reads no log is left out."""
        logs = list(logs)
        if not logs:
            return
        with self._lock:
            query = self._queries.setdefault(query_id, _Query(name or query_id))
            self._queries.move_to_end(query_id)
            while len(self._queries) > QUERIES_MAX:
                self._queries.popitem(last=False)
            query.last_progress_milliseconds = int(self._wall() * 1000)
            query.batches += 1
            query.transactions += sum(each.rows for each in logs)
            query.seconds.add({part: ms / 1000 for part, ms in durations_milliseconds.items()})
            for each in logs:
                log = query.logs.setdefault(each.place, FollowedLog())
                if each.logged is not None:
                    log.log_has(each.logged, self._clock())
                log.is_taken_in(each.next_ids)

    def ended(self, query_id: str, *, has_failed: bool) -> None:
        """Forget a query that has ended; one that has failed is counted."""
        with self._lock:
            query = self._queries.pop(query_id, None)
            self._failed += has_failed and query is not None

    def read(self) -> tuple[int, list[StreamState]]:
        """Return how many queries have failed, and the figures of those that run."""
        with self._lock:
            now = self._clock()
            return self._failed, [
                StreamState(
                    query.name,
                    query.last_progress_milliseconds,
                    query.batches,
                    query.transactions,
                    query.seconds.copy(),
                    {place: log.partitions(now) for place, log in sorted(query.logs.items())},
                )
                for query in self._queries.values()
            ]


def stream_families(failed: int, states: Iterable[StreamState]) -> Iterator[MetricFamily]:
    """Yield the families of streams, then of the partitions that they follow."""
    from prometheus_client.metrics_core import CounterMetricFamily

    from waltz.metrics import families

    states = list(states)
    yield CounterMetricFamily(STREAM_PREFIX + FAILED, FAILED_MEANING, failed)
    streams = [([each.name], each) for each in states]
    yield from families(STREAM_PREFIX, [QUERY], streams, STREAM_METRICS, STREAM_FAMILIES)
    partitions = [
        ([each.name, str(place), str(partition.partition_id)], partition)
        for each in states
        for place, found in each.partitions.items()
        for partition in found
    ]
    labels = [QUERY, SOURCE, "partition"]
    yield from families(STREAM_PREFIX, labels, partitions, FOLLOWED_PARTITION_METRICS)


FAILED: Final = "failures"
FAILED_MEANING: Final = "Queries over the log that have ended with an error."


class Observation:
    """A session's streams, shown to a registry until `close` is called."""

    def __init__(self, spark: SparkSession, registry: CollectorRegistry) -> None:
        from waltz.metrics import StateCollector
        from waltz.spark.stream_listener import listener_of

        self._spark, self._registry = spark, registry
        self._figures = StreamFigures()
        self._listener = listener_of(self._figures)
        self._collector = StateCollector(lambda: stream_families(*self._figures.read()))
        spark.streams.addListener(self._listener)
        registry.register(self._collector)

    def close(self) -> None:
        """Show nothing any more. Idempotent."""
        if _open.get(self._registry) is not self:
            return
        del _open[self._registry]
        self._registry.unregister(self._collector)
        self._spark.streams.removeListener(self._listener)

    def is_of(self, spark: Any) -> bool:
        return self._spark is spark


_open: WeakKeyDictionary[Any, Observation] = WeakKeyDictionary()


def observe(spark: SparkSession, *, registry: CollectorRegistry | None = None) -> Observation:
    """Show Prometheus the streaming queries of `spark` that read a log, from their next micro-batch
    on: how far they are, how far behind the log, and what the parts of their batches took.

    The application serves the registry, `prometheus_client.REGISTRY` if none is given:
    `prometheus_client.start_http_server(8000)`. Call it from one thread at a time; called again for
    the same session it returns what it returned before. Raises ConfigurationError: the registry
    shows another session.
    """
    from prometheus_client import REGISTRY

    wanted = REGISTRY if registry is None else registry
    found = _open.get(wanted)
    if found is not None and not found.is_of(spark):
        raise ConfigurationError(
            "the registry shows another Spark session; close that observation, or give another"
            " registry"
        )
    if found is None:
        found = _open[wanted] = Observation(spark, wanted)
    return found
