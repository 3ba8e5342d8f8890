"""Replicas are reassigned as operators do it, in steps that may be cut short anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import ConfigurationError, CoordinatorLostError
from waltz.sim.faults.kinds import CoordinatorOutage, Reassignment
from waltz.sim.faults.placement_strikes import (
    TRIES_MAX,
    TRY_AGAIN_SECONDS,
    Act,
    changes,
    reassign,
    wanted_by,
)
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster, machine_of, replica_id_of
from waltz.sim.sites import Sites
from waltz.types import PartitionId


def placement(**held: Sequence[int]) -> StoragePlacement:
    nodes = {replica_id_of(name): tuple(map(PartitionId, ids)) for name, ids in held.items()}
    groups = {node: number + 1 for number, node in enumerate(nodes)}
    return StoragePlacement(2, nodes, groups, dict.fromkeys(nodes, 7001))


def held_in(after: StoragePlacement) -> dict[str, tuple[int, ...]]:
    return {machine_of(node): tuple(ids) for node, ids in after.partitions.items()}


def reassignment(*holders: tuple[str, ...], at_once: bool = True) -> Reassignment:
    return Reassignment(progress=0.0, holders=holders, at_once=at_once, pause_seconds=0.0)


def steps(
    before: StoragePlacement, *holders: tuple[str, ...], at_once: bool
) -> list[dict[str, tuple[int, ...]]]:
    """What holds after each step that changes anything."""
    seen = []
    wanted = wanted_by(reassignment(*holders))
    for change in changes(before, wanted, at_once=at_once):
        after = change(before)
        if after != before:
            seen.append(held_in(after))
        before = after
    return seen


BEFORE = placement(a=[0, 1], b=[0, 1])


def test_at_once_new_nodes_are_added_then_all_moves_then_idle_ones_are_removed() -> None:
    """CM-19 to CM-22."""
    assert steps(BEFORE, ("b", "c"), ("c", "d"), at_once=True) == [
        {"a": (0, 1), "b": (0, 1), "c": ()},
        {"a": (0, 1), "b": (0, 1), "c": (), "d": ()},
        {"a": (), "b": (0,), "c": (0, 1), "d": (1,)},
        {"b": (0,), "c": (0, 1), "d": (1,)},
    ]


def test_one_by_one_all_come_before_any_goes() -> None:
    assert steps(BEFORE, ("c", "d"), at_once=False) == [
        {"a": (0, 1), "b": (0, 1), "c": ()},
        {"a": (0, 1), "b": (0, 1), "c": (), "d": ()},
        {"a": (0, 1), "b": (0, 1), "c": (0,), "d": ()},
        {"a": (0, 1), "b": (0, 1), "c": (0,), "d": (0,)},
        {"a": (1,), "b": (0, 1), "c": (0,), "d": (0,)},
        {"a": (1,), "b": (1,), "c": (0,), "d": (0,)},
    ]


@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_so_already_is_left_as_it_is(at_once: bool) -> None:
    assert steps(BEFORE, ("a", "b"), (), at_once=at_once) == []


class _Door:
    """Somebody's way to the coordinator, which fails for a while."""

    def __init__(self, failures: Sequence[Exception | None]) -> None:
        self.failures = [*failures]
        self.acts: list[Act] = []

    async def run(self, act: Act) -> StoragePlacement:
        self.acts.append(act)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return BEFORE


def acts_of(failures: Sequence[Exception | None]) -> tuple[list[Act], float]:
    door = _Door(failures)
    loop = SimulatedLoop(1)
    try:
        loop.run_until_complete(reassign(reassignment(("a",)), door.run))
        return door.acts, loop.time()
    finally:
        loop.shut_down()


def test_what_fails_is_made_again_and_what_is_refused_is_left_out() -> None:
    acts, seconds = acts_of([CoordinatorLostError("x"), CoordinatorLostError("x")])
    assert acts[0] is acts[1] is acts[2]
    assert len(acts) == 2 + 3
    assert seconds == 2 * TRY_AGAIN_SECONDS
    acts, seconds = acts_of([None, ConfigurationError("x")])
    assert (len(acts), seconds) == (3, 0.0)


def test_an_operator_gives_up_when_the_coordinator_stays_away() -> None:
    acts, seconds = acts_of([CoordinatorLostError("x")] * 1_000)
    assert (len(acts), seconds) == (TRIES_MAX + 1, TRIES_MAX * TRY_AGAIN_SECONDS)


def test_replicas_of_a_running_cluster_are_reassigned() -> None:
    """ST-40: through an outage that the change begins in."""
    loop = SimulatedLoop(1)
    sites = Sites(loop, 1, RunTrace())
    shape = ClusterShape(
        partition_count=1,
        storage_count=3,
        server_count=1,
        segment_bytes_threshold=20_000,
        spare_count=2,
    )
    cluster = SimulatedCluster(sites, shape, UUID(int=1))
    strikes = Strikes(sites)
    wanted = ("storage-0", "storage-3", "storage-4")

    async def scene() -> None:
        await cluster.start()
        async with asyncio.TaskGroup() as group:
            group.create_task(strikes.strike(CoordinatorOutage(progress=0.0, seconds=5.0)))
            group.create_task(strikes.strike(reassignment(wanted)))
        assert cluster.assigned() == {PartitionId(0): {*wanted}}
        while cluster.members() != cluster.assigned():
            await asyncio.sleep(0.1)

    try:
        loop.run_until_complete(scene())
        assert loop.failures() == []
        assert strikes.record.counts == {"CoordinatorOutage": 1, "Reassignment": 1}
    finally:
        loop.shut_down()
