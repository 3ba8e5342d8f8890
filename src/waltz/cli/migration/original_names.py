"""The original's names for things, and what this program has in their place.

Owns three tables: metrics, tools, and other differences that an operator meets. Sources: Java
Waltz, `WaltzServer`, `Partition` of both kinds, and the classes of its tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MetricPair:
    """A metric of the original, and the one of Prometheus; None: there is none, and `note` says
    why."""

    original: str
    here: str | None
    note: str = ""


PARTITION: Final = "partition-N"
"""The part of a name in which the original has a partition's number; here it is a label."""

SERVER: Final = "waltz-server"
STORAGE: Final = "waltz-storage"
CLIENT: Final = "waltz-client"
CLIENT_GROUPS: Final = ("waltz-client-stream", "waltz-client-rpc")
"""The two groups in which a client of the original has the same names, one per connection."""
RATE: Final = "a counter: rate() is what the original's meter shows"
BY_KIND: Final = "of all kinds of requests together"
BUILD: Final = "/buildinfo of the HTTP port"
LATENCY: Final = "a histogram: histogram_quantile() is what the original's timer shows"


def _of_partition(group: str, *pairs: tuple[str, str | None, str]) -> tuple[MetricPair, ...]:
    return tuple(
        MetricPair(f"{group}.{PARTITION}.{name}", here, note) for name, here, note in pairs
    )


