"""What tools are told about a node and its partitions (SN-22 to SN-27)."""

from __future__ import annotations

import json

import pytest

from tests.storage.states import healthy, node_of, node_state
from tests.storage.support import (
    KEY,
    OTHER_KEY,
    ZERO,
    append,
    batch,
    fresh_disk,
    make_partition,
    open_control,
    open_partition,
    start_session,
    succeed,
    t,
)
from waltz.errors import CorruptionError, NotFoundError, StorageError
from waltz.record import empty_batch
from waltz.storage.administration import (
    admin_failure,
    answer_of_node,
    answer_of_partition,
    check_count,
    check_key,
    check_partition_ids,
)
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.storage_metrics import metrics_json
from waltz.types import NO_SESSION, PartitionId
from waltz.wire.admin_protocol import (
    AdminFailureResponse,
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    MetricsRequest,
    MetricsResponse,
    SessionInfo,
)
from waltz.wire.storage_protocol import OpenRequest


def used_partition() -> StoragePartition:
    partition = open_partition(fresh_disk())
    succeed(partition, append(0, 10))
    start_session(partition, 7, 99)
    return partition


def test_records_and_session_are_shown_even_while_unavailable() -> None:
    """SN-22, SN-23: no session, no availability."""
    partition = used_partition()
    partition.set_access(readable=False, writable=False)
    records = AdminRecordListRequest(5, ZERO, t(3), 4)
    assert answer_of_partition(partition, records) == AdminRecordListResponse(5, ZERO, batch(3, 4))
    beyond = AdminRecordListRequest(6, ZERO, t(10), 4)
    expected = AdminRecordListResponse(6, ZERO, empty_batch(t(0)))
    assert answer_of_partition(partition, beyond) == expected
    session = AdminLastSessionInfoRequest(7, ZERO)
    assert answer_of_partition(partition, session) == AdminLastSessionInfoResponse(
        7, ZERO, SessionInfo(partition.promises.info.session_id, t(99), t(9))
    )


def test_unassigned_and_damaged_partitions_show_nothing_wrong() -> None:
    partition = used_partition()
    partition.damage = CorruptionError("broken")
    with pytest.raises(CorruptionError, match="broken"):
        answer_of_partition(partition, AdminRecordListRequest(5, ZERO, t(3), 4))
    answer_of_partition(partition, AdminLastSessionInfoRequest(7, ZERO))
    partition.unassign(delete_files=False)
    with pytest.raises(NotFoundError, match="not assigned"):
        answer_of_partition(partition, AdminLastSessionInfoRequest(7, ZERO))


def test_status_and_metrics_tell_of_assigned_partitions_only() -> None:
    """SN-24, SN-25."""
    disk = fresh_disk()
    control = open_control(disk, partition_count=5, assigned=(0, 1, 2, 3))
    disk.damage("/storage/waltz-storage.ctl", 128 + 76 * 3 + 4, bytes(72))
    control.close()
    control = open_control(disk, partition_count=5)
    partitions = [make_partition(disk, control, number=number) for number in range(5)]
    for partition in partitions:
        partition.open()
    partitions[0].writer.write(batch(0, 3))
    partitions[1].set_access(readable=False, writable=False)
    partitions[2].damage = StorageError("gone")
    state = node_state(partitions)
    status = answer_of_node(state, AssignedPartitionStatusRequest(1))
    expected = tuple((PartitionId(number), number == 0) for number in range(4))
    assert status == AssignedPartitionStatusResponse(1, expected)
    metrics = answer_of_node(state, MetricsRequest(2))
    assert isinstance(metrics, MetricsResponse)
    assert json.loads(metrics.metrics_json) == metrics_json(state)
    assert list(metrics_json(state)["partitions"]) == ["0", "1", "2", "3"]


def test_metrics_too_long_for_an_answer_are_refused_with_the_remedy() -> None:
    state = node_of(*map(healthy, range(3000)))
    with pytest.raises(StorageError, match=r"metrics of 3000 partitions .* scrape /metrics"):
        answer_of_node(state, MetricsRequest(1))


def test_partition_ids_out_of_range_are_named_with_the_range() -> None:
    """SN-27."""
    check_partition_ids([PartitionId(0), PartitionId(3)], 4)
    for number in (-1, 4):
        with pytest.raises(NotFoundError, match=f"no partition {number}; expected 0 to 3"):
            check_partition_ids([PartitionId(0), PartitionId(number)], 4)


def test_only_members_of_the_cluster_open_a_connection() -> None:
    """SN-03, SN-19."""
    for make in (
        lambda key, count: OpenRequest(NO_SESSION, -1, PartitionId(-1), key, count),
        lambda key, count: AdminOpenRequest(-1, key, count),
    ):
        check_key(make(KEY, 4), KEY)
        with pytest.raises(StorageError, match="cluster keys differ"):
            check_key(make(OTHER_KEY, 4), KEY)
        for fewer_or_equal in (1, 3, 4):
            check_count(make(KEY, fewer_or_equal), 4)
        for count in (-1, 0, 5):
            text = f"this node's cluster has 4, the other side's {count}"
            with pytest.raises(StorageError, match=text):
                check_count(make(KEY, count), 4)


def test_failure_names_the_error() -> None:
    """SN-13."""
    answer = admin_failure(MetricsRequest(3), NotFoundError("no partition 9"))
    assert answer == AdminFailureResponse(3, "NotFoundError: no partition 9", ())
