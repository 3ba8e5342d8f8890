"""Adding partitions to a cluster: when it is refused, and which storage nodes hold the new ones.

Owns the rules. Three values of the coordinator have the number, and are written in this order: the
store parameters, for which storage nodes make room; the cluster parameters, with which the cluster
has the partitions; the assignment, from which servers and clients learn of them. From every state
in between the same growth can be resumed, and no other growth can begin. Does not know how the
values are stored: that is `growing_shell.py`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace

from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import ConfigurationError
from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId, ReplicaId


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """The number of partitions according to the coordinator's values.

    cluster   partitions of the cluster: the cluster parameters.
    store     partitions that storage nodes have or have to make room for: the store parameters.
    assigned  partitions that servers serve: their assignment, 0 before the first.
    """

    cluster: int
    store: int
    assigned: int

    @property
    def is_half_added(self) -> bool:
        """Whether partitions were being added and the cluster does not have them yet."""
        return self.cluster < self.store


def check_growth(counts: PartitionCounts, to: int) -> None:
    """Raise ConfigurationError if a growth to `to` partitions is refused: it is no growth, it is
    too large, another one was begun, or the values contradict each other."""
    if counts.cluster > counts.store:
        raise ConfigurationError(
            f"the cluster parameters have {counts.cluster} partitions and the store parameters"
            f" {counts.store}; expected at least {counts.cluster} in the store parameters, which"
            " grow first"
        )
    if to > PARTITIONS_MAX:
        raise ConfigurationError(
            f"the cluster would have {to} partitions; expected at most {PARTITIONS_MAX}"
        )
    if to < counts.cluster:
        raise ConfigurationError(
            f"the cluster has {counts.cluster} partitions, and that number never gets smaller:"
            f" expected more than {counts.cluster}, not {to}"
        )
    if counts.is_half_added and to != counts.store:
        raise ConfigurationError(
            f"partitions were being added, {counts.store} in all, and that was cut short: finish it"
            f" first, with --to {counts.store}"
        )


def grown_placement(placement: StoragePlacement, first_new: int, to: int) -> StoragePlacement:
    """Return the placement that includes partitions `first_new` to `to` - 1.

    Each group that holds partitions gets one copy of each new one, on its node with the fewest, the
    first of several, as `auto_assign` does. New partitions that a group holds already stay where
    they are. If no node holds anything, nothing is placed. Raises ConfigurationError: a node holds
    partitions and has no group.
    """
    held = {node: set(numbers) for node, numbers in placement.partitions.items()}
    groups: dict[int, list[ReplicaId]] = {}
    for node, numbers in placement.partitions.items():
        group = placement.groups.get(node)
        if group is None and numbers:
            raise ConfigurationError(
                f"storage node {node} has no group; remove it and add it again"
            )
        if group is not None:
            groups.setdefault(group, []).append(node)
    for nodes in groups.values():
        # Counts old partitions only, so that a resumed growth places new ones as before.
        in_use = [
            (len(held[node]), position, node)
            for position, node in enumerate(nodes)
            if any(number < first_new for number in held[node])
        ]
        if not in_use:
            continue
        heapq.heapify(in_use)
        has_copy = {number for node in nodes for number in held[node]}
        for number in map(PartitionId, range(first_new, to)):
            if number in has_copy:
                continue
            count, position, node = in_use[0]
            held[node].add(number)
            heapq.heapreplace(in_use, (count + 1, position, node))
    return replace(
        placement,
        partition_count=max(to, placement.partition_count),
        partitions={node: tuple(sorted(numbers)) for node, numbers in held.items()},
    )


def to_take(
    placement: StoragePlacement, first_new: int, to: int
) -> Mapping[ReplicaId, tuple[PartitionId, ...]]:
    """Return the new partitions that each storage node has to take; nodes without any are left
    out."""
    wanted = {
        node: tuple(number for number in numbers if first_new <= number < to)
        for node, numbers in sorted(placement.partitions.items())
    }
    return {node: numbers for node, numbers in wanted.items() if numbers}
