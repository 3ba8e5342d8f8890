"""Requests of tools to a node: availability, assignment, records, session, metrics, status.

Owns the meaning of the admin port's requests. Knows nothing of connections; there is no session
here, so nothing is fenced. Source: Waltz Storage, "Administration".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from uuid import UUID

from waltz.errors import NotFoundError, StorageError
from waltz.limits import RECORD_LIST_BYTES_MAX, RECORD_LIST_RECORDS_MAX, TEXT_BYTES_MAX
from waltz.storage.drain import error_text
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.storage_metrics import NodeState, metrics_json
from waltz.types import PartitionId
from waltz.wire.admin_protocol import (
    AdminFailureResponse,
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminMessage,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    MetricsRequest,
    MetricsResponse,
    PartitionCountRequest,
    PartitionCountResponse,
)
from waltz.wire.storage_protocol import OpenRequest

PartitionRead = AdminRecordListRequest | AdminLastSessionInfoRequest
NodeRead = MetricsRequest | AssignedPartitionStatusRequest | PartitionCountRequest


def admin_failure(request: AdminMessage, error: BaseException) -> AdminFailureResponse:
    return AdminFailureResponse(request.sequence_number, error_text(error), ())


def check_partition_ids(partition_ids: Iterable[PartitionId], partition_count: int) -> None:
    """Raises NotFoundError, naming the valid range: there is no such partition."""
    for partition_id in partition_ids:
        if not 0 <= partition_id < partition_count:
            raise NotFoundError(f"no partition {partition_id}; expected 0 to {partition_count - 1}")


def answer_of_partition(partition: StoragePartition, request: PartitionRead) -> AdminMessage:
    """Return what the partition stores, whether it is available or not and whatever its session is.

    Raises NotFoundError, StorageError, OSError.
    """
    partition.promises.check_assigned()
    if isinstance(request, AdminLastSessionInfoRequest):
        return AdminLastSessionInfoResponse(
            request.sequence_number, request.partition_id, partition.promises.session_info
        )
    partition.check_healthy()
    records = partition.log.records.read(
        request.first_transaction_id,
        count_max=min(request.count_max, RECORD_LIST_RECORDS_MAX),
        bytes_max=RECORD_LIST_BYTES_MAX,
    )
    return AdminRecordListResponse(request.sequence_number, request.partition_id, records)


def answer_of_node(state: NodeState, request: NodeRead) -> AdminMessage:
    """Return what the node says of itself. Raises StorageError: the answer would be too long."""
    if isinstance(request, AssignedPartitionStatusRequest):
        statuses = tuple((p.partition_id, p.is_usable) for p in state.partitions)
        return AssignedPartitionStatusResponse(request.sequence_number, statuses)
    if isinstance(request, PartitionCountRequest):
        return PartitionCountResponse(request.sequence_number, state.partition_count)
    metrics = json.dumps(metrics_json(state), separators=(",", ":"))
    if len(metrics) > TEXT_BYTES_MAX:
        raise StorageError(
            f"the metrics of {len(state.partitions)} partitions take {len(metrics)} bytes;"
            f" expected at most {TEXT_BYTES_MAX}: scrape /metrics of storage.jetty.port instead"
        )
    return MetricsResponse(request.sequence_number, metrics)


def check_key(request: OpenRequest | AdminOpenRequest, cluster_key: UUID) -> None:
    """Raises StorageError: the peer that opens the connection belongs to another cluster."""
    if request.cluster_key != cluster_key:
        raise StorageError(
            f"cluster keys differ: this node's is {cluster_key}, the other side's"
            f" {request.cluster_key}"
        )


def check_count(request: OpenRequest | AdminOpenRequest, count: int) -> None:
    """Raises StorageError: the peer has more partitions than this node, which has `count`, or none.

    Fewer are accepted: that peer has not noticed yet that partitions were added, and asks for none
    of these."""
    if not 0 < request.partition_count <= count:
        raise StorageError(
            f"partition counts differ: this node's cluster has {count}, the other side's"
            f" {request.partition_count}"
        )
