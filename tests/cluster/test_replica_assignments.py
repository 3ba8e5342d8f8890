"""Which storage node holds what, in the original's bytes (CM-16, CM-17, CM-18)."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from tests.cluster.golden import VALUES, golden_tree
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.errors import RemoteProtocolError
from waltz.types import PartitionId, ReplicaId

Value: TypeAlias = ReplicaAssignments | GroupDescriptor | ConnectionMetadata

ONE, TWO = ReplicaId("h1:6000"), ReplicaId("h2:6000")
ALL_FOUR = tuple(map(PartitionId, range(4)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Group", GroupDescriptor({TWO: 1, ONE: 0})),
        ("Group empty", GroupDescriptor({})),
        ("Conn", ConnectionMetadata({ONE: 6100})),
        ("Replica", ReplicaAssignments({ONE: ALL_FOUR})),
    ],
)
def test_the_bytes_are_those_of_the_original(name: str, value: Value) -> None:
    assert value.encode() == VALUES[name]
    assert type(value).decode(VALUES[name]) == value
    for length in range(len(VALUES[name])):
        with pytest.raises(RemoteProtocolError):
            type(value).decode(VALUES[name][:length])


def test_the_original_tree_is_read_and_written_back() -> None:
    tree = golden_tree("2-storages-assigned")

    def data(name: str) -> bytes:
        return tree[f"/waltz_cluster/store/{name}"].data or b""

    assignments = ReplicaAssignments.decode(data("assignment"))
    assert assignments.partitions == dict.fromkeys(["vm:47320", "vm:47330", "vm:47310"], (0, 1))
    assert assignments.encode() == data("assignment")
    groups = GroupDescriptor.decode(data("group"))
    assert groups.groups == {"vm:47320": 2, "vm:47330": 3, "vm:47310": 1}
    assert groups.encode() == data("group")
    connections = ConnectionMetadata.decode(data("connection"))
    assert connections.admin_ports == {"vm:47320": 47321, "vm:47330": 47331, "vm:47310": 47311}
    assert connections.encode() == data("connection")


def test_replicas_of_a_partition_are_those_that_hold_it() -> None:
    assignments = ReplicaAssignments({TWO: ALL_FOUR, ONE: ALL_FOUR[:1]})
    assert assignments.replicas(PartitionId(0)) == (ONE, TWO)
    assert assignments.replicas(PartitionId(3)) == (TWO,)
    assert assignments.replicas(PartitionId(4)) == ()


def test_a_storage_node_named_twice_is_refused() -> None:
    data = VALUES["Conn"]
    with pytest.raises(RemoteProtocolError, match="twice"):
        ConnectionMetadata.decode(b"\1\0\0\0\2" + data[5:] * 2)
