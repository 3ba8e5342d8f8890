"""The identity of a cluster: its parameters, those of its store, and two identifier counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from waltz.cluster.byte_layout import JAVA_TEXT, VERSION_1, Constant, Parts
from waltz.errors import RemoteProtocolError
from waltz.limits import PARTITIONS_MAX
from waltz.wire.fields import INT, UUID_16

CLUSTER_MAGIC: Final = -1259834553
"""Java's hash of "Cluster Manager"."""


@dataclass(frozen=True, slots=True)
class ClusterParams:
    """The data of a cluster's root node."""

    name: str
    partition_count: int

    LAYOUT = Parts(
        ("magic", Constant(INT, CLUSTER_MAGIC)),
        ("version", VERSION_1),
        ("name", JAVA_TEXT),
        ("partition count", INT),
    )

    def encode(self) -> bytes:
        return self.LAYOUT.encode(self.name, self.partition_count)

    @classmethod
    def decode(cls, data: bytes) -> ClusterParams:
        """Raises RemoteProtocolError."""
        name, partition_count = cls.LAYOUT.decode(data)
        return cls(name, _checked_partition_count(partition_count))


@dataclass(frozen=True, slots=True)
class StoreParams:
    """Values on which all storage nodes and servers of a cluster must agree."""

    cluster_key: UUID
    partition_count: int

    LAYOUT = Parts(("version", VERSION_1), ("cluster key", UUID_16), ("partition count", INT))

    def encode(self) -> bytes:
        return self.LAYOUT.encode(self.cluster_key, self.partition_count)

    @classmethod
    def decode(cls, data: bytes) -> StoreParams:
        """Raises RemoteProtocolError."""
        cluster_key, partition_count = cls.LAYOUT.decode(data)
        return cls(cluster_key, _checked_partition_count(partition_count))


COUNTER_LAYOUT: Final = Parts(("last identifier given", INT))


def encode_counter(value: int) -> bytes:
    return COUNTER_LAYOUT.encode(value)


def decode_counter(data: bytes) -> int:
    """Return the counter in `data`. Raises RemoteProtocolError."""
    (value,) = COUNTER_LAYOUT.decode(data)
    return int(value)


def _checked_partition_count(count: int) -> int:
    if not 0 < count <= PARTITIONS_MAX:
        raise RemoteProtocolError(
            f"the store parameters have {count} partitions; expected 1 to {PARTITIONS_MAX}"
        )
    return count
