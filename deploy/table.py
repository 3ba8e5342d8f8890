"""The one table of what is watched: alerts, recorded series, and the panels of dashboards.

Owns every expression over metrics. An alert leads to a heading of a page in `docs/operating`. One
Prometheus watches one cluster; with several, give each a label, and add it to the expressions'
groups.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Severity(StrEnum):
    CRITICAL = "critical"
    """Appends are not committed, or the next fault would stop them: somebody has to look now."""

    WARNING = "warning"
    """It can wait for the morning."""


class Recording(NamedTuple):
    """A series that several panels and alerts use, computed once per evaluation."""

    name: str
    expression: str


class Alert(NamedTuple):
    """`hold` is the time for which the expression has to be true; `page` and `heading` are where an
    operator reads on."""

    name: str
    expression: str
    hold: str
    severity: Severity
    summary: str
    page: str
    heading: str


class Panel(NamedTuple):
    """A graph: each expression with its legend, and the unit in Grafana's words."""

    title: str
    unit: str
    curves: tuple[tuple[str, str], ...]
    description: str = ""


class Dashboard(NamedTuple):
    """A dashboard of Grafana; `variables` are labels that its reader can choose by."""

    name: str
    title: str
    variables: tuple[tuple[str, str], ...]
    panels: tuple[Panel, ...]


RECORDINGS: Final = (
    Recording(
        "waltz:appends:rate5m",
        "sum by (instance, partition) (rate(waltz_server_appends_total[5m]))",
    ),
    Recording(
        "waltz:commits:rate5m",
        "sum by (instance, partition) (rate(waltz_server_commits_total[5m]))",
    ),
    Recording(
        "waltz:append_seconds:p50",
        "histogram_quantile(0.5, sum by (instance, stage, le)"
        " (rate(waltz_server_append_seconds_bucket[5m])))",
    ),
    Recording(
        "waltz:append_seconds:p99",
        "histogram_quantile(0.99, sum by (instance, stage, le)"
        " (rate(waltz_server_append_seconds_bucket[5m])))",
    ),
    Recording(
        "waltz:drain_seconds:p99",
        "histogram_quantile(0.99, sum by (instance, le)"
        " (rate(waltz_storage_drain_seconds_bucket[5m])))",
    ),
    Recording(
        "waltz:cache_hits:ratio5m",
        "rate(waltz_server_cache_hits_total[5m]) / (rate(waltz_server_cache_hits_total[5m])"
        " + rate(waltz_server_cache_misses_total[5m]))",
    ),
    Recording(
        "waltz:partitions_unserved",
        "max(waltz_storage_cluster_partitions)"
        " - (count(count by (partition) (waltz_server_open)) or vector(0))",
    ),
    Recording(
        "waltz:client_append_seconds:p99",
        "histogram_quantile(0.99, sum by (instance, client, le)"
        " (rate(waltz_client_append_seconds_bucket[5m])))",
    ),
)

SERVER_PAGE: Final = "server.md"
STORAGE_PAGE: Final = "storage-node.md"
AUDIT_PAGE: Final = "audit.md"
CLIENT_PAGE: Final = "clients.md"
CONSUMER_PAGE: Final = "consumers.md"
ARCHIVE_PAGE: Final = "archive.md"
PIPELINE_PAGE: Final = "pipelines.md"

