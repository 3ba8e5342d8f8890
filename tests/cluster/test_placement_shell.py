"""Storage nodes of a running cluster are added, replaced and removed, also by two at once."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest

from tests.cluster.golden import golden_tree
from tests.cluster.simulated import KEY, FailingCoordinator, World, simulate
from waltz.cluster.cluster_shell import create_cluster, register_storage_directory
from waltz.cluster.placement_shell import (
    change_placement,
    forget_storage_directory,
    read_placement,
)
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
    remove_storage_node,
)
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
    ForeignDirectoryError,
    NoNodeError,
)
from waltz.sim.loop import Process
from waltz.types import Address, PartitionId, ReplicaId

SEEDS = range(10)
BOTH = [PartitionId(0), PartitionId(1)]


async def create(world: World, root: str = "/waltz") -> None:
    await world.ask(
        create_cluster, name="test", partition_count=2, cluster_key=KEY, storages=[], root=root
    )


def adding(number: int) -> partial[StoragePlacement]:
    return partial(
        add_storage_node,
        address=Address("vm", 47300 + 10 * number),
        group=number,
        admin_port=47301 + 10 * number,
    )


def node(number: int) -> ReplicaId:
    return ReplicaId(f"vm:{47300 + 10 * number}")


def test_nodes_added_and_assigned_are_what_the_original_has_after_it() -> None:
    """CM-16 to CM-19, CM-21"""

    async def story(world: World) -> None:
        await create(world, "/waltz_cluster")
        for number in (1, 2, 3):
            await world.ask(change_placement, adding(number), root="/waltz_cluster")
        for number in (1, 2, 3):
            assign = partial(assign_replicas, node=node(number), partition_ids=BOTH)
            await world.ask(change_placement, assign, root="/waltz_cluster")
        golden = golden_tree("2-storages-assigned")
        for name, kind in (
            ("group", GroupDescriptor),
            ("assignment", ReplicaAssignments),
            ("connection", ConnectionMetadata),
        ):
            path = f"/waltz_cluster/store/{name}"
            found = world.tree.read(path)
            assert kind.decode(found.data or b"") == kind.decode(golden[path].data or b"")

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_changes_made_at_once_come_one_after_the_other(seed: int) -> None:
    """CM-24"""

    async def story(world: World) -> None:
        await create(world)
        changes = [world.ask(change_placement, adding(number)) for number in range(1, 6)]
        await asyncio.gather(*changes)
        placement = await world.ask(read_placement)
        assert sorted(placement.partitions) == [node(number) for number in range(1, 6)]
        assert placement.groups.keys() == placement.admin_ports.keys() == {*placement.partitions}

    simulate(story, seed)


def test_a_refused_change_leaves_everything_as_it_was() -> None:
    """CM-19"""

    async def story(world: World) -> None:
        await create(world)
        await world.ask(change_placement, adding(1))
        before = world.tree.read("/waltz/store/assignment")
        with pytest.raises(ConfigurationError, match="already"):
            await world.ask(change_placement, adding(1))
        assert world.tree.read("/waltz/store/assignment") == before

    simulate(story)


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_change_cut_short_anywhere_can_be_made_again(takes_effect: bool) -> None:
    """CM-25: whatever the assignments name has a group and an admin port."""

    async def story(world: World, calls: int) -> bool:
        """Return whether the change went through."""
        await create(world)
        process = Process("tool")
        failing = FailingCoordinator(world.service.door(process), calls, takes_effect=takes_effect)
        went_through = True
        for change in (adding(1), partial(remove_storage_node, node=node(1))):
            try:
                await change_placement(failing, change)
            except CoordinatorLostError:
                went_through = False
                break
        world.service.expire(process)  # with it goes its lock
        placement = await world.ask(read_placement)
        for name in placement.partitions:
            assert name in placement.groups
            assert name in placement.admin_ports
        if not placement.partitions:
            placement = await world.ask(change_placement, adding(1))
        assert [*placement.partitions] == [node(1)]
        return went_through

    calls = 0
    while not simulate(partial(story, calls=calls)):
        calls += 1
    assert calls > 10


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_change_cut_short_is_made_again_in_the_same_session(takes_effect: bool) -> None:
    """CM-24, CM-25: the session may have the lock already, and does not wait for itself."""

    async def story(world: World, calls: int) -> bool:
        """Return whether the change went through."""
        await create(world)
        door = world.service.door(Process("tool"))
        failing = FailingCoordinator(door, calls, takes_effect=takes_effect)
        went_through = True
        try:
            await change_placement(failing, adding(1))
        except CoordinatorLostError:
            went_through = False
            if not (await read_placement(door)).partitions:
                await change_placement(door, adding(1))
        await change_placement(door, adding(2))
        placement = await world.ask(read_placement)
        assert [*placement.partitions] == [node(1), node(2)]
        assert placement.groups.keys() == placement.admin_ports.keys() == {*placement.partitions}
        assert "adminLock" not in world.tree.children("/waltz/store")
        return went_through

    calls = 0
    while not simulate(partial(story, calls=calls)):
        calls += 1
    assert calls > 5


def test_there_is_nothing_to_change_where_there_is_no_cluster() -> None:
    """CM-19"""

    async def story(world: World) -> None:
        with pytest.raises(NoNodeError, match="there is no cluster at"):
            await world.ask(read_placement)

    simulate(story)


def test_the_directory_of_a_node_that_has_left_may_be_another_s() -> None:
    """CM-20, CX-03"""

    async def story(world: World) -> None:
        await create(world)
        directory = UUID(int=7)
        await world.ask(register_storage_directory, node(1), directory)
        with pytest.raises(ForeignDirectoryError, match=f"remove-storage -s {node(1)}"):
            await world.ask(register_storage_directory, node(2), directory)
        for _ in range(2):
            await world.ask(forget_storage_directory, node(1))
        await world.ask(register_storage_directory, node(2), directory)

    simulate(story)
