"""Changes which storage nodes a running cluster has and what they hold.

Owns in which order the nodes of the coordinator are written, so that a change that is cut short
can be made again. What a change is, and when it is refused, is `storage_placement`'s business.
Servers follow the replica assignments and open new store sessions by themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import NoNodeError
from waltz.host import Coordinator, Node
from waltz.types import ReplicaId


async def read_placement(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> StoragePlacement:
    """Raises NoNodeError: there is no cluster. CoordinatorLostError."""
    return (await _read(coordinator, root))[0]


async def change_placement(
    coordinator: Coordinator,
    change: Callable[[StoragePlacement], StoragePlacement],
    *,
    root: str = DEFAULT_ROOT,
) -> StoragePlacement:
    """Make one change and return what holds after it. One at a time, whoever makes them (CM-24).

    Raises ConfigurationError: it was refused, and nothing has changed. NoNodeError: there is no
    cluster. CoordinatorLostError, VersionConflictError: look, and make it again; the replica
    assignments, which alone count, have the change as a whole or not at all (CM-25).
    """
    paths = ClusterPaths(root)
    async with admin_lock(coordinator, root=root):
        before, versions = await _read(coordinator, root)
        after = change(before)
        assignments = (paths.replica_assignments, ReplicaAssignments(after.partitions).encode())
        others = [
            (paths.group_descriptor, GroupDescriptor(after.groups).encode()),
            (paths.connection_metadata, ConnectionMetadata(after.admin_ports).encode()),
        ]
        # What the assignments name is described: others come before a node and go after it.
        is_growing = after.partitions.keys() > before.partitions.keys()
        for path, data in [*others, assignments] if is_growing else [assignments, *others]:
            node = versions[path]
            if data != node.data:
                await coordinator.write(path, data, version=node.version)
    return after


async def forget_storage_directory(
    coordinator: Coordinator, node: ReplicaId, *, root: str = DEFAULT_ROOT
) -> None:
    """The storage node is out of the cluster: its directory may be another node's from now on.

    Idempotent. Raises CoordinatorLostError.
    """
    with contextlib.suppress(NoNodeError):
        await coordinator.delete(ClusterPaths(root).storage_directory(node))


async def _read(coordinator: Coordinator, root: str) -> tuple[StoragePlacement, dict[str, Node]]:
    paths = ClusterPaths(root)
    params = await read_store_params(coordinator, root)
    nodes: dict[str, Node] = {}
    values: dict[str, bytes] = {}
    for path in (paths.replica_assignments, paths.group_descriptor, paths.connection_metadata):
        node = nodes[path] = await coordinator.read(path)
        if node.data is None:
            raise NoNodeError(f"there is no cluster at {root}: node {path} has no value")
        values[path] = node.data
    placement = StoragePlacement(
        params.partition_count,
        ReplicaAssignments.decode(values[paths.replica_assignments]).partitions,
        GroupDescriptor.decode(values[paths.group_descriptor]).groups,
        ConnectionMetadata.decode(values[paths.connection_metadata]).admin_ports,
    )
    return placement, nodes
