"""Carries the restore of one partition through the coordinator of a living cluster.

Owns the order. The plan comes first; then the partition is fenced off: no server opens it until the
end. Once all directories have reported the same: the history, consumers and notes, the metadata,
and at last the assignment, with which the partition's server opens it. Each step may be repeated,
so the same command resumes a restore that was cut short; the node with the plan goes last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from waltz.cluster.cluster_shell import (
    create_if_absent,
    read_partition_metadata,
    read_replica_assignments,
)
from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.log_history import LogHistory, decode_histories, encode_histories
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.server_assignment import NO_ASSIGNMENT, PartitionAssignment
from waltz.errors import ConfigurationError, NoNodeError, VersionConflictError
from waltz.host import Coordinator
from waltz.restore.carried_nodes import Carried, carried_consumers, carried_notes
from waltz.restore.directory_report import DirectoryReport
from waltz.restore.partition_restore import (
    PartitionRestore,
    check_partition_reports,
    fenced,
    is_over,
    reassigned,
    restored,
)
from waltz.restore.restoring_shell import all_reports_below, put_node
from waltz.types import PartitionId, TransactionId

NEVER_BEYOND = TransactionId(2**63 - 1)
"""The point of a partition that is not restored: nothing is beyond it."""


async def read_histories(coordinator: Coordinator, *, root: str) -> tuple[LogHistory, ...]:
    """Return the histories of the log so far. Raises RemoteProtocolError."""
    try:
        node = await coordinator.read(ClusterPaths(root).history)
    except NoNodeError:
        return ()
    return decode_histories(node.data or b"")


async def read_assignment(coordinator: Coordinator, *, root: str) -> PartitionAssignment:
    """Return the assignment of partitions to servers. Raises RemoteProtocolError."""
    with contextlib.suppress(NoNodeError):
        node = await coordinator.read(ClusterPaths(root).server_descriptors)
        if node.data:
            return PartitionAssignment.decode(node.data)
    return NO_ASSIGNMENT


async def read_partition_plan(
    coordinator: Coordinator, partition_id: PartitionId, *, root: str
) -> PartitionRestore:
    """Return the restore of the partition that was begun. Raises NoNodeError: none is under
    way; RemoteProtocolError."""
    node = await coordinator.read(ClusterPaths(root).partition_restore(partition_id))
    return PartitionRestore.decode(node.data or b"")


async def begin_partition(
    coordinator: Coordinator, wanted: PartitionRestore, *, root: str
) -> PartitionRestore:
    """Keep the plan, and fence the partition off: no server opens it until the restore has ended.
    If the same restore was begun before, return the plan of then.

    Raises ConfigurationError: another restore was begun; NoNodeError: the partition has never had a
    store session.
    """
    paths = ClusterPaths(root)
    path = paths.partition_restore(wanted.partition_id)
    await create_if_absent(coordinator, paths.partition_restores, None)
    await create_if_absent(coordinator, path, wanted.encode())
    node = await coordinator.read(path)
    plan = PartitionRestore.decode(node.data or b"")
    if (difference := plan.difference(wanted)) is not None:
        raise ConfigurationError(
            f"another restore of partition {wanted.partition_id} was begun, restore"
            f" {plan.restore_id}: {difference}. Resume that one by its own options"
        )
    if wanted.abandons_suffix and not plan.abandons_suffix:
        plan = replace(plan, abandons_suffix=True)
        await coordinator.write(path, plan.encode(), version=node.version)
    await _write_metadata(coordinator, plan, paths, fenced)
    return plan


async def report_partition(
    coordinator: Coordinator, plan: PartitionRestore, report: DirectoryReport, *, root: str
) -> None:
    """Keep a directory's report. Raises NoNodeError: the restore has ended."""
    path = ClusterPaths(root).partition_restore(plan.partition_id)
    await put_node(coordinator, f"{path}/{report.replica_id}", report.encode())


