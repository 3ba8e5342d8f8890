"""The state of a storage node, a server or an archiver as metric families of Prometheus.

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
from waltz.metrics import families
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
    NODE_METRICS,
    PARTITION_FAMILIES,
    PARTITION_METRICS,
    NodeState,
)

STORAGE_PREFIX: Final = "waltz_storage_"
SERVER_PREFIX: Final = "waltz_server_"
ARCHIVER_PREFIX: Final = "waltz_archiver_"


def storage_families(state: NodeState, *, version: str) -> Iterator[MetricFamily]:
    """Yield the families of a node, then of its partitions; one family per figure, one sample per
    partition."""
    yield InfoMetricFamily(
        "waltz_storage",
        "Which node this is.",
        {"cluster_key": state.cluster_key, "directory": state.directory, "version": version},
    )
    yield from families(STORAGE_PREFIX, [], [([], state)], NODE_METRICS)
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
