"""The state of a storage node, a server, an archiver, a relay or a bridge as metric families of
Prometheus.

Owns the prefixes of the names. Imported only where a port serves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import InfoMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

from waltz.archive.archiver_metrics import (
    ARCHIVER_METRICS,
    ARCHIVER_PARTITION_METRICS,
    ArchiverState,
)
from waltz.bridge.bridge_metrics import (
    BRIDGE_METRICS,
    BRIDGE_PARTITION_METRICS,
    BridgeFigures,
)
from waltz.metrics import families
from waltz.outbox.relay_metrics import RELAY_METRICS, RelayFigures
from waltz.server.clients.consumer_lags import (
    CONSUMER_FAMILIES,
    CONSUMER_METRICS,
    ConsumersState,
)
from waltz.server.server_metrics import (
    SERVER_FAMILIES,
    SERVER_METRICS,
    SERVER_PARTITION_FAMILIES,
    SERVER_PARTITION_METRICS,
    ServerState,
)
from waltz.storage.storage_metrics import (
    NODE_FAMILIES,
    NODE_METRICS,
    PARTITION_FAMILIES,
    PARTITION_METRICS,
    NodeState,
)

STORAGE_PREFIX: Final = "waltz_storage_"
SERVER_PREFIX: Final = "waltz_server_"
ARCHIVER_PREFIX: Final = "waltz_archiver_"
OUTBOX_PREFIX: Final = "waltz_outbox_"
BRIDGE_PREFIX: Final = "waltz_bridge_"


def storage_families(state: NodeState, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of a node, then of its partitions; one family per figure, one sample per
    partition."""
    yield InfoMetricFamily(
        "waltz_storage",
        "Which node this is.",
        {"cluster_key": state.cluster_key, "directory": state.directory, "version": version},
    )
    yield from families(STORAGE_PREFIX, [], [([], state)], NODE_METRICS, NODE_FAMILIES)
    yield from families(
        STORAGE_PREFIX,
        ["partition"],
        [([str(each.partition_id)], each) for each in state.partitions],
        PARTITION_METRICS,
        PARTITION_FAMILIES,
    )


def server_families(
    state: ServerState, consumers: ConsumersState, *, version: str
) -> Iterator[MetricFamily]:
    """Yield the families of a server, of its partitions, and of their consumers."""
    yield InfoMetricFamily(
        "waltz_server",
        "Which server this is.",
        {"server_id": str(state.server_id), "advertised": state.advertised, "version": version},
    )
    yield from families(SERVER_PREFIX, [], [([], state)], SERVER_METRICS, SERVER_FAMILIES)
    yield from families(
        SERVER_PREFIX,
        ["partition"],
        [([str(each.partition_id)], each) for each in state.partitions],
        SERVER_PARTITION_METRICS,
        SERVER_PARTITION_FAMILIES,
    )
    yield from families(SERVER_PREFIX, [], [([], consumers)], CONSUMER_METRICS, CONSUMER_FAMILIES)


def archiver_families(state: ArchiverState, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of an archiver, then of its partitions."""
    yield InfoMetricFamily(
        "waltz_archiver",
        "Which archiver this is.",
        {"cluster_key": state.cluster_key, "target": state.target, "version": version},
    )
    yield from families(ARCHIVER_PREFIX, [], [([], state)], ARCHIVER_METRICS)
    yield from families(
        ARCHIVER_PREFIX,
        ["partition"],
        [([str(each.partition_id)], each) for each in state.partitions],
        ARCHIVER_PARTITION_METRICS,
    )


def relay_families(figures: RelayFigures, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of the relay of an outbox."""
    yield InfoMetricFamily(
        "waltz_outbox",
        "Which relay this is.",
        {"cluster_key": figures.cluster_key, "table": figures.outbox, "version": version},
    )
    yield from families(OUTBOX_PREFIX, [], [([], figures)], RELAY_METRICS)


def bridge_families(figures: BridgeFigures, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of a bridge, then of its partitions."""
    yield InfoMetricFamily(
        "waltz_bridge",
        "Which bridge this is.",
        {"cluster_key": figures.cluster_key, "receiver": figures.receiver, "version": version},
    )
    yield from families(BRIDGE_PREFIX, [], [([], figures)], BRIDGE_METRICS)
    yield from families(
        BRIDGE_PREFIX,
        ["partition"],
        [([str(each.partition_id)], each) for each in figures.partitions],
        BRIDGE_PARTITION_METRICS,
    )