async def finish_partition(
    coordinator: Coordinator,
    plan: PartitionRestore,
    partition_count: int,
    on_report: Callable[[int], None],
    *,
    root: str,
) -> tuple[str, ...]:
    """Wait until all directories have reported, and have the cluster continue with them; return
    sentences about notes and consumers that are not as they were. `on_report` gets the number of
    reports whenever it has changed.

    May be repeated. Raises CorruptionError: directories differ; ConfigurationError: the partition
    has other replicas than when the restore was begun, or was not fenced off.
    """
    paths = ClusterPaths(root)
    path = paths.partition_restore(plan.partition_id)
    changes: tuple[str, ...] = ()
    if not is_over(await read_partition_metadata(coordinator, plan.partition_id, root), plan):
        reports = await all_reports_below(coordinator, path, plan.replicas, on_report)
        check_partition_reports(plan, reports)
        async with admin_lock(coordinator, root=root):
            await _check_replicas(coordinator, plan, root)
            await _add_history(coordinator, plan, paths)
            changes = await _carry(coordinator, plan, partition_count, paths)
            await _write_metadata(coordinator, plan, paths, restored)
    async with admin_lock(coordinator, root=root):
        await _reassign(coordinator, plan, paths)
        for name in await coordinator.children(path):
            await coordinator.delete(f"{path}/{name}")
        await coordinator.delete(path)
    return changes


async def _check_replicas(coordinator: Coordinator, plan: PartitionRestore, root: str) -> None:
    assignments = ReplicaAssignments(await read_replica_assignments(coordinator, root))
    if (now := assignments.replicas(plan.partition_id)) != plan.replicas:
        raise ConfigurationError(
            f"partition {plan.partition_id} is now held by {', '.join(now) or 'no node'}, and the"
            f" restore was begun for {', '.join(plan.replicas)}: put the replicas back as they"
            " were, and run the same command again"
        )


async def _add_history(
    coordinator: Coordinator, plan: PartitionRestore, paths: ClusterPaths
) -> None:
    histories = await read_histories(coordinator, root=paths.root)
    if any(each.history_id == plan.restore_id for each in histories):
        return
    added = LogHistory(
        plan.restore_id,
        plan.begun_at_milliseconds,
        {plan.partition_id: TransactionId(plan.last + 1)},
    )
    await put_node(coordinator, paths.history, encode_histories((*histories, added)))


async def _carry(
    coordinator: Coordinator, plan: PartitionRestore, partition_count: int, paths: ClusterPaths
) -> tuple[str, ...]:
    """Drop marks beyond the point, and have notes of Spark sinks refuse."""
    lasts = {PartitionId(number): NEVER_BEYOND for number in range(partition_count)}
    lasts[plan.partition_id] = plan.last
    consumers = await _children(coordinator, paths.consumers)
    kept = carried_consumers(consumers, lasts)
    for name in sorted(consumers.keys() - kept.nodes.keys()):
        with contextlib.suppress(NoNodeError):
            await coordinator.delete(f"{paths.consumers}/{name}")
    notes = await _children(coordinator, paths.notes)
    refused = carried_notes(notes, lasts, str(plan.restore_id))
    for parent, carried in ((paths.consumers, kept), (paths.notes, refused)):
        await _put_all(coordinator, parent, carried)
    return (*kept.changes, *refused.changes)


async def _children(coordinator: Coordinator, parent: str) -> dict[str, bytes]:
    found = {}
    with contextlib.suppress(NoNodeError):
        for name in await coordinator.children(parent):
            found[name] = (await coordinator.read(f"{parent}/{name}")).data or b""
    return found


async def _put_all(coordinator: Coordinator, parent: str, carried: Carried) -> None:
    for name, data in sorted(carried.nodes.items()):
        await put_node(coordinator, f"{parent}/{name}", data)


async def _write_metadata(
    coordinator: Coordinator,
    plan: PartitionRestore,
    paths: ClusterPaths,
    change: Callable[[PartitionMetadata, PartitionRestore], PartitionMetadata | None],
) -> None:
    path = paths.partition_metadata(plan.partition_id)
    while True:
        node = await coordinator.read(path)
        found = PartitionMetadata.decode(node.data or b"", plan.partition_id)
        changed = change(found, plan)
        if changed is None:
            return
        with contextlib.suppress(VersionConflictError):
            # A server that opens the partition at the same time may be first.
            await coordinator.write(path, changed.encode(plan.partition_id), version=node.version)
            return


async def _reassign(coordinator: Coordinator, plan: PartitionRestore, paths: ClusterPaths) -> None:
    while True:
        node = await coordinator.read(paths.server_descriptors)
        changed = reassigned(PartitionAssignment.decode(node.data or b""), plan)
        if changed is None:
            return
        with contextlib.suppress(VersionConflictError):
            # Servers assign partitions at the same time.
            await coordinator.write(
                paths.server_descriptors, changed.encode(), version=node.version
            )
            return
