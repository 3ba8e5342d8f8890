"""Changes which storage nodes a running cluster has and which partitions they hold.

Owns the order in which the coordinator's nodes are written, so that an interrupted change can be
repeated. `storage_placement.py` owns the changes and their refusals. Servers follow the replica
assignments and open new store sessions by themselves.
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
    """Return the placement. Raises NoNodeError: there is no cluster; CoordinatorLostError."""
    return (await _read(coordinator, root))[0]


async def change_placement(
    coordinator: Coordinator,
    change: Callable[[StoragePlacement], StoragePlacement],
    *,
    root: str = DEFAULT_ROOT,
) -> StoragePlacement:
    """Make one change and return the new placement. The changes of all processes are made one at a
    time (CM-24).

    Raises ConfigurationError: it was refused, and nothing has changed; NoNodeError: there is no
    cluster; CoordinatorLostError, VersionConflictError: read the placement, and repeat the change.
    Only the replica assignments count, and they have the whole change or nothing of it (CM-25).
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
        # A node in the assignments is always described: its description comes first and goes last.
        is_growing = after.partitions.keys() > before.partitions.keys()
        for path, data in [*others, assignments] if is_growing else [assignments, *others]:
            node = versions[path]
            if data != node.data:
                await coordinator.write(path, data, version=node.version)
    return after


async def forget_storage_directory(
    coordinator: Coordinator, node: ReplicaId, *, root: str = DEFAULT_ROOT
) -> None:
    """Forget the directory of a storage node that has left: another node may use it from now on.

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
