"""Changes which storage nodes hold which partitions, as an operator would.

Owns the steps of a reassignment, with the code that operators use, and that a failed step is
checked and repeated. The plan chooses the holders and the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

from waltz.cluster.placement_shell import change_placement, read_placement
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
    remove_storage_node,
    unassign_replicas,
)
from waltz.errors import ConfigurationError, CoordinatorLostError, VersionConflictError
from waltz.host import Coordinator
from waltz.sim.faults.kinds import Reassignment
from waltz.sim.simulated_cluster import ADMIN_PORT, replica_id_of
from waltz.types import Address, PartitionId, ReplicaId

TRIES_MAX: Final = 30
TRY_AGAIN_SECONDS: Final = 1.0
"""An operator that cannot reach the coordinator gives up after a while."""

Change = Callable[[StoragePlacement], StoragePlacement]
Wanted = Mapping[PartitionId, Collection[ReplicaId]]
"""The holders of the partitions that change."""


def wanted_by(fault: Reassignment) -> Wanted:
    return {
        PartitionId(number): [replica_id_of(name) for name in names]
        for number, names in enumerate(fault.holders)
        if names
    }


def changes(placement: StoragePlacement, wanted: Wanted, *, at_once: bool) -> Iterator[Change]:
    """Yield the steps from `placement`: new nodes are added, then replicas move, then nodes that
    hold nothing are removed."""
    named = sorted({node for nodes in wanted.values() for node in nodes})
    yield from (partial(add, node=node) for node in named if node not in placement.partitions)
    nodes = sorted({*placement.partitions, *named})
    if at_once:
        yield partial(move, wanted=wanted, coming=nodes, going=nodes)
    else:
        yield from (partial(move, wanted=wanted, coming=[node], going=[]) for node in nodes)
        yield from (partial(move, wanted=wanted, coming=[], going=[node]) for node in nodes)
    yield remove_idle


def add(placement: StoragePlacement, node: ReplicaId) -> StoragePlacement:
    group = max(placement.groups.values(), default=0) + 1
    return add_storage_node(placement, Address.parse(node), group=group, admin_port=ADMIN_PORT)


def move(
    placement: StoragePlacement,
    wanted: Wanted,
    coming: Collection[ReplicaId],
    going: Collection[ReplicaId],
) -> StoragePlacement:
    """Let the nodes `coming` hold what is wanted of them, and those `going` nothing else."""
    for node in coming:
        held = placement.partitions.get(node, ())
        more = [each for each, nodes in wanted.items() if node in nodes and each not in held]
        if more:
            placement = assign_replicas(placement, node, more)
    for node in going:
        held = placement.partitions.get(node, ())
        less = [each for each in held if node not in wanted.get(each, [node])]
        if less:
            placement = unassign_replicas(placement, node, less, shrinks_group=True)
    return placement


def remove_idle(placement: StoragePlacement) -> StoragePlacement:
    for node in [node for node, held in placement.partitions.items() if not held]:
        placement = remove_storage_node(placement, node)
    return placement


Act = Callable[[Coordinator], Coroutine[Any, Any, StoragePlacement]]
Run = Callable[[Act], Coroutine[Any, Any, StoragePlacement]]
"""Lets an operator act in a session of the coordinator, which ends afterwards."""


async def reassign(fault: Reassignment, run: Run) -> None:
    """Make the changes of `fault` one by one. A change that another fault has made impossible
    meanwhile is left out; so is the rest when the coordinator stays away."""
    with suppress(CoordinatorLostError, VersionConflictError):
        placement = await _tried(run, read_placement)
        for change in changes(placement, wanted_by(fault), at_once=fault.at_once):
            with suppress(ConfigurationError):
                await _tried(run, partial(change_placement, change=change))
            await asyncio.sleep(fault.pause_seconds)


async def _tried(run: Run, act: Act) -> StoragePlacement:
    for _ in range(TRIES_MAX):
        with suppress(CoordinatorLostError, VersionConflictError):
            return await run(act)
        await asyncio.sleep(TRY_AGAIN_SECONDS)
    return await run(act)
