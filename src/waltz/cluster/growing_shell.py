"""Writes into the coordinator that a cluster has more partitions, one value after the other.

Owns each write with its condition. `partition_growth.py` owns the refusals and the order; the
caller has storage nodes make room in between.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from waltz.cluster.cluster_shell import read_cluster_params, read_membership, read_store_params
from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.partition_growth import PartitionCounts, check_growth
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.server_assignment import assign_partitions
from waltz.cluster.store_params import ClusterParams
from waltz.errors import NoNodeError, VersionConflictError
from waltz.host import Coordinator


async def read_counts(coordinator: Coordinator, root: str = DEFAULT_ROOT) -> PartitionCounts:
    """Return the three numbers. Raises NoNodeError: there is no cluster; CoordinatorLostError."""
    await read_cluster_params(coordinator, root)  # raises if there is no cluster
    # In the reverse order of the writes: a value read later can only be newer.
    _, membership = await read_membership(coordinator, ClusterPaths(root).server_descriptors)
    params = await read_cluster_params(coordinator, root)
    store = await read_store_params(coordinator, root)
    return PartitionCounts(
        params.partition_count, store.partition_count, membership.assignment.partition_count
    )


async def begin_growth(coordinator: Coordinator, to: int, *, root: str = DEFAULT_ROOT) -> None:
    """Let storage nodes make room for `to` partitions; the cluster does not have them yet.

    Idempotent. Raises ConfigurationError as `check_growth`, and nothing was changed;
    VersionConflictError, CoordinatorLostError: read the counts, and repeat the call.
    """
    path = ClusterPaths(root).store
    async with admin_lock(coordinator, root=root):
        check_growth(await read_counts(coordinator, root), to)
        store = await read_store_params(coordinator, root)
        if store.partition_count < to:
            node = await coordinator.read(path)
            grown = replace(store, partition_count=to).encode()
            await coordinator.write(path, grown, version=node.version)


async def finish_growth(coordinator: Coordinator, to: int, *, root: str = DEFAULT_ROOT) -> None:
    """Give the cluster `to` partitions, each of which its replicas have taken by now.

    Idempotent. Raises CoordinatorLostError: read the counts, and repeat the call.
    """
    while True:
        node = await coordinator.read(root)
        if node.data is None:
            raise NoNodeError(f"there is no cluster at {root}")
        params = ClusterParams.decode(node.data)
        if params.partition_count >= to:
            return
        with contextlib.suppress(VersionConflictError):
            grown = replace(params, partition_count=to).encode()
            await coordinator.write(root, grown, version=node.version)


async def deal_out(coordinator: Coordinator, to: int, *, root: str = DEFAULT_ROOT) -> bool:
    """Assign all `to` partitions to the running servers. False if no server is registered: the next
    one deals them out, for each server reads the number after it has registered.

    A server that starts in the meantime would write the same assignment, and may be faster.
    Idempotent. Raises RemoteProtocolError as `assign_partitions`; CoordinatorLostError: read the
    counts, and repeat the call.
    """
    path = ClusterPaths(root).server_descriptors
    while True:
        _, membership = await read_membership(coordinator, path)
        if not membership.descriptors:
            return False
        if membership.assignment.partition_count >= to:
            return True
        grown = assign_partitions(
            membership.assignment,
            membership.descriptors,
            partition_count=to,
            membership_version=membership.child_version,
        )
        with contextlib.suppress(VersionConflictError):
            await coordinator.write(path, grown.encode(), version=membership.version)
            return True
