"""The storage nodes of a cluster, the partitions that they hold, and the rules of changing these.

Owns the rule of each change, as a function from one placement to the next that raises
ConfigurationError if the change is refused. Does not know how a placement is stored: that is
`placement_shell.py`. Source: Waltz Storage, "Replica Assignments", "Group Descriptor".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.errors import ConfigurationError
from waltz.majority import majority
from waltz.types import Address, PartitionId, ReplicaId


@dataclass(frozen=True, slots=True)
class StoragePlacement:
    """A storage node belongs to the cluster if `partitions` names it, even with no partition."""

    partition_count: int
    partitions: Mapping[ReplicaId, tuple[PartitionId, ...]]
    """The partitions that each node holds, sorted."""
    groups: Mapping[ReplicaId, int]
    admin_ports: Mapping[ReplicaId, int]

    def holding(self, partition_id: PartitionId) -> tuple[ReplicaId, ...]:
        """Return the nodes with a copy of the partition."""
        return tuple(node for node, held in self.partitions.items() if partition_id in held)


def add_storage_node(
    placement: StoragePlacement, address: Address, *, group: int, admin_port: int
) -> StoragePlacement:
    """Add a node without partitions (CM-19). Refused: there is a node of that address."""
    node = ReplicaId(str(address))
    if node in placement.partitions:
        raise ConfigurationError(f"storage node {node} is one of the cluster already")
    # An interrupted addition may have left group and port of this node behind.
    return replace(
        placement,
        partitions={**placement.partitions, node: ()},
        groups={**placement.groups, node: group},
        admin_ports={**placement.admin_ports, node: admin_port},
    )


def remove_storage_node(placement: StoragePlacement, node: ReplicaId) -> StoragePlacement:
    """Remove a node (CM-20), or what an interrupted removal has left of it. Refused: it holds
    partitions; there is no such node."""
    if not any(
        node in known for known in (placement.partitions, placement.groups, placement.admin_ports)
    ):
        raise _unknown(placement, node)
    if held := placement.partitions.get(node):
        raise ConfigurationError(
            f"storage node {node} holds partitions {_listed(held)}; unassign them first"
        )
    return replace(
        placement,
        partitions={key: held for key, held in placement.partitions.items() if key != node},
        groups={key: group for key, group in placement.groups.items() if key != node},
        admin_ports={key: port for key, port in placement.admin_ports.items() if key != node},
    )


def assign_replicas(
    placement: StoragePlacement, node: ReplicaId, partition_ids: Collection[PartitionId]
) -> StoragePlacement:
    """Let a node hold more partitions (CM-21). Refused: it holds one of them already, or there is
    no such partition, or no such node."""
    held = _held(placement, node)
    if beyond := [each for each in partition_ids if not 0 <= each < placement.partition_count]:
        raise ConfigurationError(
            f"there is no partition {_listed(beyond)}; expected 0 to"
            f" {placement.partition_count - 1}"
        )
    if twice := [each for each in partition_ids if each in held]:
        raise ConfigurationError(f"storage node {node} holds partitions {_listed(twice)} already")
    return _with(placement, {node: {*held, *partition_ids}})


def unassign_replicas(
    placement: StoragePlacement,
    node: ReplicaId,
    partition_ids: Collection[PartitionId],
    *,
    shrinks_group: bool = False,
) -> StoragePlacement:
    """Let a node hold fewer partitions (CM-22).

    Refused: the node does not hold one of them; no other node of its group does, unless the group
    may have fewer partitions (`shrinks_group`); or no other node of the cluster does.
    """
    held = _held(placement, node)
    if absent := [each for each in partition_ids if each not in held]:
        raise ConfigurationError(f"storage node {node} does not hold partitions {_listed(absent)}")
    group = placement.groups.get(node)
    for partition_id in partition_ids:
        others = [other for other in placement.holding(partition_id) if other != node]
        if not others:
            raise ConfigurationError(
                f"storage node {node} has the only copy of partition {partition_id}"
            )
        if not shrinks_group and all(placement.groups.get(other) != group for other in others):
            raise ConfigurationError(
                f"storage node {node} has the last copy of partition {partition_id} in group"
                f" {group}; assign it to another node of the group first"
            )
    return _with(placement, {node: {*held} - {*partition_ids}})


def auto_assign(placement: StoragePlacement, group: int) -> StoragePlacement:
    """Distribute all partitions over the nodes of a group (CM-23). Refused: the group has no nodes,
    or some of them hold partitions."""
    nodes = [node for node in placement.partitions if placement.groups.get(node) == group]
    if not nodes:
        raise ConfigurationError(f"group {group} has no storage nodes")
    if holding := [node for node in nodes if placement.partitions[node]]:
        raise ConfigurationError(
            f"group {group} has partitions assigned already, to {', '.join(holding)}"
        )
    return _with(
        placement,
        {
            node: {*map(PartitionId, range(position, placement.partition_count, len(nodes)))}
            for position, node in enumerate(nodes)
        },
    )


def replace_replicas(
    placement: StoragePlacement,
    leaving: ReplicaId,
    joining: ReplicaId,
    partition_ids: Collection[PartitionId] | None = None,
) -> StoragePlacement:
    """Move `partition_ids`, all if None, from node `leaving` to node `joining` in one change: each
    partition keeps its number of copies. Refused: `leaving` does not hold one of them; both hold
    the same partition; the nodes are of different groups."""
    held, others = _held(placement, leaving), _held(placement, joining)
    moving = {*held} if partition_ids is None else {*partition_ids}
    if absent := sorted(moving - {*held}):
        raise ConfigurationError(
            f"storage node {leaving} does not hold partitions {_listed(absent)}"
        )
    if both := sorted(moving & {*others}):
        raise ConfigurationError(
            f"storage nodes {leaving} and {joining} both hold partitions {_listed(both)}"
        )
    if placement.groups.get(leaving) != placement.groups.get(joining):
        raise ConfigurationError(
            f"storage node {leaving} is of group {placement.groups.get(leaving)}, {joining} of"
            f" group {placement.groups.get(joining)}; expected one group"
        )
    return _with(placement, {leaving: {*held} - moving, joining: {*moving, *others}})


def check_majority(
    after: StoragePlacement,
    partition_id: PartitionId,
    metadata: PartitionMetadata | None,
    lost: Collection[ReplicaId] = (),
) -> None:
    """Raise ConfigurationError if the replicas that `after` leaves to the partition could not
    continue: no majority of them takes part in its store session and is reachable by its server
    (not `lost`), so that it might wait for ever for the replicas taken away.

    metadata  None: the partition never had a session, so it has no records.
    """
    if metadata is None:
        return
    replicas = after.holding(partition_id)
    current = [each for each in replicas if each in metadata.current_replicas and each not in lost]
    if len(current) < majority(len(replicas)):
        absent = ", ".join(node for node in replicas if node not in current)
        raise ConfigurationError(
            f"partition {partition_id} would be left with {', '.join(replicas)}, of which"
            f" {len(current)} of {len(replicas)} take part in its store session: no majority. Bring"
            f" back {absent}, or wait until they have caught up (waltz status), and try again"
        )


def _with(
    placement: StoragePlacement, changed: Mapping[ReplicaId, Collection[PartitionId]]
) -> StoragePlacement:
    ordered = {node: tuple(sorted(held)) for node, held in changed.items()}
    return replace(placement, partitions={**placement.partitions, **ordered})


def _held(placement: StoragePlacement, node: ReplicaId) -> tuple[PartitionId, ...]:
    if node not in placement.partitions:
        raise _unknown(placement, node)
    return placement.partitions[node]


def _unknown(placement: StoragePlacement, node: ReplicaId) -> ConfigurationError:
    known = ", ".join(placement.partitions) or "none"
    return ConfigurationError(f"there is no storage node {node}; the cluster has {known}")


def _listed(partition_ids: Collection[PartitionId]) -> str:
    return ", ".join(map(str, partition_ids))
