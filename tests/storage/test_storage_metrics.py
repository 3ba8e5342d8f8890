"""What a node is like at a moment: figures, status, health (MT-20 to MT-24, MT-48, MT-50)."""

from __future__ import annotations

import json

import pytest

from tests.storage.states import healthy, node_of, state_of
from tests.storage.support import (
    DIRECTORY_ID,
    append,
    ask,
    batch,
    fresh_disk,
    make_partition,
    open_control,
    open_partition,
    start_session,
    succeed,
    t,
)
from waltz.errors import StorageError
from waltz.host import Space
from waltz.sim.simulated_disk import DiskOperation, fail_nth
from waltz.storage.directory.space import FREE_MINIMUM, SpaceGuard
from waltz.storage.log.damage import DamagedRange
from waltz.storage.storage_metrics import (
    DISK_CALL_SECONDS_MAX,
    NODE_METRICS,
    PARTITION_METRICS,
    NodeStage,
    health_json,
    metrics_json,
)
from waltz.types import NO_SESSION


def test_a_partition_in_use_is_told_whole() -> None:
    partition = open_partition(fresh_disk())
    succeed(partition, append(0, 5))
    start_session(partition, 0, 4)
    ask(partition, append(9, 1))
    state = state_of(partition)
    assert state is not None
    assert state.is_usable
    assert state.problems() == []
    figures = {metric.name: metric.value(state) for metric in PARTITION_METRICS}
    assert figures == {
        "usable": 1,
        "readable": 1,
        "writable": 1,
        "writer_open": 1,
        "failed": 0,
        "refusing": 0,
        "damaged_records": 0,
        "damaged_ranges": 0,
        "session_id": 0,
        "session_fence": 0,
        "durable_transaction_id": 4,
        "low_water_mark": 4,
        "local_low_water_mark": 4,
        "segments": 1,
        "scrub_position": -1,
        "queue_requests": 0,
        "queue_bytes": 0,
        "disk_call_seconds": 0,
        "requests": 3,
        "refusals": 1,
        "appended_records": 5,
        "appended_bytes": len(batch(0, 5).block),
        "synced_drains": 1,
    }


def test_a_partition_that_is_not_assigned_is_not_told() -> None:
    disk = fresh_disk()
    partition = make_partition(disk, open_control(disk), number=1)
    partition.open()
    assert state_of(partition) is None


def test_a_partition_whose_control_entry_is_damaged_is_told_with_the_reason() -> None:
    """It may be assigned, so it must be seen."""
    disk = fresh_disk()
    open_control(disk).close()
    disk.damage("/storage/waltz-storage.ctl", 128 + 4, bytes(72))
    partition = make_partition(disk, open_control(disk))
    partition.open()
    state = state_of(partition)
    assert state is not None
    assert (state.is_usable, state.is_readable, state.session_id) == (False, False, NO_SESSION)
    assert "both structs fail" in state.problems()[0]


def test_what_a_damaged_control_entry_would_say_is_unknown() -> None:
    state = healthy(has_info=False, is_readable=False, is_writable=False, damage="it is cut")
    assert state.problems() == ["refuses all service: it is cut"]
    figures = {metric.name: metric.value(state) for metric in PARTITION_METRICS}
    unknown = {name for name, value in figures.items() if value is None}
    assert unknown == {
        *("readable", "writable", "session_id", "session_fence"),
        *("low_water_mark", "local_low_water_mark"),
    }
    assert not figures["usable"]
    node = node_of(state)
    first = {metric.name: metric.value(node) for metric in NODE_METRICS}
    assert first["appends_refused"] is None, "nobody has looked at the disk"
    assert first["scrub_last_pass_seconds"] is None


def test_a_failed_write_is_a_problem_and_no_damage() -> None:
    """MT-48."""
    disk = fresh_disk()
    partition = open_partition(disk)
    disk.fault = fail_nth(DiskOperation.SYNC, 1)
    ask(partition, append(0, 1))
    state = state_of(partition)
    assert state is not None
    assert state.problems() == ["takes no writes since one failed"]
    assert state.is_usable


def test_a_closed_partition_is_a_problem() -> None:
    partition = open_partition(fresh_disk())
    partition.set_access(readable=False, writable=False)
    state = state_of(partition)
    assert state is not None
    assert not state.is_usable
    closed = ["an administrator has closed it to reads and writes of servers"]
    assert state.problems() == closed
    only_reads = healthy(is_writable=False)
    assert only_reads.problems() == ["an administrator has closed it to writes of servers"]
    assert not only_reads.is_usable