METRICS: Final[tuple[MetricPair, ...]] = (
    MetricPair(f"{SERVER}.is-closed", None, "/live answers while the process runs"),
    MetricPair(f"{SERVER}.cluster-name", None, "waltz cluster list shows the name"),
    MetricPair(f"{SERVER}.server-id", None, "in the JSON of /metrics, and waltz cluster list"),
    MetricPair(f"{SERVER}.endpoint", None, "in the JSON of /metrics; Prometheus has its own label"),
    MetricPair(f"{SERVER}.waltz-version-id", None, BUILD),
    MetricPair(f"{SERVER}.waltz-server-num-partitions", "waltz_server_partitions"),
    MetricPair(f"{SERVER}.replica-info", "waltz_server_replica_standing", "the replica is a label"),
    MetricPair(f"{SERVER}.feed-cache-miss", "waltz_server_cache_misses_total", RATE),
    MetricPair(f"{SERVER}.transaction-cache-miss", "waltz_server_cache_misses_total", "one cache"),
    *_of_partition(
        SERVER,
        ("transaction", "waltz_server_appends_total", RATE),
        ("successful-append", "waltz_server_commits_total", RATE),
        ("rejected-append", "waltz_server_lock_failures_total", RATE),
        ("response-latency", "waltz_server_append_seconds", LATENCY),
        ("pending-append", "waltz_server_pending_requests", ""),
        ("is-closed", "waltz_server_open", "the other way round: 1 is open"),
        ("generation", "waltz_server_generation", ""),
        ("append-queue-size", "waltz_server_pending_requests", "one queue"),
        ("total-real-time-feed-context-added", None, "one loop feeds all: waltz_server_feeds"),
        ("total-real-time-feed-context-removed", None, "one loop feeds all: waltz_server_feeds"),
        ("total-catchup-feed-context-added", None, "one loop feeds all: waltz_server_feeds"),
        ("total-catchup-feed-context-removed", None, "one loop feeds all: waltz_server_feeds"),
        ("high-water-mark", "waltz_server_high_water_mark", ""),
    ),
    MetricPair(f"{STORAGE}.waltz-version-id", None, BUILD),
    MetricPair(f"{STORAGE}.waltz-storage-num-partitions", "waltz_storage_partitions"),
    MetricPair(
        f"{STORAGE}.waltz-storage-partition-ids",
        "waltz_storage_usable",
        "a series per partition that the node has taken",
    ),
    *_of_partition(
        STORAGE,
        (
            "append",
            "waltz_storage_appended_records_total",
            "counts records; the original: requests",
        ),
        ("append-latency", "waltz_storage_drain_seconds", LATENCY),
        ("session-id", "waltz_storage_session_id", ""),
        ("process-queue-size", "waltz_storage_queue_requests", ""),
        ("low-water-mark", "waltz_storage_low_water_mark", ""),
        ("local-low-water-mark", "waltz_storage_local_low_water_mark", ""),
        ("flags", "waltz_storage_usable", "and _readable, _writable; the number is in the JSON"),
        ("sequence-number", None, "waltz disk control-file shows it"),
        ("max-transaction-id", "waltz_storage_durable_transaction_id", ""),
        ("last-session-info-request", "waltz_storage_requests_total", BY_KIND),
        ("set-low-water-mark-request", "waltz_storage_requests_total", BY_KIND),
        ("truncate-request", "waltz_storage_requests_total", BY_KIND),
        ("record-header-request", "waltz_storage_requests_total", BY_KIND),
        ("record-request", "waltz_storage_requests_total", BY_KIND),
        ("max-transaction-request", "waltz_storage_requests_total", BY_KIND),
        ("record-header-list-request", "waltz_storage_requests_total", BY_KIND),
        ("record-list-request", "waltz_storage_requests_total", BY_KIND),
    ),
    MetricPair(f"{CLIENT}.cluster-name", None, "waltz cluster list shows the name"),
    MetricPair(f"{CLIENT}.client-id", None, "client.client_id"),
    MetricPair(f"{CLIENT}.num-active-partitions", "waltz_client_mounted", "sum() counts them"),
    MetricPair(f"{CLIENT}.active-partition-ids", "waltz_client_mounted", "a series per partition"),
    *(
        pair
        for group in CLIENT_GROUPS
        for pair in _of_partition(
            group,
            ("is-mounted", "waltz_client_mounted", ""),
            ("is-partition-active", "waltz_client_mounted", "there is a series if it is followed"),
            ("high-water-mark", "waltz_client_applied_transaction_id", ""),
            ("num-registered-transactions", "waltz_client_pending_appends", ""),
            ("lock-failure", "waltz_client_refusals_total", "by lock, not by partition"),
            ("transaction-monitor-timeout", None, "each call raises its own OperationTimeoutError"),
            ("send-throughput", None, "of all clients: waltz_server_appended_bytes_total"),
            ("received-throughput", "waltz_client_applied_total", "transactions, not bytes"),
            ("on-completion-latency", "waltz_client_append_seconds", LATENCY),
            ("on-application-latency", None, "spans have it: docs/operating/clients.md"),
        )
    ),
)


@dataclass(frozen=True, slots=True)
class ToolPair:
    """A command of the original's tools, and the one of `waltz` that does its work; `options` are
    those with another name or another meaning."""

    java_class: str
    command: str
    here: str
    options: str = ""


DATA_OR_ADMIN: Final = "-s takes the data port or the admin port"
AS_THERE: Final = ""

