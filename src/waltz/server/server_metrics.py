"""The state of a server and its partitions: the one source of metrics, status and health.

Owns the list of figures, their names and units, and what counts as unwell. Pure: a state is made
from what the event loop can see at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Any, Final

from waltz.figures import Metric, counter, gauge
from waltz.limits import (
    PARTITION_PROBLEM_CHARACTERS_MAX,
    PARTITION_PROBLEMS_MAX,
    REPORT_CHARACTERS_MAX,
    REPORT_REPLICAS_MAX,
)
from waltz.store.standing import StoreReport
from waltz.types import NO_SESSION, Generation, PartitionId, ReplicaId, ServerId, TransactionId
from waltz.wire.discovery_protocol import PartitionProblem
from waltz.wire.report_protocol import NEVER, PartitionReport, ReplicaEntry, Standing

COORDINATOR_SILENT_SECONDS_MAX: Final = 10.0
"""A server whose coordinator has not answered for so long says that it has lost the coordinator."""


class ServerStage(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(slots=True)
class ServerPartitionCounters:
    """Since this server opened the partition; it starts from nothing with each opening."""

    appends: int = 0
    appended_bytes: int = 0
    commits: int = 0
    appends_failed: int = 0
    lock_failures: int = 0
    requests_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPartitionState:
    """One partition of this server. `reason` is why it has no store session, if it has none;
    `store` what its replicas say of themselves, None where there is no store yet."""

    partition_id: PartitionId
    generation: Generation
    reason: str | None
    high_water_mark: TransactionId | None = None
    mounts: int = 0
    feeds: int = 0
    pending_requests: int = 0
    pending_bytes: int = 0
    data_requests: int = 0
    unreadable: int = 0
    failures: int = 0
    store: StoreReport | None = None
    counters: ServerPartitionCounters = field(default_factory=ServerPartitionCounters)
    replica_ids: tuple[ReplicaId, ...] | None = None
    """As the coordinator has assigned them; None: not read yet."""

    @property
    def is_open(self) -> bool:
        """Whether it has a store session: it takes requests, whatever the replicas do with them."""
        return self.reason is None

    @property
    def is_writable(self) -> bool | None:
        """Whether an append would be committed; None: nobody can say."""
        if not self.is_open:
            return False
        return None if self.store is None else self.store.is_writable

    @property
    def obstacle(self) -> str | None:
        """Why it is not certain that an append would be committed; None if it is."""
        if self.reason is not None:
            return self.reason
        return "its replicas have not been asked" if self.store is None else self.store.reason

    def problems(self) -> list[str]:
        """Return known problems; a replica that should have answered and has not is one."""
        if self.is_writable is False:
            return [f"takes no appends: {self.obstacle}"]
        if self.is_writable is None and self.count(Standing.SILENT):
            return [f"nobody can say whether it takes appends: {self.obstacle}"]
        return []

    def unknown(self) -> list[str]:
        """Return what is not known although nothing need be wrong."""
        if self.is_writable is not None or self.problems():
            return []
        return [f"nobody can say whether it takes appends: {self.obstacle}"]

    def count(self, standing: Standing) -> int | None:
        """Replicas of this standing; None where nobody knows any."""
        return None if self.store is None else self.store.count(standing)


@dataclass(frozen=True, slots=True)
class CoordinatorContact:
    """The server's contact with its coordinator: how long ago it answered last, None if never, and
    what has gone wrong since."""

    age_seconds: float | None
    trouble: str | None

    def problem(self) -> str | None:
        if self.age_seconds is not None and self.age_seconds <= COORDINATOR_SILENT_SECONDS_MAX:
            return None
        since = (
            "never answered"
            if self.age_seconds is None
            else (f"not answered for {self.age_seconds:.0f} s")
        )
        return (
            f"the coordinator has {since}{'' if self.trouble is None else f' ({self.trouble})'}:"
            " partitions that are open go on, but none is opened, given away or taken over"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """`backlog` is what clients have asked for and not got yet, `unsent` what they have not taken;
    a peak is the most that any one connection has had."""

    stage: ServerStage
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
    coordinator: CoordinatorContact | None = None
    """None: nobody looks after it."""
    partitions: tuple[ServerPartitionState, ...] = ()

    def problems(self) -> list[str]:
        """Those of the server as a whole."""
        found = [] if self.stage is ServerStage.SERVING else [f"the server is {self.stage}"]
        if self.coordinator is not None and (problem := self.coordinator.problem()) is not None:
            found.append(problem)
        return found

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self.problems() and not any(p.problems() for p in self.partitions)


SERVER_METRICS: Final[Sequence[Metric[ServerState]]] = (
    gauge("healthy", "What /health says: 1 for 200, 0 for 503.", lambda s: s.is_healthy),
    gauge("partitions", "Partitions assigned to this server.", lambda s: len(s.partitions)),
    gauge("connections", "Connections of clients.", lambda s: s.connections),
    gauge(
        "broken_connections",
        "Connections that were interrupted and can be restored.",
        lambda s: s.broken_connections,
    ),
    gauge(
        "full_connections",
        "Connections that are interrupted, or whose clients read more slowly than the server has"
        " data for them.",
        lambda s: s.full_connections,
    ),
    gauge(
        "backlog_bytes", "Requests that are not yet decided or answered.", lambda s: s.backlog_bytes
    ),
    gauge(
        "backlog_peak_bytes",
        "The most that one connection has had of them.",
        lambda s: s.backlog_bytes_peak,
    ),
    gauge(
        "unsent_bytes",
        "Bytes written to connections that clients have not read.",
        lambda s: s.unsent_bytes,
    ),
    gauge(
        "unsent_peak_bytes",
        "The most that one connection has had of them.",
        lambda s: s.unsent_bytes_peak,
    ),
    gauge(
        "retained_bytes",
        "Bytes written and not acknowledged; they are sent again if a connection is restored.",
        lambda s: s.retained_bytes,
    ),
    gauge(
        "cache_bytes",
        "Bytes of recent transactions that are kept in memory.",
        lambda s: s.cache_bytes,
    ),
    gauge(
        "coordinator_answer_age_seconds",
        "Time since the coordinator's last answer; absent before its first answer.",
        lambda s: None if s.coordinator is None else s.coordinator.age_seconds,
    ),
    gauge(
        "coordinator_lost",
        f"1 if the coordinator has not answered for {COORDINATOR_SILENT_SECONDS_MAX:g} s.",
        lambda s: None if s.coordinator is None else s.coordinator.problem() is not None,
    ),
)

SERVER_PARTITION_METRICS: Final[Sequence[Metric[ServerPartitionState]]] = (
    gauge(
        "writable",
        "1 if a majority of the replicas has said lately that it takes appends, 0 if it is known"
        " not to, -1 if nobody can say.",
        lambda p: -1 if p.is_writable is None else p.is_writable,
    ),
    gauge("open", "1 while there is a store session.", lambda p: p.is_open),
    gauge(
        "replicas_current",
        "Replicas that have said lately that they hold every commit and take appends.",
        lambda p: p.count(Standing.CURRENT),
    ),
    gauge(
        "replicas",
        "Replicas that the store session deals with, whether they take part or not.",
        lambda p: None if p.store is None else len(p.store.replicas),
    ),
    gauge(
        "replicas_silent",
        "Replicas that should have answered and did not.",
        lambda p: p.count(Standing.SILENT),
    ),
    gauge(
        "generation",
        "The partition's generation: how often it has moved.",
        lambda p: p.generation,
    ),
    gauge(
        "high_water_mark",
        "Last transaction that is known to be committed; -1 if there is none.",
        lambda p: p.high_water_mark,
    ),
    gauge("mounts", "Clients that have mounted the partition.", lambda p: p.mounts),
    gauge("feeds", "Feeds of clients.", lambda p: p.feeds),
    gauge(
        "pending_requests",
        "Appends, mounts and flushes that wait for the store.",
        lambda p: p.pending_requests,
    ),
    gauge("pending_bytes", "Bytes of these requests.", lambda p: p.pending_bytes),
    gauge("data_requests", "Requests for data not answered yet.", lambda p: p.data_requests),
    gauge(
        "unreadable_transactions",
        "Transactions asked for in the last seconds that no replica could give.",
        lambda p: p.unreadable,
    ),
    counter("failures", "Times that the partition ended by an error.", lambda p: p.failures),
    counter("appends", "Appends handed to the store.", lambda p: p.counters.appends),
    counter(
        "appended_bytes", "Bytes of data of these appends.", lambda p: p.counters.appended_bytes
    ),
    counter("commits", "Appends committed.", lambda p: p.counters.commits),
    counter(
        "appends_failed", "Appends proved not to be written.", lambda p: p.counters.appends_failed
    ),
    counter("lock_failures", "Appends refused by locks.", lambda p: p.counters.lock_failures),
    counter(
        "requests_dropped",
        "Requests of stale connections or generations; they get no answer.",
        lambda p: p.counters.requests_dropped,
    ),
)


def told_problems(state: ServerState) -> tuple[PartitionProblem, ...]:
    """Return problems of partitions that take no appends, at most PARTITION_PROBLEMS_MAX."""
    reasons = (
        (p.partition_id, p.obstacle)
        for p in state.partitions
        if p.is_writable is False and p.obstacle is not None
    )
    return tuple(
        PartitionProblem(partition_id, reason[:PARTITION_PROBLEM_CHARACTERS_MAX])
        for partition_id, reason in islice(reasons, PARTITION_PROBLEMS_MAX)
    )


def original_gauges(state: ServerState) -> dict[str, dict[str, Any]]:
    """Return the figures that `ServerCli list` of the Java original reads, under its names.

    Partitions whose replicas are not known yet are left out of `replica-info`."""
    found = {
        "is-closed": state.stage is ServerStage.STOPPING,
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
    """Return the problems of the server and of each partition; empty lists where there are none."""
    return {
        "healthy": state.is_healthy,
        "stage": state.stage,
        "server_id": state.server_id,
        "preferred_partitions": list(state.preferred_partitions),
        "problems": state.problems(),
        "coordinator_answer_age_seconds": None
        if state.coordinator is None
        else state.coordinator.age_seconds,
        "partitions": {
            str(partition.partition_id): {
                "writable": partition.is_writable,
                "problems": partition.problems(),
                "unknown": partition.unknown(),
                "replicas": {
                    replica.replica_id: {
                        "standing": replica.standing.name.lower(),
                        "answer_age_seconds": replica.age_seconds,
                        "text": replica.text,
                    }
                    for replica in (() if partition.store is None else partition.store.replicas)
                },
            }
            for partition in state.partitions
        },
    }


def told_reports(states: Iterable[ServerPartitionState]) -> tuple[PartitionReport, ...]:
    """Return what tools are told of these partitions."""
    return tuple(
        PartitionReport(
            state.partition_id,
            state.generation,
            NO_SESSION if state.store is None else state.store.session_id,
            state.high_water_mark,
            _told(state.is_writable),
            None if state.obstacle is None else state.obstacle[:PARTITION_PROBLEM_CHARACTERS_MAX],
            tuple(
                ReplicaEntry(
                    replica.replica_id,
                    replica.standing,
                    _told(replica.takes_appends),
                    milliseconds(replica.age_seconds),
                    replica.text[:REPORT_CHARACTERS_MAX],
                )
                for replica in islice(
                    () if state.store is None else state.store.replicas, REPORT_REPLICAS_MAX
                )
            ),
        )
        for state in states
    )


def _told(value: bool | None) -> int:
    return -1 if value is None else int(value)


def milliseconds(age_seconds: float | None) -> int:
    return NEVER if age_seconds is None else int(age_seconds * 1000)
