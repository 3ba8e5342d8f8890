"""Scrapes of a cluster in a state, as series for Prometheus's tests of rules.

The state is that of one server, one storage node, one client, one archiver and one pipeline, by
value; the scrape is what their processes would answer, for it is made by the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.parser import text_string_to_metric_families

from tests.storage.states import healthy, node_of
from waltz.archive.archiver_metrics import ArchiverPartition, ArchiverState
from waltz.cli.exposition import archiver_families, server_families, storage_families
from waltz.cli.pipeline_port import pipeline_families
from waltz.client.client_metrics import ClientMetrics, ClientPartitionMetrics
from waltz.figures import Durations
from waltz.host import Space
from waltz.metrics import StateCollector, client_families
from waltz.server.clients.consumer_lags import ConsumerLag, ConsumersState
from waltz.server.server_metrics import (
    CoordinatorContact,
    ServerPartitionState,
    ServerStage,
    ServerState,
)
from waltz.spark.followed_metrics import FollowedPartition, LastVerify, PipelineState
from waltz.storage.directory.space import FREE_MINIMUM, SpaceGuard
from waltz.storage.storage_metrics import NodeState
from waltz.store.standing import ReplicaReport, StoreReport
from waltz.types import Generation, PartitionId, ReplicaId, ServerId, SessionId, TransactionId
from waltz.wire.report_protocol import Standing

GIBIBYTE = 1 << 30
DISK = 1000 * GIBIBYTE


def store(*standings: Standing) -> StoreReport:
    """A store whose replicas have these standings."""
    takes = {Standing.CURRENT: True, Standing.REFUSING: False, Standing.ABSENT: False}
    replicas = tuple(
        ReplicaReport(ReplicaId(f"s{number}:7201"), standing, takes.get(standing), 1.0, "")
        for number, standing in enumerate(standings)
    )
    members = tuple(each.replica_id for each in replicas)
    return StoreReport(SessionId(4), TransactionId(9), None, members, replicas)


def partition(number: int = 0) -> ServerPartitionState:
    return ServerPartitionState(
        partition_id=PartitionId(number),
        generation=Generation(1),
        reason=None,
        high_water_mark=TransactionId(9),
        session_seconds=60.0,
        store=store(Standing.CURRENT, Standing.CURRENT, Standing.CURRENT),
    )


def free(size_bytes: int) -> SpaceGuard:
    """A disk with that much free, looked at once."""
    space = Space(size_bytes, DISK)
    guard = SpaceGuard("/storage", FREE_MINIMUM, space)
    guard.observe(space, 0.0, settled_bytes=0, has_reserve=True)
    return guard


FOLLOWED = ClientPartitionMetrics(
    partition_id=PartitionId(0),
    is_mounted=True,
    is_denied=False,
    applied_mark=TransactionId(9),
    known_mark=TransactionId(9),
    applied=10,
    pending=0,
    rows_refused=0,
    parked=0,
    blocked_seconds=None,
)


CONSUMERS = ConsumersState(
    (
        ConsumerLag("billing", PartitionId(0), True, 0, 0.0),
        ConsumerLag("billing", PartitionId(1), True, 2, 0.5),
    )
)


@dataclass(frozen=True)
class Scene:
    """A cluster at one moment."""

    server: ServerState
    node: NodeState
    client: ClientMetrics
    archiver: ArchiverState
    pipeline: PipelineState
    consumers: ConsumersState = CONSUMERS
    up: int = 1

    def with_partition(self, **changes: object) -> Scene:
        changed = replace(self.server.partitions[0], **changes)  # type: ignore[arg-type]
        others = self.server.partitions[1:]
        return replace(self, server=replace(self.server, partitions=(changed, *others)))

    def with_server(self, **changes: object) -> Scene:
        return replace(self, server=replace(self.server, **changes))  # type: ignore[arg-type]

    def with_replica(self, **changes: object) -> Scene:
        changed = replace(self.node.partitions[0], **changes)  # type: ignore[arg-type]
        return replace(self, node=replace(self.node, partitions=(changed,)))

    def with_node(self, **changes: object) -> Scene:
        return replace(self, node=replace(self.node, **changes))  # type: ignore[arg-type]

    def with_client(self, **changes: object) -> Scene:
        return replace(self, client=replace(self.client, **changes))  # type: ignore[arg-type]

    def with_followed(self, **changes: object) -> Scene:
        changed = replace(self.client.partitions[0], **changes)  # type: ignore[arg-type]
        return replace(self, client=replace(self.client, partitions=(changed,)))

    def with_archiver(self, **changes: object) -> Scene:
        return replace(self, archiver=replace(self.archiver, **changes))  # type: ignore[arg-type]

    def with_archived(self, **changes: object) -> Scene:
        changed = replace(self.archiver.partitions[0], **changes)  # type: ignore[arg-type]
        return replace(self, archiver=replace(self.archiver, partitions=(changed,)))

    def with_pipeline(self, **changes: object) -> Scene:
        return replace(self, pipeline=replace(self.pipeline, **changes))  # type: ignore[arg-type]

    def samples(self) -> dict[str, float]:
        """Return each series that a scraper of the five processes reads, with its value."""
        found: dict[str, float] = {}
        for job, families in (
            ("waltz-server", server_families(self.server, self.consumers, version="1")),
            ("waltz-storage", storage_families(self.node, version="1")),
            ("waltz-archiver", archiver_families(self.archiver, version="1")),
            ("waltz-pipeline", pipeline_families(self.pipeline, version="1")),
            ("application", client_families([("orders", self.client)])),
        ):
            found |= _scraped(job, families)
            found[f'up{{instance="{job}:1",job="{job}"}}'] = self.up
        return found


def _scraped(job: str, families: Iterator[MetricFamily]) -> dict[str, float]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(lambda: families))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = {**sample.labels, "instance": f"{job}:1", "job": job}
            shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
            found[f"{sample.name}{{{shown}}}"] = sample.value
    return found


def series(before: Scene, after: Scene, steps: int) -> list[dict[str, str]]:
    """A scrape per step, each further from `before` by the way to `after`, as promtool reads it."""
    first, second = before.samples(), after.samples()
    return [
        {"series": name, "values": f"{value}{second.get(name, value) - value:+}x{steps}"}
        for name, value in first.items()
    ]


WELL = Scene(
    server=ServerState(
        stage=ServerStage.SERVING,
        server_id=ServerId(1),
        advertised="host:7000",
        coordinator=CoordinatorContact(1.0, None, 60.0),
        partitions=(partition(0), partition(1)),
    ),
    node=node_of(healthy(0), partition_count=2, space=free(DISK // 2)),
    client=ClientMetrics(
        connected_servers=1,
        connections_opened=2,
        connections_restored=0,
        connections_lost=0,
        unfinished=0,
        retries=0,
        refusals={"account": 3},
        append_seconds=Durations(),
        partitions=(FOLLOWED,),
    ),
    archiver=ArchiverState(
        target="file:///backup",
        cluster_key="key",
        manifest=7,
        last_success_milliseconds=1_800_000,
        commits=8,
        races_lost=0,
        failures=0,
        objects=8,
        byte_count=1_000,
        swept=0,
        trouble=None,
        partitions=(ArchiverPartition(PartitionId(0), 9, 9, 0.0, None, False),),
    ),
    pipeline=PipelineState(
        kind="tables",
        cluster="waltz://127.0.0.1:55180",
        target="/data/accounts.db",
        every_seconds=60.0,
        rounds=7,
        log_asked_milliseconds=1_800_000,
        batches=7,
        transactions=10,
        undecodable=0,
        written_bytes=None,
        last_verify=LastVerify(1_700_000, 10, 0),
        seconds={"read": Durations(), "commit": Durations()},
        partitions=(FollowedPartition(PartitionId(0), 10, 11, 400.0),),
    ),
)
"""Nothing is wrong."""