ALERTS: Final = (
    Alert(
        "WaltzProcessDown",
        'up{job=~"waltz.*"} == 0',
        "2m",
        Severity.CRITICAL,
        "{{ $labels.job }} {{ $labels.instance }} does not answer.",
        SERVER_PAGE,
        "What to watch",
    ),
    Alert(
        "WaltzPartitionUnserved",
        "waltz:partitions_unserved > 0",
        "1m",
        Severity.CRITICAL,
        "{{ $value }} partitions have no server.",
        SERVER_PAGE,
        "A partition takes no appends",
    ),
    Alert(
        "WaltzPartitionTakesNoAppends",
        "waltz_server_writable == 0",
        "1m",
        Severity.CRITICAL,
        "Partition {{ $labels.partition }} commits no append.",
        SERVER_PAGE,
        "A partition takes no appends",
    ),
    Alert(
        "WaltzPartitionUnknown",
        "waltz_server_writable == -1",
        "5m",
        Severity.WARNING,
        "Nobody can say whether partition {{ $labels.partition }} takes appends.",
        SERVER_PAGE,
        "A partition takes no appends",
    ),
    Alert(
        "WaltzPartitionFails",
        "increase(waltz_server_failures_total[15m]) > 0",
        "0m",
        Severity.WARNING,
        "Partition {{ $labels.partition }} has failed by a bug, and was opened again.",
        SERVER_PAGE,
        "A partition takes no appends",
    ),
    Alert(
        "WaltzSessionsDoNotLast",
        "increase(waltz_server_store_sessions_total[15m]) > 10",
        "0m",
        Severity.WARNING,
        "Partition {{ $labels.partition }} opens one store session after the other.",
        "waiting-partitions.md",
        "A partition that takes no appends",
    ),
    Alert(
        "WaltzReplicaMissing",
        "waltz_server_replicas_current < waltz_server_replicas",
        "10m",
        Severity.WARNING,
        "Partition {{ $labels.partition }} has {{ $value }} replicas that hold every commit and"
        " take appends.",
        "cluster.md",
        "Is it all right?",
    ),
    Alert(
        "WaltzReplicaSilent",
        "waltz_server_replicas_silent > 0",
        "1m",
        Severity.WARNING,
        "{{ $value }} replicas of partition {{ $labels.partition }} do not answer.",
        "cluster.md",
        "Is it all right?",
    ),
    Alert(
        "WaltzCoordinatorLost",
        "waltz_server_coordinator_lost == 1",
        "0m",
        Severity.CRITICAL,
        "{{ $labels.instance }} has lost the coordinator: appends go on, nothing may fail.",
        SERVER_PAGE,
        "The coordinator does not answer",
    ),
    Alert(
        "WaltzServerUnhealthy",
        "waltz_server_healthy == 0",
        "5m",
        Severity.WARNING,
        "/health of {{ $labels.instance }} says what is wrong.",
        SERVER_PAGE,
        "What to watch",
    ),
    Alert(
        "WaltzAppendsSlow",
        "waltz:append_seconds:p99 > 1",
        "10m",
        Severity.WARNING,
        "One batch in a hundred takes {{ $value }} s in stage {{ $labels.stage }}.",
        SERVER_PAGE,
        "Appends are slow",
    ),
    Alert(
        "WaltzClientsNotRead",
        "waltz_server_throttled_connections > 0",
        "10m",
        Severity.WARNING,
        "{{ $labels.instance }} does not read {{ $value }} clients: too much is under way.",
        SERVER_PAGE,
        "Clients are not read",
    ),
    Alert(
        "WaltzAuditFails",
        "waltz_server_audit_failing == 1 or waltz_storage_audit_failing == 1",
        "1m",
        Severity.WARNING,
        "{{ $labels.instance }} cannot write its audit log, and refuses what operators ask.",
        AUDIT_PAGE,
        "When the log takes no entries",
    ),
    Alert(
        "WaltzAuditLosesEntries",
        "increase(waltz_server_audit_entries_lost_total[1h]) > 0"
        " or increase(waltz_storage_audit_entries_lost_total[1h]) > 0",
        "0m",
        Severity.WARNING,
        "{{ $value }} entries of {{ $labels.instance }} are not in its audit log.",
        AUDIT_PAGE,
        "When the log takes no entries",
    ),
    Alert(
        "WaltzRecordsDamaged",
        "waltz_storage_damaged_records > 0",
        "0m",
        Severity.WARNING,
        "{{ $value }} records of partition {{ $labels.partition }} are damaged.",
        STORAGE_PAGE,
        "Records are damaged",
    ),
    Alert(
        "WaltzReplicaRefuses",
        "waltz_storage_refusing == 1",
        "0m",
        Severity.CRITICAL,
        "Damage makes {{ $labels.instance }} serve nothing of partition {{ $labels.partition }}.",
        STORAGE_PAGE,
        "Records are damaged",
    ),
    Alert(
        "WaltzStoragePartitionFailed",
        "waltz_storage_failed == 1",
        "0m",
        Severity.CRITICAL,
        "A bug has ended partition {{ $labels.partition }} on {{ $labels.instance }}.",
        STORAGE_PAGE,
        "A partition has failed",
    ),
    Alert(
        "WaltzWriterClosed",
        "waltz_storage_writer_open == 0",
        "1m",
        Severity.CRITICAL,
        "{{ $labels.instance }} takes no writes of partition {{ $labels.partition }}.",
        STORAGE_PAGE,
        "A write or sync failed",
    ),
    Alert(
        "WaltzDiskFull",
        "waltz_storage_appends_refused == 1",
        "0m",
        Severity.CRITICAL,
        "{{ $labels.instance }} refuses appends for want of space.",
        STORAGE_PAGE,
        "The disk is full",
    ),
    Alert(
        "WaltzDiskLow",
        "waltz_storage_disk_free_bytes < 2 * waltz_storage_disk_free_minimum_bytes",
        "5m",
        Severity.WARNING,
        "{{ $labels.instance }} has {{ $value | humanize1024 }}B left.",
        STORAGE_PAGE,
        "The disk is full",
    ),
    Alert(
        "WaltzDiskFillsUp",
        "predict_linear(waltz_storage_disk_free_bytes[6h], 3 * 86400) < 0",
        "1h",
        Severity.WARNING,
        "The disk of {{ $labels.instance }} is full within three days.",
        STORAGE_PAGE,
        "The disk is full",
    ),
    Alert(
        "WaltzDiskHangs",
        "waltz_storage_disk_call_seconds > 10",
        "0m",
        Severity.CRITICAL,
        "A disk call of {{ $labels.instance }} has not returned for {{ $value }} s.",
        STORAGE_PAGE,
        "The disk",
    ),
    Alert(
        "WaltzDiskSlow",
        "waltz:drain_seconds:p99 > 0.1",
        "10m",
        Severity.WARNING,
        "One sync in a hundred of {{ $labels.instance }} takes {{ $value }} s.",
        STORAGE_PAGE,
        "The disk",
    ),
    Alert(
        "WaltzPartitionClosed",
        "waltz_storage_readable * waltz_storage_writable == 0",
        "1h",
        Severity.WARNING,
        "An administrator has closed partition {{ $labels.partition }} on {{ $labels.instance }}.",
        "cluster.md",
        "Close a partition on one node",
    ),
    Alert(
        "WaltzStorageUnhealthy",
        "waltz_storage_healthy == 0",
        "5m",
        Severity.WARNING,
        "/health of {{ $labels.instance }} says what is wrong.",
        STORAGE_PAGE,
        "What to watch",
    ),
    Alert(
        "WaltzScrubStopped",
        # A restart is no pass, and a node of yesterday has missed none.
        "increase(waltz_storage_scrub_passes_total[6d]) == 0"
        " and waltz_storage_scrub_passes_total offset 6d >= 0",
        "1d",
        Severity.WARNING,
        "{{ $labels.instance }} has finished no pass over its records for a week.",
        STORAGE_PAGE,
        "Records are damaged",
    ),
    Alert(
        "WaltzArchiveBehind",
        "waltz_archiver_lag_seconds > 300",
        "5m",
        Severity.WARNING,
        "Partition {{ $labels.partition }} is not archived since {{ $value }} s.",
        ARCHIVE_PAGE,
        "The archive is behind",
    ),
    Alert(
        "WaltzArchiveStands",
        "time() - waltz_archiver_last_success_timestamp_seconds > 3600",
        "10m",
        Severity.WARNING,
        "No round of the archiver has archived everything for an hour.",
        ARCHIVE_PAGE,
        "The archive is behind",
    ),
    Alert(
        "WaltzCopiesDiffer",
        "waltz_archiver_copies_differ == 1",
        "0m",
        Severity.CRITICAL,
        "Storage nodes hold different records of partition {{ $labels.partition }}.",
        ARCHIVE_PAGE,
        "Copies of the log differ",
    ),
    Alert(
        "WaltzPipelineBehind",
        "waltz_pipeline_lag_seconds > on (instance) group_left ()"
        " (300 + 2 * waltz_pipeline_every_seconds)",
        "5m",
        Severity.WARNING,
        "Partition {{ $labels.partition }} is not taken in by {{ $labels.instance }} since"
        " {{ $value }} s.",
        PIPELINE_PAGE,
        "A pipeline is behind",
    ),
    Alert(
        "WaltzPipelineDiffers",
        "waltz_pipeline_verified_equal == 0",
        "0m",
        Severity.WARNING,
        "The last verify of {{ $labels.instance }} found its target different from the log.",
        PIPELINE_PAGE,
        "A target differs from the log",
    ),
    Alert(
        "WaltzClientBlocked",
        "waltz_client_blocked_seconds > 60",
        "0m",
        Severity.WARNING,
        "{{ $labels.client }} cannot apply the next transaction of partition"
        " {{ $labels.partition }}.",
        CLIENT_PAGE,
        "A transaction cannot be applied",
    ),
    Alert(
        "WaltzClientParks",
        "increase(waltz_client_parked_total[1h]) > 0",
        "0m",
        Severity.WARNING,
        "{{ $labels.client }} has parked transactions of partition {{ $labels.partition }}.",
        CLIENT_PAGE,
        "A transaction cannot be applied",
    ),
    Alert(
        "WaltzClientLags",
        "waltz_client_lag_transactions > 10000",
        "10m",
        Severity.WARNING,
        "{{ $labels.client }} is {{ $value }} transactions of partition {{ $labels.partition }}"
        " behind, at least.",
        CLIENT_PAGE,
        "A client is behind",
    ),
    Alert(
        "WaltzClientWithoutServer",
        "waltz_client_mounted == 0",
        "5m",
        Severity.WARNING,
        "Partition {{ $labels.partition }} has no server for {{ $labels.client }}.",
        CLIENT_PAGE,
        "A partition has no server",
    ),
    Alert(
        "WaltzConsumerLags",
        "max by (consumer, partition) (waltz_server_consumer_lag_seconds) > 300",
        "5m",
        Severity.WARNING,
        "{{ $labels.consumer }} is {{ $value }} s behind in partition {{ $labels.partition }}.",
        CONSUMER_PAGE,
        "A consumer is behind",
    ),
    Alert(
        "WaltzConsumerGone",
        "max by (consumer, partition) (waltz_server_consumer_connected) == 0",
        "5m",
        Severity.WARNING,
        "No client of {{ $labels.consumer }} has partition {{ $labels.partition }} mounted.",
        CONSUMER_PAGE,
        "A consumer is behind",
    ),
    Alert(
        "WaltzConsumersLeftOut",
        "waltz_server_consumer_lags_left_out > 0",
        "10m",
        Severity.WARNING,
        "{{ $labels.instance }} has more consumers than its metrics name.",
        CONSUMER_PAGE,
        "A consumer is behind",
    ),
    Alert(
        "WaltzLocksRefused",
        "sum by (instance, client, lock) (rate(waltz_client_refusals_total[5m])) > 10",
        "10m",
        Severity.WARNING,
        "{{ $value }} appends a second of {{ $labels.client }} are refused for lock"
        " {{ $labels.lock }}.",
        CLIENT_PAGE,
        "Locks are refused",
    ),
)