def test_damage_is_told_once() -> None:
    partition = open_partition(fresh_disk())
    partition.damage = StorageError("the directory is gone")
    state = state_of(partition)
    assert state is not None
    assert state.problems() == ["refuses all service: the directory is gone"]


def test_damaged_records_are_counted_and_named() -> None:
    ranges = (DamagedRange(t(3), t(5)), DamagedRange(t(9), t(10)))
    state = healthy(damaged_ranges=ranges)
    figures = {metric.name: metric.value(state) for metric in PARTITION_METRICS}
    assert (figures["damaged_records"], figures["damaged_ranges"]) == (3, 2)
    assert state.problems() == ["records 3 to 4, record 9 damaged, not repaired yet"]


def test_want_of_space_is_the_node_s_problem() -> None:
    """SN-28, MT-48."""
    space = SpaceGuard("/storage", FREE_MINIMUM, Space(1 << 20, 1 << 40))
    node = node_of(healthy(), space=space)
    assert "no space for appends" in node.problems()[0]
    figures = {metric.name: metric.value(node) for metric in NODE_METRICS}
    assert figures["disk_free_bytes"] == 1 << 20
    assert figures["disk_bytes"] == 1 << 40
    assert figures["appends_refused"]
    assert not figures["healthy"]


def test_a_disk_call_that_does_not_return_is_a_problem() -> None:
    assert healthy(call_seconds=DISK_CALL_SECONDS_MAX).problems() == []
    stuck = healthy(call_seconds=DISK_CALL_SECONDS_MAX + 2).problems()
    assert stuck == ["a disk call has not returned for 12 s"]


def test_one_unwell_partition_makes_the_node_unwell() -> None:
    assert node_of(healthy(0), healthy(1)).is_healthy
    assert not node_of(healthy(0), healthy(1, is_readable=False)).is_healthy
    assert node_of().is_healthy


@pytest.mark.parametrize("stage", [NodeStage.STARTING, NodeStage.STOPPING])
def test_a_node_is_well_only_while_it_serves(stage: NodeStage) -> None:
    """MT-50: alive, and not ready."""
    node = node_of(healthy(), stage=stage)
    assert not node.is_healthy
    assert health_json(node)["problems"] == [f"the node is {stage}"]


def test_health_names_each_partition_and_its_problems() -> None:
    node = node_of(healthy(0), healthy(3, damage="gone"))
    assert health_json(node) == {
        "healthy": False,
        "stage": "serving",
        "problems": [],
        "partitions": {
            "0": {"usable": True, "problems": []},
            "3": {"usable": False, "problems": ["refuses all service: gone"]},
        },
    }


def test_the_json_has_every_figure_of_the_lists() -> None:
    """SN-24, CX-03."""
    shown = json.loads(json.dumps(metrics_json(node_of(healthy(2)))))
    assert shown["directory_id"] == str(DIRECTORY_ID)
    assert metrics_json(node_of(directory_id=None))["directory_id"] is None
    assert metrics_json(node_of(stage=NodeStage.STARTING))["problems"] == ["the node is starting"]
    assert list(shown["node"]) == [metric.name for metric in NODE_METRICS]
    assert list(shown["partitions"]["2"]) == [
        *(metric.name for metric in PARTITION_METRICS),
        "drain_seconds",
        "problems",
    ]
    assert shown["partitions"]["2"]["drain_seconds"] == {"count": 0, "sum": 0.0}


def test_no_figure_is_there_twice() -> None:
    names = [*(m.name for m in NODE_METRICS), *(m.name for m in PARTITION_METRICS)]
    assert len(set(names)) == len(names)


def test_tools_of_the_original_find_their_names() -> None:
    """`StorageCli list` reads these, and nothing else."""
    shut = healthy(4, is_readable=False, is_writable=False)
    gauges = json.loads(json.dumps(metrics_json(node_of(healthy(1), shut))))["gauges"]
    assert gauges == {
        f"waltz-storage.{name}": {"value": value}
        for name, value in {
            "waltz-storage-num-partitions": 2,
            "waltz-storage-partition-ids": [1, 4],
            "partition-1.session-id": 3,
            "partition-1.low-water-mark": 7,
            "partition-1.local-low-water-mark": 6,
            "partition-1.flags": 5,
            "partition-4.session-id": 3,
            "partition-4.low-water-mark": 7,
            "partition-4.local-low-water-mark": 6,
            "partition-4.flags": 4,
        }.items()
    }
