"""The nodes with which a restored cluster begins, in the order in which they are written.

Owns that order, and what each node says. Pure. The store parameters come last: no server and no
storage node starts without them, so that a cluster that was restored in part never serves. The
partitions' metadata comes right before them, once all directories have reported what they hold: it
says of each replica that it took part in the last session, so that each one votes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from waltz.cluster.log_history import LogHistory, encode_histories
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.skipped_numbers import (
    CLIENT_IDS_SKIPPED,
    GENERATIONS_SKIPPED,
    SERVER_IDS_SKIPPED,
    raised,
)
from waltz.cluster.store_params import StoreParams, encode_counter
from waltz.errors import CorruptionError, UnavailableError
from waltz.restore.archived_cluster import ArchivedCluster
from waltz.restore.carried_nodes import Carried, carried_consumers, carried_notes
from waltz.restore.directory_report import DirectoryReport, PartitionHeld, agreed
from waltz.restore.restore_plan import RestorePlan
from waltz.types import Generation, PartitionId, ReplicaId, ServerId, TransactionId

RESTORED_MEMBERSHIP = -1
"""The membership of the assignment of a restored cluster: it fits none, so that the first server
assigns all partitions anew."""


@dataclass(frozen=True, slots=True)
class RestoredNodes:
    """The nodes to write.

    nodes    path and data of each, parents first; None: a node without data.
    last     path and data of the store parameters, with which the cluster exists.
    changes  sentences about notes and consumers that are not as they were.
    """

    nodes: Sequence[tuple[str, bytes | None]]
    last: tuple[str, bytes]
    changes: Sequence[str]


def check_reports(
    plan: RestorePlan, reports: Mapping[ReplicaId, DirectoryReport]
) -> dict[PartitionId, PartitionHeld]:
    """Return what all directories hold of each partition.

    Raises UnavailableError: a directory has not reported yet; CorruptionError: two differ, or one
    does not hold what the plan says.
    """
    missing = [each.replica_id for each in plan.storages if each.replica_id not in reports]
    if missing:
        raise UnavailableError(
            f"{len(missing)} of {len(plan.storages)} storage directories have not reported yet:"
            f" {', '.join(missing)}"
        )
    for wish in plan.storages:
        report = reports[wish.replica_id]
        held = {p: found.last for p, found in report.partitions.items()}
        wanted = {p: plan.lasts[p] for p in wish.partitions}
        if report.restore_id != plan.restore_id or held != wanted:
            raise CorruptionError(
                f"the directory of {wish.replica_id} was filled for another restore, or with other"
                " transactions than the plan has: restore that directory again, with --start-over"
            )
    return agreed(reports[each.replica_id] for each in plan.storages)


def restored_nodes(
    plan: RestorePlan,
    archived: ArchivedCluster,
    reports: Mapping[ReplicaId, DirectoryReport],
    *,
    root: str,
) -> RestoredNodes:
    """Return the nodes of the restored cluster below `root`.

    Raises as `check_reports`; ConfigurationError: IDs have come to their end.
    """
    held = check_reports(plan, reports)
    paths = ClusterPaths(root)
    consumers = carried_consumers(archived.consumers, plan.lasts)
    notes = carried_notes(archived.notes, plan.lasts, str(plan.restore_id))
    nodes = [
        *_numbers(plan, archived, held, paths),
        *_children(paths.consumers, consumers),
        *_children(paths.notes, notes),
    ]
    if plan.same_key:
        nodes += _children(paths.server_preferences, Carried(archived.preferences, ()))
        nodes.append((paths.history, encode_histories(histories(plan, archived))))
    nodes += _placement(plan, paths)
    nodes.append((paths.partitions, None))
    for partition_id in plan.lasts:
        metadata = PartitionMetadata(
            _generation(archived, held, partition_id),
            plan.sessions[partition_id],
            {
                each.replica_id: ReplicaState(plan.sessions[partition_id], None)
                for each in plan.storages
                if partition_id in each.partitions
            },
        )
        nodes.append((paths.partition_metadata(partition_id), metadata.encode(partition_id)))
    params = StoreParams(plan.cluster_key, plan.partition_count).encode()
    return RestoredNodes(nodes, (paths.store, params), (*consumers.changes, *notes.changes))


def histories(plan: RestorePlan, archived: ArchivedCluster) -> tuple[LogHistory, ...]:
    """Return the histories of the log once it is restored under the same key: the one that begins
    with this restore comes last."""
    added = LogHistory(
        plan.restore_id,
        plan.begun_at_milliseconds,
        {p: TransactionId(last + 1) for p, last in plan.lasts.items()},
        archived.directories,
    )
    return (*archived.histories, added)


def _numbers(
    plan: RestorePlan,
    archived: ArchivedCluster,
    held: Mapping[PartitionId, PartitionHeld],
    paths: ClusterPaths,
) -> list[tuple[str, bytes | None]]:
    """Return counters and assignment. The log may know of clients and generations that are younger
    than the archive's copy of the coordinator's nodes."""
    last_client = max(archived.client_counter, *(each.client_id for each in held.values()))
    clients = raised(last_client, CLIENT_IDS_SKIPPED, "client IDs")
    servers = raised(archived.server_counter, SERVER_IDS_SKIPPED, "server IDs")
    assignment = PartitionAssignment(
        RESTORED_MEMBERSHIP,
        plan.partition_count,
        # No server ever has the number of the counter: the next one gets the number after it.
        {ServerId(servers): {p: _generation(archived, held, p) for p in plan.lasts}},
    )
    return [
        (paths.ids, None),
        (paths.client_id_counter, encode_counter(clients)),
        (paths.server_id_counter, encode_counter(servers)),
        (paths.server_descriptors, assignment.encode()),
    ]


def _generation(
    archived: ArchivedCluster, held: Mapping[PartitionId, PartitionHeld], partition_id: PartitionId
) -> Generation:
    known = max(0, archived.generations[partition_id], held[partition_id].generation)
    what = f"generations of partition {partition_id}"
    return Generation(raised(known, GENERATIONS_SKIPPED, what))


def _placement(plan: RestorePlan, paths: ClusterPaths) -> list[tuple[str, bytes | None]]:
    held = {each.replica_id: each.partitions for each in plan.storages}
    groups = {each.replica_id: each.group for each in plan.storages}
    ports = {each.replica_id: each.admin_port for each in plan.storages}
    return [
        (paths.store, None),
        (paths.group_descriptor, GroupDescriptor(groups).encode()),
        (paths.replica_assignments, ReplicaAssignments(held).encode()),
        (paths.connection_metadata, ConnectionMetadata(ports).encode()),
    ]


def _children(parent: str, carried: Carried) -> list[tuple[str, bytes | None]]:
    if not carried.nodes:
        return []
    return [
        (parent, None),
        *((f"{parent}/{name}", data) for name, data in sorted(carried.nodes.items())),
    ]
