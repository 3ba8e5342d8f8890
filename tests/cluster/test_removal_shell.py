"""A cluster is taken out of the coordinator, as a whole or again (CM-04)."""

from __future__ import annotations

import contextlib
from functools import partial

import pytest

from tests.cluster.simulated import KEY, FailingCoordinator, World, simulate
from waltz.cluster.cluster_shell import (
    ServerMembership,
    StorageEntry,
    create_cluster,
    read_cluster_params,
)
from waltz.cluster.policy_node_shell import write_policy_node
from waltz.cluster.removal_shell import remove_cluster
from waltz.cluster.store_params import ClusterParams
from waltz.errors import ConfigurationError, CoordinatorLostError, NoNodeError
from waltz.host import Coordinator, Host
from waltz.sim.loop import Process
from waltz.types import Address

ROOT = "/prod/waltz"


async def create(world: World, root: str = ROOT) -> None:
    await world.ask(
        create_cluster,
        name="prod",
        partition_count=2,
        cluster_key=KEY,
        storages=[StorageEntry(Address("s", 1), Address("s", 2))],
        root=root,
    )


def test_a_cluster_is_removed_with_all_that_is_its_own() -> None:
    """CM-04, CM-05: another one in the same ZooKeeper stays."""

    async def story(world: World) -> None:
        await create(world)
        await create(world, "/other")
        before = world.nodes("/other")
        removed = await world.ask(remove_cluster, name="prod", root=ROOT)
        assert removed == ClusterParams("prod", 2)
        assert world.tree.children("/") == ["other", "prod"]
        assert world.tree.children("/prod") == []
        assert world.nodes("/other") == before
        with pytest.raises(NoNodeError, match="there is no cluster at /prod/waltz"):
            await world.ask(remove_cluster, name=None, root=ROOT)
        await create(world)

    simulate(story)


def test_a_cluster_with_a_policy_and_a_cut_is_removed_with_them() -> None:
    async def story(world: World) -> None:
        await create(world)

        async def write(coordinator: Coordinator) -> None:
            await coordinator.create(f"{ROOT}/cut", b"1")
            assert await write_policy_node(coordinator, ROOT, b"version: 1", over=None)

        await world.ask(write)
        await world.ask(remove_cluster, name="prod", root=ROOT)
        assert world.tree.children("/prod") == []

    simulate(story)


def test_another_name_is_refused_unless_forced() -> None:
    """CM-04, TL-03"""

    async def story(world: World) -> None:
        await create(world)
        before = world.nodes(ROOT)
        with pytest.raises(ConfigurationError, match="is called 'prod', not 'test'"):
            await world.ask(remove_cluster, name="test", root=ROOT)
        assert world.nodes(ROOT) == before
        await world.ask(remove_cluster, name=None, root=ROOT)
        assert world.tree.children("/prod") == []

    simulate(story)


def test_a_cluster_in_a_cluster_is_not_removed_with_it() -> None:
    async def story(world: World) -> None:
        await create(world)
        await create(world, f"{ROOT}/inner")
        with pytest.raises(ConfigurationError, match="or of another one: inner"):
            await world.ask(remove_cluster, name="prod", root=ROOT)
        await world.ask(remove_cluster, name="prod", root=f"{ROOT}/inner")
        await world.ask(remove_cluster, name="prod", root=ROOT)

    simulate(story)


@pytest.mark.parametrize("seed", range(10))
def test_a_cluster_with_running_servers_is_removed_only_by_force(seed: int) -> None:
    """CM-04: the server registers again and again meanwhile."""

    async def story(world: World) -> None:
        await create(world)

        async def serve(host: Host) -> None:
            membership = ServerMembership(host, Address("v", 1), lambda _: None, root=ROOT)
            await membership.start()
            await world.loop.create_future()

        server = world.start(serve, "server")
        descriptors = f"{ROOT}/serverDescriptors"
        while not world.tree.children(descriptors):
            await world.run(lambda host: host.workers.run_blocking(lambda: None))
        with pytest.raises(ConfigurationError, match="servers of cluster 'prod' are running"):
            await world.ask(remove_cluster, name="prod", root=ROOT)
        await world.ask(remove_cluster, name=None, root=ROOT)
        assert world.tree.children("/prod") == []
        world.kill(server)

    simulate(story, seed)


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_removal_cut_short_anywhere_can_be_made_again(takes_effect: bool) -> None:
    async def story(world: World, calls: int) -> bool:
        """Return whether the removal went through."""
        await create(world)
        process = Process("tool")
        failing = FailingCoordinator(world.service.door(process), calls, takes_effect=takes_effect)
        try:
            await remove_cluster(failing, name="prod", root=ROOT)
        except CoordinatorLostError:
            world.service.expire(process)
            with contextlib.suppress(NoNodeError):  # the last deletion may have taken effect
                assert (await world.ask(read_cluster_params, ROOT)).name == "prod"
                await world.ask(remove_cluster, name="prod", root=ROOT)
            assert world.tree.children("/prod") == []
            return False
        return True

    calls = 0
    while not simulate(partial(story, calls=calls)):
        calls += 1
    assert calls > 20
