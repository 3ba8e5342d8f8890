"""The state of a server and its partitions: the one source of metrics, status and health.

Owns the list of figures, their names and units, and what counts as unwell. Pure: a state is made
from what the event loop can see at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, pairwise
from typing import Any, Final

from waltz.access.policy_standing import PolicyStanding, denied_requests, policy_metrics
from waltz.audit.audit_metrics import AuditStanding, audit_metrics
from waltz.figures import Durations, Family, Kind, Label, Metric, Sample, counter, gauge
from waltz.limits import (
    PARTITION_PROBLEM_CHARACTERS_MAX,
    PARTITION_PROBLEMS_MAX,
    REPORT_CHARACTERS_MAX,
    REPORT_REPLICAS_MAX,
)
from waltz.server.appends.stage_seconds import StageSeconds
from waltz.store.standing import ReplicaReport, StoreReport
from waltz.types import (
    NO_SESSION,
    Generation,
    PartitionId,
    ReplicaId,
    ServerId,
    SessionId,
    TransactionId,
)
from waltz.wire.discovery_protocol import PartitionProblem
from waltz.wire.report_protocol import (
    NEVER,
    DurationBucket,
    DurationsReport,
    DurationsRequest,
    PartitionReport,
    ReplicaEntry,
    StageDurations,
    Standing,
)

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
    store_sessions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPartitionState:
    """One partition of this server. `reason` is why it has no store session, if it has none;
    `store` what its replicas say of themselves, None where there is no store yet; `is_full` is
    whether clients that hold more than their share are not read."""

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
    is_full: bool = False
    session_seconds: float | None = None
    """Time since the store session has opened; None while there is none."""
    append_seconds: StageSeconds = field(default_factory=StageSeconds)
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

    @property
    def session_id(self) -> SessionId | None:
        """The store session that is open or being opened; None: there is none."""
        if self.store is None or self.store.session_id == NO_SESSION:
            return None
        return self.store.session_id

    def count(self, standing: Standing) -> int | None:
        """Replicas of this standing; None where nobody knows any."""
        return None if self.store is None else self.store.count(standing)


@dataclass(frozen=True, slots=True)
class CoordinatorContact:
    """The server's contact with its coordinator: how long ago it answered last, None if never, and
    what has gone wrong since; `state_seconds` is the time since answers began, or ceased, to come,
    and `calls_lost` the number of calls that the coordinator has not answered."""

    age_seconds: float | None
    trouble: str | None
    state_seconds: float | None = None
    calls_lost: int = 0

    @property
    def is_connected(self) -> bool | None:
        """Whether the last question was answered; None: none has been asked."""
        return None if self.age_seconds is None else self.trouble is None

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
    throttled_connections: int = 0
    throttles: int = 0
    unidentified: int = 0
    backlog_bytes: int = 0
    backlog_bytes_peak: int = 0
    unsent_bytes: int = 0
    unsent_bytes_peak: int = 0
    cache_bytes: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    is_registered: bool = True
    """Whether the coordinator listed the server at the server's last look."""
    coordinator: CoordinatorContact | None = None
    """None: nobody looks after it."""
    policy: PolicyStanding | None = None
    """None: clients may do everything."""
    throttled: tuple[tuple[tuple[str], float], ...] = ()
    """Seconds that connections were held up by a quota, by principal."""
    audit: AuditStanding | None = None
    partitions: tuple[ServerPartitionState, ...] = ()

    def problems(self) -> list[str]:
        """Those of the server as a whole."""
        found = [] if self.stage is ServerStage.SERVING else [f"the server is {self.stage}"]
        if not found and not self.is_registered:
            found.append(
                "the server is not registered with the coordinator, so that it is given no"
                " partitions: if this lasts, coordinator_trouble in its log says why"
            )
        if self.coordinator is not None and (problem := self.coordinator.problem()) is not None:
            found.append(problem)
        return found

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is known to be wrong."""
        return not self.problems() and not any(p.problems() for p in self.partitions)


UNASKED: Final = "the coordinator has not been asked yet"
NO_STORE_YET: Final = "the partition is not open here"

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
        "throttled_connections",
        "Connections that are not read now, for their requests fill their connection's or a"
        " partition's share of what may be under way.",
        lambda s: s.throttled_connections,
    ),
    counter("throttles", "Times that a connection was no longer read.", lambda s: s.throttles),
    counter(
        "connections_unidentified",
        "Connections that were refused, for they showed a bearer token that is not taken, or"
        " neither a token nor a certificate.",
        lambda s: s.unidentified,
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
    counter(
        "cache_hits",
        "Looks for a transaction that have found it in memory; one look serves a run of a feed.",
        lambda s: s.cache_hits,
    ),
    counter(
        "cache_misses",
        "Looks for a transaction that have not; the store is read then, once for all that wait.",
        lambda s: s.cache_misses,
    ),
    gauge(
        "coordinator_connected",
        "1 if the coordinator has answered the last question, 0 if not; one is asked every few"
        " seconds.",
        lambda s: None if s.coordinator is None else s.coordinator.is_connected,
        absent=UNASKED,
    ),
    gauge(
        "coordinator_state_seconds",
        "Time since the coordinator began to answer, or ceased to.",
        lambda s: None if s.coordinator is None else s.coordinator.state_seconds,
        absent=UNASKED,
    ),
    gauge(
        "coordinator_answer_age_seconds",
        "Time since the coordinator's last answer.",
        lambda s: None if s.coordinator is None else s.coordinator.age_seconds,
        absent=UNASKED,
    ),
    gauge(
        "coordinator_lost",
        f"1 if the coordinator has not answered for {COORDINATOR_SILENT_SECONDS_MAX:g} s.",
        lambda s: (
            None
            if s.coordinator is None or s.coordinator.age_seconds is None
            else s.coordinator.problem() is not None
        ),
        absent=UNASKED,
    ),
    counter(
        "coordinator_calls_lost",
        "Calls of the coordinator that ended without an answer; whether they took effect is"
        " unknown.",
        lambda s: None if s.coordinator is None else s.coordinator.calls_lost,
    ),
    *policy_metrics(lambda s: s.policy),
    *audit_metrics(lambda s: s.audit),
)

SERVER_FAMILIES: Final[Sequence[Family[ServerState]]] = (
    denied_requests(lambda s: s.policy),
    Family(
        "throttled_seconds",
        "Seconds that connections of the principal were not read, or sent nothing more, because of"
        " its quota, summed over its connections.",
        Kind.COUNTER,
        (Label("principal", "a name from a certificate, anonymous, or others"),),
        lambda s: s.throttled,
        absent="no quota has held the principal up",
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
        absent=NO_STORE_YET,
    ),
    gauge(
        "replicas",
        "Replicas that the store session deals with, whether they take part or not.",
        lambda p: None if p.store is None else len(p.store.replicas),
        absent=NO_STORE_YET,
    ),
    gauge(
        "replicas_silent",
        "Replicas that should have answered and did not.",
        lambda p: p.count(Standing.SILENT),
        absent=NO_STORE_YET,
    ),
    gauge(
        "session_id",
        "The store session that is open or being opened.",
        lambda p: p.session_id,
        absent="there is none",
    ),
    gauge(
        "session_seconds",
        "Time since the store session has opened.",
        lambda p: p.session_seconds,
        absent="no store session is open",
    ),
    counter(
        "store_sessions",
        "Store sessions that have opened since this server has the partition.",
        lambda p: p.counters.store_sessions,
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
        absent="no store session has opened yet",
    ),
    gauge("mounts", "Clients that have mounted the partition.", lambda p: p.mounts),
    gauge("feeds", "Feeds of clients.", lambda p: p.feeds),
    gauge(
        "pending_requests",
        "Appends, mounts and flushes that wait for the store.",
        lambda p: p.pending_requests,
    ),
    gauge("pending_bytes", "Bytes of these requests.", lambda p: p.pending_bytes),
    gauge(
        "full",
        "1 while clients with more than their share of these requests are not read.",
        lambda p: p.is_full,
    ),
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


def _of_stages(partition: ServerPartitionState) -> Iterator[Sample]:
    seconds = partition.append_seconds
    yield ("wait",), seconds.wait
    yield ("store",), seconds.store
    yield ("feed",), seconds.feed


def _replicas(partition: ServerPartitionState) -> Iterator[ReplicaReport]:
    store = partition.store
    return islice(() if store is None else store.replicas, REPORT_REPLICAS_MAX)


REPLICA_LABEL: Final = Label("replica", f"at most {REPORT_REPLICAS_MAX} replicas of a partition")

SERVER_PARTITION_FAMILIES: Final[Sequence[Family[ServerPartitionState]]] = (
    Family(
        "append_seconds",
        "Durations of the stages of appends, one per batch. wait: from the arrival of the oldest"
        " append until the store is given the batch; store: until it is committed; feed: until it"
        " is written to the clients that wait for it and take more.",
        Kind.HISTOGRAM,
        (Label("stage", "wait, store, feed"),),
        _of_stages,
    ),
    Family(
        "replica_standing",
        "1 for how the replica stands in the store session, by what it said within the last 15 s.",
        Kind.GAUGE,
        (REPLICA_LABEL, Label("standing", ", ".join(each.name.lower() for each in Standing))),
        lambda p: (((r.replica_id, r.standing.name.lower()), 1) for r in _replicas(p)),
        absent="of all standings but the one that it has",
    ),
    Family(
        "replica_takes_appends",
        "1 if the replica takes appends, 0 if it does not.",
        Kind.GAUGE,
        (REPLICA_LABEL,),
        lambda p: (
            ((r.replica_id,), r.takes_appends) for r in _replicas(p) if r.takes_appends is not None
        ),
        absent="nobody can say",
    ),
    Family(
        "replica_answer_age_seconds",
        "Time since the replica's last answer.",
        Kind.GAUGE,
        (REPLICA_LABEL,),
        lambda p: (
            ((r.replica_id,), r.age_seconds) for r in _replicas(p) if r.age_seconds is not None
        ),
        absent="it has not answered since the partition was opened here",
    ),
)


def told_problems(partitions: Sequence[ServerPartitionState]) -> tuple[PartitionProblem, ...]:
    """Return problems of partitions that take no appends, at most PARTITION_PROBLEMS_MAX."""
    reasons = (
        (p.partition_id, p.obstacle)
        for p in partitions
        if p.is_writable is False and p.obstacle is not None
    )
    return tuple(
        PartitionProblem(partition_id, reason[:PARTITION_PROBLEM_CHARACTERS_MAX])
        for partition_id, reason in islice(reasons, PARTITION_PROBLEMS_MAX)
    )


def told_durations(request: DurationsRequest, seconds: StageSeconds | None) -> DurationsReport:
    """Return the answer to `request`; `seconds` None: the partition is not this server's."""
    if seconds is None:
        return DurationsReport(request.request_number, ())
    stages = (("wait", seconds.wait), ("store", seconds.store), ("feed", seconds.feed))
    return DurationsReport(
        request.request_number, tuple(_told_stage(name, durations) for name, durations in stages)
    )


def _told_stage(name: str, durations: Durations) -> StageDurations:
    bounds, totals = zip(*durations.cumulative(), strict=True)
    ends = [*(round(bound * 1_000_000) for bound in bounds), NEVER]
    counts = [after - before for before, after in pairwise((0, *totals, durations.count))]
    return StageDurations(
        name,
        round(durations.sum_seconds * 1_000_000),
        tuple(DurationBucket(*each) for each in zip(ends, counts, strict=True)),
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