_INSTANCE: Final = '{instance=~"$instance"}'
_CLIENT: Final = '{client=~"$client"}'
_PARTITION: Final = '{partition=~"$partition"}'

DASHBOARDS: Final = (
    Dashboard(
        "cluster",
        "Waltz: cluster",
        (),
        (
            Panel(
                "Partitions that take appends",
                "short",
                (
                    ("count(waltz_server_writable == 1) or vector(0)", "take appends"),
                    ("count(waltz_server_writable == 0) or vector(0)", "take none"),
                    ("count(waltz_server_writable == -1) or vector(0)", "nobody can say"),
                    ("waltz:partitions_unserved", "have no server"),
                ),
            ),
            Panel(
                "Replicas by standing",
                "short",
                (("count by (standing) (waltz_server_replica_standing)", "{{standing}}"),),
                "Each replica of each partition, as its server's store session knows it.",
            ),
            Panel(
                "Commits",
                "ops",
                (("sum by (instance) (waltz:commits:rate5m)", "{{instance}}"),),
            ),
            Panel(
                "Stages of appends, p99",
                "s",
                (("waltz:append_seconds:p99", "{{instance}} {{stage}}"),),
                "wait: in the server, for others or a lock; store: at the replicas; feed: to the"
                " clients.",
            ),
            Panel("Sync, p99", "s", (("waltz:drain_seconds:p99", "{{instance}}"),)),
            Panel(
                "Held up by quotas",
                "s",
                (
                    (
                        "sum by (principal) (rate(waltz_server_throttled_seconds_total[5m]))",
                        "{{principal}}",
                    ),
                ),
                "Seconds per second, over all connections of a principal.",
            ),
            Panel(
                "Coordinator",
                "short",
                (("waltz_server_coordinator_connected", "{{instance}}"),),
                "1 while it answers the server.",
            ),
            Panel("Servers and storage nodes", "short", (('up{job=~"waltz.*"}', "{{instance}}"),)),
            Panel(
                "Free disk",
                "bytes",
                (("waltz_storage_disk_free_bytes", "{{instance}}"),),
            ),
        ),
    ),
    Dashboard(
        "partition",
        "Waltz: partition",
        (("partition", "waltz_server_open"),),
        (
            Panel(
                "High-water mark",
                "short",
                (
                    (f"waltz_server_high_water_mark{_PARTITION}", "server {{partition}}"),
                    (
                        f"waltz_storage_durable_transaction_id{_PARTITION}",
                        "{{instance}} {{partition}}",
                    ),
                ),
                "The last commit, and the last record of each replica.",
            ),
            Panel(
                "Appends",
                "ops",
                (
                    (
                        f"rate(waltz_server_appends_total{_PARTITION}[5m])",
                        "to the store {{partition}}",
                    ),
                    (
                        f"rate(waltz_server_commits_total{_PARTITION}[5m])",
                        "committed {{partition}}",
                    ),
                    (
                        f"rate(waltz_server_lock_failures_total{_PARTITION}[5m])",
                        "refused {{partition}}",
                    ),
                    (
                        f"rate(waltz_server_appends_failed_total{_PARTITION}[5m])",
                        "failed {{partition}}",
                    ),
                ),
            ),
            Panel(
                "Stages of appends, p99",
                "s",
                (
                    (
                        (
                            "histogram_quantile(0.99, sum by (stage, le)"
                            f" (rate(waltz_server_append_seconds_bucket{_PARTITION}[5m])))"
                        ),
                        "{{stage}}",
                    ),
                ),
            ),
            Panel(
                "Waiting for the store",
                "short",
                ((f"waltz_server_pending_requests{_PARTITION}", "{{partition}}"),),
            ),
            Panel(
                "Replicas",
                "short",
                ((f"waltz_server_replica_standing{_PARTITION}", "{{replica}} {{standing}}"),),
            ),
            Panel(
                "Store session",
                "short",
                (
                    (f"waltz_server_session_id{_PARTITION}", "session {{partition}}"),
                    (f"waltz_server_generation{_PARTITION}", "generation {{partition}}"),
                ),
            ),
            Panel(
                "Clients",
                "short",
                (
                    (f"waltz_server_mounts{_PARTITION}", "mounted {{partition}}"),
                    (f"waltz_server_feeds{_PARTITION}", "fed {{partition}}"),
                ),
            ),
            Panel(
                "Consumers, seconds behind",
                "s",
                (
                    (
                        f"waltz_server_consumer_lag_seconds{_PARTITION}",
                        "{{consumer}} {{partition}}",
                    ),
                ),
                "Time since the first transaction was committed that the consumer has not applied.",
            ),
            Panel(
                "Consumers, transactions behind",
                "short",
                (
                    (
                        f"waltz_server_consumer_lag_transactions{_PARTITION}",
                        "{{consumer}} {{partition}}",
                    ),
                ),
            ),
        ),
    ),
    Dashboard(
        "storage-node",
        "Waltz: storage node",
        (("instance", "waltz_storage_healthy"),),
        (
            Panel(
                "Health",
                "short",
                ((f"waltz_storage_healthy{_INSTANCE}", "{{instance}}"),),
                "1 while nothing is known to be wrong.",
            ),
            Panel(
                "Sync, p99",
                "s",
                (
                    (
                        (
                            "histogram_quantile(0.99, sum by (instance, le)"
                            f" (rate(waltz_storage_drain_seconds_bucket{_INSTANCE}[5m])))"
                        ),
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Written",
                "Bps",
                (
                    (
                        (
                            "sum by (instance)"
                            f" (rate(waltz_storage_appended_bytes_total{_INSTANCE}[5m]))"
                        ),
                        "{{instance}}",
                    ),
                ),
            ),
            Panel(
                "Free disk",
                "bytes",
                (
                    (f"waltz_storage_disk_free_bytes{_INSTANCE}", "{{instance}}"),
                    (
                        f"waltz_storage_disk_free_minimum_bytes{_INSTANCE}",
                        "minimum of {{instance}}",
                    ),
                ),
            ),
            Panel(
                "Damaged records",
                "short",
                ((f"waltz_storage_damaged_records{_INSTANCE}", "{{instance}} {{partition}}"),),
            ),
            Panel(
                "Disk call under way",
                "s",
                ((f"waltz_storage_disk_call_seconds{_INSTANCE}", "{{instance}} {{partition}}"),),
            ),
            Panel(
                "Queues",
                "bytes",
                ((f"waltz_storage_queue_bytes{_INSTANCE}", "{{instance}} {{partition}}"),),
            ),
            Panel(
                "Scrubbed",
                "Bps",
                ((f"rate(waltz_storage_scrubbed_bytes_total{_INSTANCE}[15m])", "{{instance}}"),),
            ),
        ),
    ),
    Dashboard(
        "pipeline",
        "Waltz: pipeline",
        (("instance", "waltz_pipeline_healthy"),),
        (
            Panel(
                "Behind",
                "short",
                (
                    (
                        f"waltz_pipeline_lag_transactions{_INSTANCE}",
                        "{{instance}} {{partition}}",
                    ),
                ),
                "Transactions that the log had when it was last asked, and that are not taken in.",
            ),
            Panel(
                "Behind, in time",
                "s",
                ((f"waltz_pipeline_lag_seconds{_INSTANCE}", "{{instance}} {{partition}}"),),
                "A lower bound: since the pipeline has seen the first of them.",
            ),
            Panel(
                "Taken in",
                "ops",
                ((f"rate(waltz_pipeline_transactions_total{_INSTANCE}[5m])", "{{instance}}"),),
            ),
            Panel(
                "Parts of a batch, mean",
                "s",
                (
                    (
                        (
                            f"rate(waltz_pipeline_batch_seconds_sum{_INSTANCE}[5m])"
                            f" / rate(waltz_pipeline_batch_seconds_count{_INSTANCE}[5m])"
                        ),
                        "{{part}} of {{instance}}",
                    ),
                ),
            ),
            Panel(
                "Last verify: 1 equal, 0 different",
                "short",
                ((f"waltz_pipeline_verified_equal{_INSTANCE}", "{{instance}}"),),
            ),
            Panel(
                "Age of the last verify",
                "s",
                (
                    (
                        f"time() - waltz_pipeline_verified_timestamp_seconds{_INSTANCE}",
                        "{{instance}}",
                    ),
                ),
            ),
        ),
    ),
    Dashboard(
        "client",
        "Waltz: client",
        (("client", "waltz_client_connected_servers"),),
        (
            Panel(
                "Lag",
                "short",
                (
                    (
                        f"waltz_client_lag_transactions{_CLIENT}",
                        "{{client}} {{partition}}",
                    ),
                ),
                "Transactions that the client has heard of and not applied: a lower bound.",
            ),
            Panel(
                "Applied",
                "ops",
                (
                    (
                        f"rate(waltz_client_applied_total{_CLIENT}[5m])",
                        "{{client}} {{partition}}",
                    ),
                ),
            ),
            Panel(
                "Submit to told, p99",
                "s",
                (
                    (
                        (
                            "histogram_quantile(0.99, sum by (client, le)"
                            f" (rate(waltz_client_append_seconds_bucket{_CLIENT}[5m])))"
                        ),
                        "{{client}}",
                    ),
                ),
            ),
            Panel(
                "Refusals by lock",
                "ops",
                ((f"rate(waltz_client_refusals_total{_CLIENT}[5m])", "{{client}} {{lock}}"),),
            ),
            Panel(
                "Retries",
                "ops",
                ((f"rate(waltz_client_retries_total{_CLIENT}[5m])", "{{client}}"),),
            ),
            Panel(
                "Undecided",
                "short",
                (
                    (f"waltz_client_unfinished_contexts{_CLIENT}", "contexts of {{client}}"),
                    (
                        f"sum by (client) (waltz_client_pending_appends{_CLIENT})",
                        "sent by {{client}}",
                    ),
                ),
            ),
            Panel(
                "Blocked",
                "s",
                (
                    (
                        f"waltz_client_blocked_seconds{_CLIENT}",
                        "{{client}} {{partition}}",
                    ),
                ),
            ),
            Panel(
                "Connections",
                "short",
                (
                    (f"waltz_client_connected_servers{_CLIENT}", "servers of {{client}}"),
                    (
                        f"increase(waltz_client_connections_lost_total{_CLIENT}[15m])",
                        "lost by {{client}}",
                    ),
                    (
                        f"increase(waltz_client_connections_restored_total{_CLIENT}[15m])",
                        "resumed by {{client}}",
                    ),
                ),
            ),
        ),
    ),
)
