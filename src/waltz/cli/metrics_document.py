"""The page of metrics for operators, printed from the lists of figures.

    python -m waltz.cli.metrics_document > docs/operating/metrics.md

Owns the words around the tables, and the names under which Prometheus has the figures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from waltz.archive.archiver_metrics import ARCHIVER_METRICS, ARCHIVER_PARTITION_METRICS
from waltz.bridge.bridge_metrics import BRIDGE_METRICS, BRIDGE_PARTITION_METRICS
from waltz.cli.exposition import (
    ARCHIVER_PREFIX,
    BRIDGE_PREFIX,
    OUTBOX_PREFIX,
    SERVER_PREFIX,
    STORAGE_PREFIX,
)
from waltz.cli.pipeline_port import PIPELINE_PREFIX
from waltz.client.client_metrics import (
    CLIENT_FAMILIES,
    CLIENT_METRICS,
    CLIENT_PARTITION_METRICS,
)
from waltz.figures import Family, Kind, Label, Metric
from waltz.metrics import CLIENT_PREFIX
from waltz.outbox.relay_metrics import RELAY_METRICS
from waltz.server.clients.consumer_lags import CONSUMER_FAMILIES, CONSUMER_METRICS
from waltz.server.server_metrics import (
    SERVER_FAMILIES,
    SERVER_METRICS,
    SERVER_PARTITION_FAMILIES,
    SERVER_PARTITION_METRICS,
)
from waltz.spark.followed_metrics import (
    FOLLOWED_PARTITION_METRICS,
    PIPELINE_FAMILIES,
    PIPELINE_METRICS,
    STREAM_FAMILIES,
    STREAM_METRICS,
)
from waltz.spark.observing import FAILED, FAILED_MEANING, QUERY, SOURCE, STREAM_PREFIX
from waltz.storage.storage_metrics import (
    NODE_FAMILIES,
    NODE_METRICS,
    PARTITION_FAMILIES,
    PARTITION_METRICS,
)

CLIENT: Label = Label("client", "the name that `register` was given")
STREAM: Label = Label(QUERY, "the query's name, or its ID")
LOG_SOURCE: Label = Label(SOURCE, "its place among the query's sources")
PARTITION: Label = Label("partition", "its ID")


class ExposedMetric(NamedTuple):
    """A metric as Prometheus has it; a histogram's samples have `_bucket`, `_sum`, `_count`."""

    name: str
    kind: Kind
    labels: tuple[Label, ...]
    meaning: str
    absent: str

    @property
    def samples(self) -> tuple[str, ...]:
        """The names that an expression may use."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def exposed(
    prefix: str,
    figures: Sequence[Metric[Any]],
    families: Sequence[Family[Any]] = (),
    labels: tuple[Label, ...] = (),
) -> Iterator[ExposedMetric]:
    """Yield the figures under the names that Prometheus has for them; all have `labels`."""
    for figure in figures:
        kind = Kind.COUNTER if figure.is_counter else Kind.GAUGE
        name = prefix + figure.name + ("_total" if figure.is_counter else "")
        yield ExposedMetric(name, kind, labels, figure.meaning, figure.absent)
    for family in families:
        name = prefix + family.name + ("_total" if family.kind is Kind.COUNTER else "")
        all_labels = (*labels, *family.labels)
        yield ExposedMetric(name, family.kind, all_labels, family.meaning, family.absent)


SECTIONS: dict[str, tuple[ExposedMetric, ...]] = {
    "A server": tuple(exposed(SERVER_PREFIX, SERVER_METRICS, SERVER_FAMILIES)),
    "A partition on its server": tuple(
        exposed(SERVER_PREFIX, SERVER_PARTITION_METRICS, SERVER_PARTITION_FAMILIES, (PARTITION,))
    ),
    "A consumer, on the server of a partition": tuple(
        exposed(SERVER_PREFIX, CONSUMER_METRICS, CONSUMER_FAMILIES)
    ),
    "A storage node": tuple(exposed(STORAGE_PREFIX, NODE_METRICS, NODE_FAMILIES)),
    "A partition on a storage node": tuple(
        exposed(STORAGE_PREFIX, PARTITION_METRICS, PARTITION_FAMILIES, (PARTITION,))
    ),
    "An archiver": tuple(exposed(ARCHIVER_PREFIX, ARCHIVER_METRICS)),
    "A partition in an archiver": tuple(
        exposed(ARCHIVER_PREFIX, ARCHIVER_PARTITION_METRICS, (), (PARTITION,))
    ),
    "A relay of an outbox": tuple(exposed(OUTBOX_PREFIX, RELAY_METRICS)),
    "A bridge": tuple(exposed(BRIDGE_PREFIX, BRIDGE_METRICS)),
    "A partition in a bridge": tuple(
        exposed(BRIDGE_PREFIX, BRIDGE_PARTITION_METRICS, (), (PARTITION,))
    ),
    "A client": tuple(exposed(CLIENT_PREFIX, CLIENT_METRICS, CLIENT_FAMILIES, (CLIENT,))),
    "A partition in a client": tuple(
        exposed(CLIENT_PREFIX, CLIENT_PARTITION_METRICS, (), (CLIENT, PARTITION))
    ),
    "A pipeline": tuple(exposed(PIPELINE_PREFIX, PIPELINE_METRICS, PIPELINE_FAMILIES)),
    "A partition in a pipeline": tuple(
        exposed(PIPELINE_PREFIX, FOLLOWED_PARTITION_METRICS, (), (PARTITION,))
    ),
    "Streams of a Spark session": (
        ExposedMetric(f"{STREAM_PREFIX}{FAILED}_total", Kind.COUNTER, (), FAILED_MEANING, ""),
        *exposed(STREAM_PREFIX, STREAM_METRICS, STREAM_FAMILIES, (STREAM,)),
    ),
    "A partition in such a stream": tuple(
        exposed(STREAM_PREFIX, FOLLOWED_PARTITION_METRICS, (), (STREAM, LOG_SOURCE, PARTITION))
    ),
}

INTRODUCTION = """\
# Metrics

