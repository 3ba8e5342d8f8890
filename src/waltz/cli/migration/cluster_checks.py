"""The original's cluster: its metadata and its processes, judged before anything is replaced.

Owns which partitions have all their replicas, as far as the original lets it be known: its servers
do not report on replicas. So three things have to agree: the metadata, in which a server of the
original writes each session's replicas; both ports of each storage node; and what each server
reaches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from waltz.cli.cluster_list import ClusterMetadata
from waltz.cli.cluster_verification import Facts, verdict
from waltz.cli.doctor.finding import Checked
from waltz.cli.partition_list import listed_partitions
from waltz.cli.storage_questions import StorageReport
from waltz.majority import majority
from waltz.types import Address, PartitionId, ReplicaId

RESUMING_VERSION: Final = 5
"""The first version of the clients' protocol that the original does not have."""

COPIES_MIN: Final = 3
"""Replicas with which one can be replaced while appends go on."""


@dataclass(frozen=True, slots=True)
class Peers:
    """A cluster whose processes were asked. `versions` has the version of the clients' protocol
    that each server agreed on; None: it did not answer."""

    facts: Facts
    versions: Mapping[Address, int | None]


def missing_replicas(
    metadata: ClusterMetadata, facts: Facts | None
) -> Mapping[PartitionId, tuple[ReplicaId, ...]]:
    """Return the replicas that each partition lacks, without those that lack none.

    A replica is there if the last session counts it in, and neither its own ports nor the
    partition's server say otherwise. With `facts` None only the metadata is judged.
    """
    found = {}
    for number in map(PartitionId, range(metadata.partition_count)):
        held_by = metadata.placement.holding(number)
        kept = metadata.partitions.get(number)
        current = () if kept is None else kept.current_replicas
        lacking = [node for node in held_by if node not in current]
        if facts is not None:
            lacking += [
                node for node in held_by if node not in lacking and _is_away(facts, node, number)
            ]
        if lacking:
            found[number] = tuple(sorted(lacking))
    return found


def _is_away(facts: Facts, node: ReplicaId, partition_id: PartitionId) -> bool:
    report = facts.storages[node]
    if report.trouble is not None or not report.usable.get(partition_id, False):
        return True
    owner = facts.owner(partition_id)
    answers = None if owner is None else facts.servers.get(owner)
    if answers is not None and (answers.reaches or {}).get(node) is False:
        return True
    return any(view.replica_id == node and view.is_fault for view in facts.replicas(partition_id))


def metadata_findings(metadata: ClusterMetadata) -> Iterator[Checked]:
    """Yield what the metadata alone shows."""
    counts = metadata.counts
    subject = metadata.root
    if counts.is_half_added:
        cause = f"partitions are being added, {counts.store} in all, and that is not finished"
        remedy = f"waltz cluster add-partitions --to {counts.store}"
        yield Checked("partition-count", subject, False, "two numbers", cause, remedy)
    for node in metadata.replicas():
        if node not in metadata.placement.admin_ports:
            remedy = "remove the node and add it again: waltz cluster remove-storage, add-storage"
            cause = "the cluster has no admin port of it, so that no tool reaches it"
            yield Checked("storage-node", node, False, "half added", cause, remedy)
    few = [
        number
        for number in map(PartitionId, range(metadata.partition_count))
        if len(metadata.placement.holding(number)) < COPIES_MIN
    ]
    if few:
        cause = f"with fewer than {COPIES_MIN} replicas none can be away while appends go on"
        remedy = "add a group of storage nodes first: docs/operating/cluster.md"
        found = f"partitions {listed_partitions(few)} have fewer than {COPIES_MIN} replicas"
        yield Checked("copies", subject, False, found, cause, remedy)


def replica_findings(metadata: ClusterMetadata, facts: Facts | None) -> Iterator[Checked]:
    """Yield the partitions that lack replicas, by the replica that they lack."""
    missing = missing_replicas(metadata, facts)
    for node in sorted({node for nodes in missing.values() for node in nodes}):
        numbers = [number for number, nodes in missing.items() if node in nodes]
        cause = f"it takes no part in the sessions of partitions {listed_partitions(numbers)}"
        remedy = "start it, or look at its log, and wait until waltz cluster verify has it back"
        yield Checked("replicas", node, False, "missing", cause, remedy)


def peer_findings(peers: Peers) -> Iterator[Checked]:
    """Yield what the processes say, and what each of them is."""
    for fault in verdict(peers.facts).faults:
        if fault.is_known:
            numbers = listed_partitions(fault.partition_ids) or "none by itself"
            remedy = "waltz cluster verify shows it; docs/operating/waiting-partitions.md"
            yield Checked(f"cluster-{fault.check}", numbers, False, "a fault", fault.text, remedy)
    for address, version in sorted(peers.versions.items()):
        if version is not None:
            yield Checked("peer", f"server {address}", True, server_kind(version))
    for node, report in sorted(peers.facts.storages.items()):
        if report.metrics_json is not None:
            yield Checked("peer", f"storage node {node}", True, storage_kind(report))


def server_kind(version: int) -> str:
    """Return what a server is, by the version that it agreed on with this program."""
    if version >= RESUMING_VERSION:
        return f"Waltz for Python: version {version} of the protocol"
    return f"Java Waltz: version {version} of the protocol, and no later one"


def storage_kind(report: StorageReport) -> str:
    """Return what a storage node is, by its figures."""
    return {
        True: "Java Waltz: its figures are the original's",
        False: "Waltz for Python",
        None: "not known: its figures are no JSON",
    }[is_original_storage(report)]


def is_original_storage(report: StorageReport) -> bool | None:
    """Whether a storage node is the original's, whose figures have no stage; None: it does not
    say."""
    try:
        found = json.loads(report.metrics_json or "")
    except (ValueError, RecursionError):
        return None
    return isinstance(found, dict) and "stage" not in found


def stops_appends(metadata: ClusterMetadata, node: ReplicaId) -> Sequence[PartitionId]:
    """Return the partitions that take no appends while `node` is away."""
    return [
        number
        for number in metadata.placement.partitions.get(node, ())
        if len(metadata.placement.holding(number)) - 1
        < majority(len(metadata.placement.holding(number)))
    ]
