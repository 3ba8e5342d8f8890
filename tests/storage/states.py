"""States of nodes and partitions, for the tests of what is told of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.storage.support import DIRECTORY_ID, KEY, t
from waltz.figures import Durations
from waltz.storage.partition_replica import ReplicaCounters, StoragePartition
from waltz.storage.scrubber import ScrubCounters
from waltz.storage.storage_metrics import (
    AssignedPartitionState,
    NodeStage,
    NodeState,
    partition_state,
)
from waltz.types import NOTHING, PartitionId, SessionId


def healthy(number: int = 0, **changes: Any) -> AssignedPartitionState:
    values: dict[str, Any] = {
        "partition_id": PartitionId(number),
        "is_readable": True,
        "is_writable": True,
        "damaged_ranges": (),
        "is_writer_open": True,
        "damage": None,
        "session_id": SessionId(3),
        "session_fence": SessionId(4),
        "low_water_mark": t(7),
        "local_low_water_mark": t(6),
        "next_transaction_id": t(10),
        "segments": 1,
        "counters": ReplicaCounters(),
        "drain_seconds": Durations(),
        "scrub_position": NOTHING,
        "queue_requests": 0,
        "queue_bytes": 0,
        "call_seconds": 0.0,
    }
    return AssignedPartitionState(**values | changes)


def state_of(partition: StoragePartition) -> AssignedPartitionState | None:
    return partition_state(
        partition,
        next_transaction_id=partition.log.next_transaction_id,
        drain_seconds=Durations(),
        scrub_position=NOTHING,
        queue_requests=0,
        queue_bytes=0,
        call_seconds=0.0,
    )


def node_of(*partitions: AssignedPartitionState, **changes: Any) -> NodeState:
    values: dict[str, Any] = {
        "stage": NodeStage.SERVING,
        "directory": "/storage",
        "directory_id": DIRECTORY_ID,
        "cluster_key": str(KEY),
        "partition_count": 5,
        "partitions": partitions,
        "space": None,
        "scrub": ScrubCounters(),
    }
    return NodeState(**values | changes)


def node_state(partitions: Iterable[StoragePartition]) -> NodeState:
    states = [state_of(partition) for partition in partitions]
    return node_of(*(state for state in states if state is not None))