Printed by `python -m waltz.cli.metrics_document`; a test compares this file with the code.

Servers and storage nodes answer `GET /metrics` on their HTTP ports (`server.jetty.port`,
`storage.jetty.port`), an archiver at `archive.httpAddress`, a relay at
`outbox.httpAddress`, a bridge at `bridge.httpAddress`, a pipeline at `--http-address` of
`waltz pipeline run --every`, in the text format of Prometheus. A
sample that nobody can confirm is absent: no metric says 0 for "unknown". A unit is the end of the
name: seconds, bytes; without one it is a number. Counters start from 0 with the process, those of a
partition with each opening of the partition. Clients are part of an application's process:
`waltz.metrics.register(client)` shows their figures in the application's registry of
`prometheus_client`, and `client.metrics()` returns them as an object. A client knows the log only
as far as it was told of it, so its lag is a lower bound.
`waltz.spark.observe(spark)` shows the streams of a Spark session that read the log, in a registry
of its driver. The standard metrics of a process,
`process_cpu_seconds_total` and the like, are there, too, and so are `waltz_server_info`,
`waltz_storage_info`, `waltz_archiver_info`, `waltz_outbox_info`, `waltz_bridge_info` and
`waltz_pipeline_info`, whose labels name the process.
"""


def page() -> str:
    """Return the whole text of `docs/operating/metrics.md`."""
    tables = [f"## {title}\n\n{_table(metrics)}" for title, metrics in SECTIONS.items()]
    return "\n".join([INTRODUCTION, *tables])


def _table(metrics: Sequence[ExposedMetric]) -> str:
    lines = ["| Metric | Kind | Labels | Meaning | Absent |", "|---|---|---|---|---|"]
    for each in metrics:
        labels = "; ".join(f"`{label.name}`: {label.bound}" for label in each.labels) or "none"
        absent = each.absent or "never"
        lines.append(f"| `{each.name}` | {each.kind} | {labels} | {each.meaning} | {absent} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