TOOLS: Final[tuple[ToolPair, ...]] = (
    ToolPair("ZooKeeperCli", "create", "cluster create", AS_THERE),
    ToolPair("ZooKeeperCli", "delete", "cluster delete", "refused while servers run, but for -f"),
    ToolPair("ZooKeeperCli", "list", "cluster list", AS_THERE),
    ToolPair("ZooKeeperCli", "show-cluster-key", "cluster show-cluster-key", AS_THERE),
    ToolPair("ZooKeeperCli", "add-storage-node", "cluster add-storage", AS_THERE),
    ToolPair("ZooKeeperCli", "remove-storage-node", "cluster remove-storage", AS_THERE),
    ToolPair("ZooKeeperCli", "assign-partition", "cluster assign", "-p takes ranges"),
    ToolPair(
        "ZooKeeperCli", "unassign-partition", "cluster unassign", "-p takes ranges; -f, see --help"
    ),
    ToolPair("ZooKeeperCli", "auto-assign", "cluster auto-assign", AS_THERE),
    ToolPair("StorageCli", "list", "admin storage list", DATA_OR_ADMIN),
    ToolPair("StorageCli", "add-partition", "admin storage add-partition", DATA_OR_ADMIN),
    ToolPair(
        "StorageCli", "remove-partition", "admin storage remove-partition",
        f"{DATA_OR_ADMIN}; what the cluster counts on is given up only with -f",
    ),
    ToolPair("StorageCli", "availability", "admin storage availability", DATA_OR_ADMIN),
    ToolPair(
        "StorageCli", "recover-partition", "admin storage recover-partition",
        "-dp and -b may be left out",
    ),
    ToolPair(
        "StorageCli", "sync-partitions", "admin storage sync-partitions",
        "gives nothing up without -f",
    ),
    ToolPair("StorageCli", "validate", "admin storage validate", AS_THERE),
    ToolPair(
        "StorageCli", "max-transaction-id", "admin storage max-transaction-id",
        "-sp may be left out",
    ),
    ToolPair("ServerCli", "list", "status", "asks all servers, not the HTTP port of one"),
    ToolPair("ServerCli", "add-preferred-partition", "admin server add-preferred-partition"),
    ToolPair(
        "ServerCli", "remove-preferred-partition", "admin server remove-preferred-partition",
        "-p takes ranges",
    ),
    ToolPair("ClusterCli", "check-connectivity", "cluster check-connectivity", "ends with 1"),
    ToolPair(
        "ClusterCli", "verify", "cluster verify",
        "ends with 1 on a fault and with 3 on an unknown, where the original ends with 0; no -l",
    ),
    ToolPair("ClientCli", "validate", "bench", "a workload, on a cluster that --cluster names"),
    ToolPair("ClientCli", "high-water-mark", "status", "shows the marks of all partitions"),
    ToolPair("ClientCli", "check-connectivity", "cluster check-connectivity"),
    ToolPair("DiskCli", "verify-segment", "disk verify", "-t is --transaction"),
    ToolPair("DiskCli", "segment-statistic", "disk statistic"),
    ToolPair("DiskCli", "dump-segment", "disk dump"),
    ToolPair(
        "DiskCli", "dump-control-file", "disk control-file", "-p is --partition, -a --assigned"
    ),
    ToolPair("PerformanceCli", "test-producers", "bench", "a workload in a file: --file"),
    ToolPair("PerformanceCli", "test-consumers", "bench", "a workload in a file: --file"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference that is no fault: what the original does, what happens here, what to do."""

    subject: str
    original: str
    here: str
    advice: str


ALWAYS: Final[tuple[Difference, ...]] = (
    Difference(
        "/metrics",
        "JSON",
        "text for Prometheus; JSON for a request that asks for it or has no Accept, with the names"
        " that ServerCli list and StorageCli list read, and no other name of the original",
        "let Prometheus scrape it, and rename what dashboards and alerts ask for",
    ),
    Difference(
        "/health", "500 for a node that is unwell", "503", "let load balancers take both for no"
    ),
    Difference(
        "/ping and /buildinfo",
        "served",
        "not served: /live answers while the process runs, waltz --version prints the version",
        "change probes to /live",
    ),
    Difference(
        "JMX", "all metrics are beans", "there is no Java and no JMX", "scrape /metrics instead"
    ),
    Difference(
        "exit codes of tools",
        "0 also for a cluster that fails its verification",
        "1 for a fault, 3 where something could not be asked",
        "let scripts expect them",
    ),
    Difference(
        "threads and memory",
        "a Java heap of a size that is chosen",
        "one process with one event loop; server.feedCacheSize bounds the cache, nothing the whole",
        "take -Xmx out of start scripts, and see docs/original.md for what each process takes",
    ),
)
"""The differences of any cluster; docs/design/differences.md has those of the protocols."""
