"""The state of a node and its partitions: the one source of metrics, status and health.

Owns the list of figures, their names and units, and what counts as unhealthy. Pure: a state is made
from what the event loop can see at once, without waiting for a disk. The admin port's JSON and the
text for Prometheus (`cli/exposition.py`) are both made from these lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from waltz.access.policy_standing import PolicyStanding, denied_requests, policy_metrics
from waltz.audit.audit_metrics import AuditStanding, audit_metrics
from waltz.errors import CorruptionError
from waltz.figures import Durations, Family, Kind, Metric, counter, gauge
from waltz.storage.directory.control_struct import ASSIGNED, PartitionInfo
from waltz.storage.directory.space import SpaceGuard, SpaceState
from waltz.storage.log.damage import DamagedRange, damage_text
from waltz.storage.partition_replica import ReplicaCounters, StoragePartition
from waltz.storage.scrubber import ScrubCounters
from waltz.types import NO_SESSION, NOTHING, PartitionId, SessionId, TransactionId

DISK_CALL_SECONDS_MAX: Final = 10.0
"""A disk call that takes longer makes its partition unhealthy: by then its servers have given the
node up (STORAGE_REQUEST_SECONDS_MAX)."""


class NodeStage(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedPartitionState:
    """One assigned partition. `damage` is the reason for which it refuses all service, if it does;
    `call_seconds` is the age of its disk call under way; `failure` is the bug that has ended
    it."""

    partition_id: PartitionId
    is_readable: bool
    is_writable: bool
    """Whether an administrator lets servers write."""
    is_writer_open: bool
    damage: str | None
    damaged_ranges: tuple[DamagedRange, ...]
    session_id: SessionId
    session_fence: SessionId
    low_water_mark: TransactionId
    local_low_water_mark: TransactionId
    next_transaction_id: TransactionId
    segments: int
    counters: ReplicaCounters
    drain_seconds: Durations
    scrub_position: TransactionId
    """The record that the scrubber reads next; `NOTHING` outside of a pass."""
    queue_requests: int
    queue_bytes: int
    call_seconds: float
    has_info: bool = True
    """Whether the control file can be trusted about sessions, marks and access; else they are
    unknown."""
    failure: str | None = None
    loss: str | None = None
    """The records that were lost, for which the replica does not vote yet."""

    @property
    def is_usable(self) -> bool:
        """Whether servers may read and write: the status that the admin port reports."""
        has_damage = self.damage is not None or self.damaged_ranges or self.failure is not None
        return not has_damage and self.is_readable and self.is_writable

    def problems(self) -> list[str]:
        """Problems of this partition alone that an operator should know of."""
        found = []
        if self.failure is not None:
            found.append(
                f"has failed, by a bug, and serves nobody until the node is started again:"
                f" {self.failure}"
            )
        if self.damage is not None:
            found.append(f"refuses all service: {self.damage}")
        elif not self.is_writer_open:
            found.append("takes no writes since one failed")
        if self.damaged_ranges:
            found.append(f"{damage_text(self.damaged_ranges)} damaged, not repaired yet")
        if self.loss is not None:
            found.append(f"{self.loss}: it does not vote until a session has filled it up")
        if self.has_info and not (self.is_readable and self.is_writable):
            closed = [
                name
                for name, is_open in (("reads", self.is_readable), ("writes", self.is_writable))
                if not is_open
            ]
            found.append(f"an administrator has closed it to {' and '.join(closed)} of servers")
        if self.call_seconds > DISK_CALL_SECONDS_MAX:
            found.append(f"a disk call has not returned for {self.call_seconds:.0f} s")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    stage: NodeStage
    directory: str
    directory_id: UUID | None
    """None before the directory is open."""
    cluster_key: str
    partition_count: int
    """The partitions of the whole cluster."""
    partitions: tuple[AssignedPartitionState, ...]
    """Assigned partitions, by ID."""
    space: SpaceGuard | None
    """None before the first look at the disk."""
    space_look_seconds: float = 0.0
    """The age of the look at the free space that is under way; 0 if none is."""
    scrub: ScrubCounters
    """Zeros where records are not scrubbed."""
    policy: PolicyStanding | None = None
    """None: peers may do everything."""
    audit: AuditStanding | None = None
    """None: there is no audit log."""

    def problems(self) -> list[str]:
        """Problems of the node as a whole."""
        found = [] if self.stage is NodeStage.SERVING else [f"the node is {self.stage}"]
        if self.space is not None and self.space.state is SpaceState.SHORT:
            found.append(self.space.refusal())
        if self.space is not None and self.space.trouble is not None:
            found.append(
                f"the free space of {self.directory} cannot be read, so nobody knows when appends"
                f" have to be refused: {self.space.trouble}"
            )
        if self.space_look_seconds > DISK_CALL_SECONDS_MAX:
            found.append(
                f"the disk of {self.directory} has not told its free space for"
                f" {self.space_look_seconds:.0f} s"
            )
        return found

    @property
    def is_healthy(self) -> bool:
        return not self.problems() and not any(p.problems() for p in self.partitions)


def partition_state(
    partition: StoragePartition,
    *,
    next_transaction_id: TransactionId,
    drain_seconds: Durations,
    scrub_position: TransactionId,
    queue_requests: int,
    queue_bytes: int,
    call_seconds: float,
    failure: str | None = None,
) -> AssignedPartitionState | None:
    """Return the state of a partition; None: it is not assigned."""
    damage = partition.damage
    info: PartitionInfo | None = None
    try:
        info = partition.promises.info
    except CorruptionError as error:
        # It may well be assigned: it is shown, so that the damage is seen.
        damage = damage or error
    if info is not None and not info.is_assigned:
        return None
    return AssignedPartitionState(
        partition_id=partition.partition_id,
        is_readable=info is not None and info.is_readable,
        is_writable=info is not None and info.is_writable,
        is_writer_open=failure is None and partition.writer.is_open,
        damage=None if damage is None else str(damage),
        damaged_ranges=tuple(partition.log.damage),
        session_id=NO_SESSION if info is None else info.session_id,
        session_fence=NO_SESSION if info is None else partition.promises.fence,
        low_water_mark=NOTHING if info is None else info.low_water_mark,
        local_low_water_mark=NOTHING if info is None else info.local_low_water_mark,
        next_transaction_id=next_transaction_id,
        segments=len(partition.log.segments.firsts),
        counters=partition.counters,
        drain_seconds=drain_seconds,
        scrub_position=scrub_position,
        queue_requests=queue_requests,
        queue_bytes=queue_bytes,
        call_seconds=call_seconds,
        has_info=info is not None,
        failure=failure,
        loss=partition.loss,
    )


UNTRUSTED: Final = "the control file is damaged where it says so"
NO_LOOK_YET: Final = "the node has not looked at its disk yet"
CANNOT_LOOK: Final = f"{NO_LOOK_YET}, or cannot read its free space now"

NODE_METRICS: Final[Sequence[Metric[NodeState]]] = (
    gauge("healthy", "What /health says: 1 for 200, 0 for 503.", lambda n: n.is_healthy),
    gauge("partitions", "Partitions assigned to this node.", lambda n: len(n.partitions)),
    gauge("cluster_partitions", "Partitions of the cluster.", lambda n: n.partition_count),
    gauge(
        "disk_free_bytes",
        "Bytes free on the directory's file system, less those that are being written.",
        lambda n: None if n.space is None or n.space.trouble else n.space.free_bytes,
        absent=CANNOT_LOOK,
    ),
    gauge(
        "disk_bytes",
        "Size of the directory's file system.",
        lambda n: None if n.space is None or n.space.trouble else n.space.total_bytes,
        absent=CANNOT_LOOK,
    ),
    gauge(
        "disk_free_minimum_bytes",
        "storage.diskFreeMin: with less free appends are refused.",
        lambda n: None if n.space is None else n.space.minimum_bytes,
        absent=NO_LOOK_YET,
    ),
    gauge(
        "appends_refused",
        "1 while appends are refused for want of space.",
        lambda n: None if n.space is None else n.space.state is SpaceState.SHORT,
        absent=NO_LOOK_YET,
    ),
    counter("scrubbed_bytes", "Bytes read again to find damage.", lambda n: n.scrub.bytes_read),
    counter("scrubbed_records", "Records checked by the scrubber.", lambda n: n.scrub.records),
    counter(
        "scrub_damaged_ranges",
        "Damaged records found by the scrubber.",
        lambda n: n.scrub.ranges_damaged,
    ),
    counter(
        "scrub_healed_indexes",
        "Wrong index entries that the scrubber repaired.",
        lambda n: n.scrub.indexes_healed,
    ),
    counter(
        "scrub_passes",
        "Completed passes of the scrubber over all partitions.",
        lambda n: n.scrub.passes,
    ),
    gauge(
        "scrub_last_pass_seconds",
        "Duration of the scrubber's last pass.",
        lambda n: n.scrub.last_pass_seconds,
        absent="no pass has ended yet",
    ),
    *policy_metrics(lambda n: n.policy),
    *audit_metrics(lambda n: n.audit),
)

NODE_FAMILIES: Final[Sequence[Family[NodeState]]] = (denied_requests(lambda n: n.policy),)

PARTITION_METRICS: Final[Sequence[Metric[AssignedPartitionState]]] = (
    gauge("usable", "1 if servers are served in full.", lambda p: p.is_usable),
    gauge(
        "readable",
        "0 if an administrator closed it to reads.",
        lambda p: p.is_readable if p.has_info else None,
        absent=UNTRUSTED,
    ),
    gauge(
        "writable",
        "0 if an administrator closed it to writes.",
        lambda p: p.is_writable if p.has_info else None,
        absent=UNTRUSTED,
    ),
    gauge("writer_open", "0 after a failed write or sync.", lambda p: p.is_writer_open),
    gauge("failed", "1 if a bug has ended it.", lambda p: p.failure is not None),
    gauge("refusing", "1 if damage makes it refuse all service.", lambda p: p.damage is not None),
    gauge(
        "damaged_records",
        "Records that cannot be trusted and await repair.",
        lambda p: sum(found.next_transaction_id - found.first for found in p.damaged_ranges),
    ),
    gauge("damaged_ranges", "Ranges of such records.", lambda p: len(p.damaged_ranges)),
    gauge(
        "session_id",
        "Highest store session begun on this replica; -1 if none.",
        lambda p: p.session_id if p.has_info else None,
        absent=UNTRUSTED,
    ),
    gauge(
        "session_fence",
        "Every session below it is refused for ever; -1 if none.",
        lambda p: p.session_fence if p.has_info else None,
        absent=UNTRUSTED,
    ),
    gauge(
        "durable_transaction_id",
        "Last record that is written and synced; -1 if none.",
        lambda p: p.next_transaction_id - 1,
    ),
    gauge(
        "low_water_mark",
        "The cluster's high-water mark when the session began.",
        lambda p: p.low_water_mark if p.has_info else None,
        absent=UNTRUSTED,
    ),
    gauge(
        "local_low_water_mark",
        "What this replica held when the session began.",
        lambda p: p.local_low_water_mark if p.has_info else None,
        absent=UNTRUSTED,
    ),
    gauge("segments", "Segments on disk.", lambda p: p.segments),
    gauge(
        "scrub_position",
        "Record that the scrubber reads next; -1 outside of a pass.",
        lambda p: p.scrub_position,
    ),
    gauge(
        "queue_requests", "Requests that wait in the partition's queue.", lambda p: p.queue_requests
    ),
    gauge(
        "queue_bytes",
        "Records of appends that are not answered yet.",
        lambda p: p.queue_bytes,
    ),
    gauge(
        "disk_call_seconds",
        "Time since the disk call under way began; 0 if there is none.",
        lambda p: p.call_seconds,
    ),
    counter("requests", "Answered requests of servers.", lambda p: p.counters.requests),
    counter(
        "refusals", "Requests of servers answered with a failure.", lambda p: p.counters.refusals
    ),
    counter("appended_records", "Records written.", lambda p: p.counters.records_appended),
    counter("appended_bytes", "Bytes of records written.", lambda p: p.counters.bytes_appended),
    counter("synced_drains", "Groups of requests synced.", lambda p: p.counters.drains_synced),
)

DRAIN_SECONDS: Final = "drain_seconds"

PARTITION_FAMILIES: Final[Sequence[Family[AssignedPartitionState]]] = (
    Family(
        DRAIN_SECONDS,
        "Duration of the writes and the sync of a group of requests.",
        Kind.HISTOGRAM,
        (),
        lambda p: [((), p.drain_seconds)],
    ),
)


def metrics_json(state: NodeState) -> dict[str, Any]:
    """Return the figures of each partition, its problems, and the counters since the node
    started."""
    return {
        "stage": state.stage,
        "directory_id": None if state.directory_id is None else str(state.directory_id),
        "problems": state.problems(),
        "gauges": original_gauges(state),
        "node": {metric.name: metric.value(state) for metric in NODE_METRICS},
        "partitions": {
            str(partition.partition_id): {
                metric.name: metric.value(partition) for metric in PARTITION_METRICS
            }
            | {
                DRAIN_SECONDS: {
                    "count": partition.drain_seconds.count,
                    "sum": partition.drain_seconds.sum_seconds,
                },
                "problems": partition.problems(),
            }
            for partition in state.partitions
        },
    }


def original_gauges(state: NodeState) -> dict[str, dict[str, Any]]:
    """Return the figures that the Java original's tools read, under its names: `StorageCli
    list`."""
    found: dict[str, Any] = {
        "waltz-storage-num-partitions": len(state.partitions),
        "waltz-storage-partition-ids": [each.partition_id for each in state.partitions],
    }
    for each in state.partitions:
        info = PartitionInfo(flags=ASSIGNED).with_access(
            readable=each.is_readable, writable=each.is_writable
        )
        found |= {
            f"partition-{each.partition_id}.{name}": value
            for name, value in (
                ("session-id", each.session_id),
                ("low-water-mark", each.low_water_mark),
                ("local-low-water-mark", each.local_low_water_mark),
                ("flags", info.flags),
            )
        }
    return {f"waltz-storage.{name}": {"value": value} for name, value in found.items()}


def health_json(state: NodeState) -> dict[str, Any]:
    """Return the problems of the node and of each partition; empty lists where there are none."""
    return {
        "healthy": state.is_healthy,
        "stage": state.stage,
        "problems": state.problems(),
        "partitions": {
            str(partition.partition_id): {
                "usable": partition.is_usable,
                "problems": partition.problems(),
            }
            for partition in state.partitions
        },
    }
