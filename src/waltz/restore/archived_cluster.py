"""The cluster that an archive's copy of the coordinator's nodes describes.

Owns the reading of that copy. Pure. The copy is older than the archive's records, and the cluster
went on after both: every number in it is a lower bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from waltz.cluster.log_history import LogHistory, decode_histories
from waltz.cluster.partition_metadata import NEW_PARTITION, PartitionMetadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.server_assignment import NO_ASSIGNMENT, PartitionAssignment
from waltz.cluster.store_params import ClusterParams, StoreParams, decode_counter
from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.restore.points import ArchivedLog
from waltz.types import Generation, PartitionId, ReplicaId

_PATHS = ClusterPaths("/")


@dataclass(frozen=True, slots=True)
class ArchivedCluster:
    """A cluster as far as its archive knows it.

    generations  the highest generation of each partition.
    metadata     of partitions that had a store session.
    notes, consumers, preferences  the data of the nodes below these parents, by name.
    directories  the IDs of the storage directories.
    """

    name: str
    cluster_key: UUID
    partition_count: int
    client_counter: int
    server_counter: int
    generations: Mapping[PartitionId, Generation]
    metadata: Mapping[PartitionId, PartitionMetadata]
    placement: ReplicaAssignments
    groups: Mapping[ReplicaId, int]
    admin_ports: Mapping[ReplicaId, int]
    notes: Mapping[str, bytes]
    consumers: Mapping[str, bytes]
    preferences: Mapping[str, bytes]
    directories: tuple[UUID, ...]
    histories: tuple[LogHistory, ...]


def archived_cluster(archive: ArchivedLog) -> ArchivedCluster:
    """Return the archived cluster.

    Raises ConfigurationError: the archive has no copy of the coordinator's nodes, or one that
    cannot be read or is of another cluster; or it has more partitions than the copy.
    """
    nodes = {path.strip("/"): data for path, data in archive.coordinator_nodes.items()}
    try:
        found = _read(nodes)
    except RemoteProtocolError as error:
        raise ConfigurationError(
            f"the archive's copy of the coordinator's nodes cannot be read: {error}"
        ) from error
    if found.cluster_key != archive.cluster_key:
        raise ConfigurationError(
            f"the archive is of cluster {archive.cluster_key}, its copy of the coordinator's nodes"
            f" of {found.cluster_key}"
        )
    if beyond := [p for p in archive.partitions if p >= found.partition_count]:
        raise ConfigurationError(
            f"the archive has partition {max(beyond)}, its copy of the coordinator's nodes has"
            f" {found.partition_count} partitions: partitions were being added when it was made."
            " Archive again, or restore from a copy of the archive made before"
        )
    return found


def _read(nodes: Mapping[str, bytes]) -> ArchivedCluster:
    store = StoreParams.decode(_needed(nodes, _PATHS.store))
    assignment = PartitionAssignment.decode(
        nodes.get(_below(_PATHS.server_descriptors)) or NO_ASSIGNMENT.encode()
    )
    count = store.partition_count
    metadata = {}
    for partition_id in map(PartitionId, range(count)):
        data = nodes.get(_below(_PATHS.partition_metadata(partition_id)))
        if data:
            metadata[partition_id] = PartitionMetadata.decode(data, partition_id)
    generations = {
        partition_id: metadata.get(partition_id, NEW_PARTITION).generation
        for partition_id in map(PartitionId, range(count))
    }
    for held in assignment.servers.values():
        for partition_id, generation in held.items():
            known = generations.get(partition_id, generation)
            generations[partition_id] = max(known, generation)
    history = nodes.get(_below(_PATHS.history))
    return ArchivedCluster(
        ClusterParams.decode(_needed(nodes, "")).name,
        store.cluster_key,
        count,
        decode_counter(_needed(nodes, _PATHS.client_id_counter)),
        decode_counter(_needed(nodes, _PATHS.server_id_counter)),
        generations,
        metadata,
        ReplicaAssignments.decode(_needed(nodes, _PATHS.replica_assignments)),
        GroupDescriptor.decode(_needed(nodes, _PATHS.group_descriptor)).groups,
        ConnectionMetadata.decode(_needed(nodes, _PATHS.connection_metadata)).admin_ports,
        _children(nodes, _PATHS.notes),
        _children(nodes, _PATHS.consumers),
        _children(nodes, _PATHS.server_preferences),
        _directories(_children(nodes, _PATHS.storage_directories)),
        decode_histories(history) if history else (),
    )


def _below(path: str) -> str:
    return path.strip("/")


def _needed(nodes: Mapping[str, bytes], path: str) -> bytes:
    data = nodes.get(_below(path))
    if not data:
        raise RemoteProtocolError(f"it has no data of node /{_below(path)}")
    return data


def _children(nodes: Mapping[str, bytes], parent: str) -> dict[str, bytes]:
    start = _below(parent) + "/"
    return {
        path.removeprefix(start): data for path, data in nodes.items() if path.startswith(start)
    }


def _directories(nodes: Mapping[str, bytes]) -> tuple[UUID, ...]:
    found = []
    for name, data in sorted(nodes.items()):
        try:
            found.append(UUID(data.decode("ascii")))
        except ValueError:
            raise RemoteProtocolError(
                f"the node of the storage directory of {name} is {data!r:.80}; expected a UUID"
            ) from None
    return tuple(found)
