"""What a server and its partitions are like now: the one source of metrics, status and health.

Owns the list of figures, their names and units, and what counts as unwell. Pure: a state is made
from what the event loop can see at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from waltz.figures import Metric, counter, gauge
from waltz.limits import PARTITION_PROBLEM_CHARACTERS_MAX, PARTITION_PROBLEMS_MAX
from waltz.types import Generation, PartitionId, ReplicaId, ServerId, TransactionId
from waltz.wire.discovery_protocol import PartitionProblem


class Stage(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(slots=True)
class PartitionCounters:
    """Since this server opened the partition; it starts from nothing with each opening."""

    appends: int = 0
    appended_bytes: int = 0
    commits: int = 0
    appends_failed: int = 0
    lock_failures: int = 0
    requests_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """One partition of this server. `reason` is why it takes no appends, if it does not."""

    partition_id: PartitionId
    generation: Generation
    reason: str | None
    high_water_mark: TransactionId | None = None
    mounts: int = 0
    feeds: int = 0
    pending_requests: int = 0
    pending_bytes: int = 0
    data_requests: int = 0
    failures: int = 0
    counters: PartitionCounters = field(default_factory=PartitionCounters)
    replica_ids: tuple[ReplicaId, ...] | None = None
    """As the coordinator has assigned them; None: not read yet."""

    @property
    def is_open(self) -> bool:
        return self.reason is None

    def problems(self) -> list[str]:
        return [] if self.reason is None else [f"takes no appends: {self.reason}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """`backlog` is what clients have asked for and not got yet, `unsent` what they have not taken;
    a peak is the most that any one connection has had."""

    stage: Stage
    server_id: ServerId | None
    advertised: str
    preferred_partitions: tuple[PartitionId, ...] = ()
    connections: int = 0
    broken_connections: int = 0
    retained_bytes: int = 0
    full_connections: int = 0
    backlog_bytes: int = 0
    backlog_bytes_peak: int = 0
    unsent_bytes: int = 0
    unsent_bytes_peak: int = 0
    cache_bytes: int = 0
    partitions: tuple[PartitionState, ...] = ()

    def problems(self) -> list[str]:
        """Those of the server as a whole."""
        return [] if self.stage is Stage.SERVING else [f"the server is {self.stage}"]

    @property
    def is_healthy(self) -> bool:
        return not self.problems() and all(p.is_open for p in self.partitions)


SERVER_METRICS: Final[Sequence[Metric[ServerState]]] = (
    gauge("healthy", "What /health says: 1 for 200, 0 for 503.", lambda s: s.is_healthy),
    gauge("partitions", "Partitions assigned to this server.", lambda s: len(s.partitions)),
    gauge("connections", "Connections of clients.", lambda s: s.connections),
    gauge(
        "broken_connections",
        "Of those, ones that were interrupted and can be restored.",
        lambda s: s.broken_connections,
    ),
    gauge(
        "full_connections",
        "Of those, ones that are interrupted or whose clients take less than there is for them.",
        lambda s: s.full_connections,
    ),
    gauge("backlog_bytes", "Requests not decided or answered.", lambda s: s.backlog_bytes),
    gauge(
        "backlog_peak_bytes",
        "The most that one connection has had of them.",
        lambda s: s.backlog_bytes_peak,
    ),
    gauge("unsent_bytes", "Written and not taken by clients.", lambda s: s.unsent_bytes),
    gauge(
        "unsent_peak_bytes",
        "The most that one connection has had of them.",
        lambda s: s.unsent_bytes_peak,
    ),
    gauge(
        "retained_bytes",
        "Written and not acknowledged; sent again if a connection is restored.",
        lambda s: s.retained_bytes,
    ),
    gauge("cache_bytes", "Recent transactions that are kept.", lambda s: s.cache_bytes),
)

SERVER_PARTITION_METRICS: Final[Sequence[Metric[PartitionState]]] = (
    gauge("writable", "1 if appends are taken.", lambda p: p.is_open),
    gauge("generation", "How often the partition has moved.", lambda p: p.generation),
    gauge(
        "high_water_mark",
        "Last transaction that is known to be committed; -1 if there is none.",
        lambda p: p.high_water_mark,
    ),
    gauge("mounts", "Clients that have mounted it.", lambda p: p.mounts),
    gauge("feeds", "Feeds of clients.", lambda p: p.feeds),
    gauge(
        "pending_requests",
        "Appends, mounts and flushes that wait for the store.",
        lambda p: p.pending_requests,
    ),
    gauge("pending_bytes", "What these take.", lambda p: p.pending_bytes),
    gauge("data_requests", "Requests for data not answered yet.", lambda p: p.data_requests),
    counter("failures", "Times that it ended by an error.", lambda p: p.failures),
    counter("appends", "Appends handed to the store.", lambda p: p.counters.appends),
    counter("appended_bytes", "Data of these.", lambda p: p.counters.appended_bytes),
    counter("commits", "Of those, committed.", lambda p: p.counters.commits),
    counter("appends_failed", "Proved not to be written.", lambda p: p.counters.appends_failed),
    counter("lock_failures", "Appends refused by locks.", lambda p: p.counters.lock_failures),
    counter(
        "requests_dropped",
        "Of stale connections or generations; they get no answer.",
        lambda p: p.counters.requests_dropped,
    ),
)


def told_problems(state: ServerState) -> tuple[PartitionProblem, ...]:
    """What is told of the partitions that take no appends; a part of it, if it is much."""
    reasons = ((p.partition_id, p.reason) for p in state.partitions if p.reason is not None)
    return tuple(
        PartitionProblem(partition_id, reason[:PARTITION_PROBLEM_CHARACTERS_MAX])
        for partition_id, reason in islice(reasons, PARTITION_PROBLEMS_MAX)
    )


def original_gauges(state: ServerState) -> dict[str, dict[str, Any]]:
    """What the Java original's tools read, under its names: `ServerCli list`. Partitions whose
    replicas are not known yet are left out of `replica-info`."""
    found = {
        "is-closed": state.stage is Stage.STOPPING,
        "server-id": state.server_id,
        "endpoint": state.advertised,
        "waltz-server-num-partitions": len(state.partitions),
        "replica-info": {
            str(partition.partition_id): list(partition.replica_ids)
            for partition in state.partitions
            if partition.replica_ids is not None
        },
    }
    return {f"waltz-server.{name}": {"value": value} for name, value in found.items()}


def server_health_json(state: ServerState) -> dict[str, Any]:
    """What is wrong, with the server and with each partition; empty lists where nothing is."""
    return {
        "healthy": state.is_healthy,
        "stage": state.stage,
        "server_id": state.server_id,
        "preferred_partitions": list(state.preferred_partitions),
        "problems": state.problems(),
        "partitions": {
            str(partition.partition_id): {
                "writable": partition.is_open,
                "problems": partition.problems(),
            }
            for partition in state.partitions
        },
    }
