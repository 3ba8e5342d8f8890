"""The partitions, the group and the admin port of each storage node.

A node is named by its connect string, `host:port` of its data port. Entries keep the order in which
they were read or given: the bytes are those of a map, and two writers need not agree on its order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from waltz.cluster.byte_layout import JAVA_TEXT, VERSION_1, Parts, entries
from waltz.errors import RemoteProtocolError
from waltz.types import PartitionId, ReplicaId
from waltz.wire.fields import INT, PARTITION_IDS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicaAssignments:
    """The partitions of each storage node, sorted. Source: Waltz Storage, "Replica Assignments"."""

    partitions: Mapping[ReplicaId, tuple[PartitionId, ...]]

    LAYOUT = Parts(
        ("version", VERSION_1),
        ("storage nodes", entries(("connect string", JAVA_TEXT), ("partition IDs", PARTITION_IDS))),
    )

    def replicas(self, partition_id: PartitionId) -> tuple[ReplicaId, ...]:
        """The storage nodes that hold a copy of the partition, sorted."""
        return tuple(sorted(node for node, held in self.partitions.items() if partition_id in held))

    def encode(self) -> bytes:
        return self.LAYOUT.encode(self.partitions.items())

    @classmethod
    def decode(cls, data: bytes) -> ReplicaAssignments:
        """Raises RemoteProtocolError."""
        (found,) = cls.LAYOUT.decode(data)
        return cls(_unique((node, tuple(map(PartitionId, held))) for node, held in found))


@dataclass(frozen=True, slots=True)
class GroupDescriptor:
    """The group of each storage node. A group is meant to hold one copy of every partition.

    Source: Waltz Storage, "Group Descriptor".
    """

    groups: Mapping[ReplicaId, int]

    LAYOUT = Parts(
        ("version", VERSION_1),
        ("storage nodes", entries(("connect string", JAVA_TEXT), ("group ID", INT))),
    )

    def encode(self) -> bytes:
        return self.LAYOUT.encode(self.groups.items())

    @classmethod
    def decode(cls, data: bytes) -> GroupDescriptor:
        """Raises RemoteProtocolError."""
        (found,) = cls.LAYOUT.decode(data)
        return cls(_unique(found))


@dataclass(frozen=True, slots=True)
class ConnectionMetadata:
    """The admin port of each storage node, on the same host as its data port."""

    admin_ports: Mapping[ReplicaId, int]

    LAYOUT = Parts(
        ("version", VERSION_1),
        ("storage nodes", entries(("connect string", JAVA_TEXT), ("admin port", INT))),
    )

    def encode(self) -> bytes:
        return self.LAYOUT.encode(self.admin_ports.items())

    @classmethod
    def decode(cls, data: bytes) -> ConnectionMetadata:
        """Raises RemoteProtocolError."""
        (found,) = cls.LAYOUT.decode(data)
        return cls(_unique(found))


def _unique(pairs: Iterable[tuple[str, T]]) -> dict[ReplicaId, T]:
    found: dict[ReplicaId, T] = {}
    for node, value in pairs:
        if node in found:
            raise RemoteProtocolError(f"storage node {node} is named twice in metadata")
        found[ReplicaId(node)] = value
    return found
