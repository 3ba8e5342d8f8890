"""Creating a cluster, reading what is known of it, and its storage directories, in simulated worlds
drawn from seeds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from tests.cluster.golden import golden_tree
from tests.cluster.simulated import KEY, FailingCoordinator, World, create, simulate
from waltz.cluster.cluster_shell import (
    ClusterView,
    StorageEntry,
    allocate_client_id,
    allocate_server_id,
    read_cluster_params,
    read_connection_metadata,
    read_partition_metadata,
    read_replica_assignments,
    read_store_params,
    register_storage_directory,
)
from waltz.cluster.partition_metadata import NEW_PARTITION
from waltz.cluster.replica_assignments import GroupDescriptor
from waltz.cluster.store_params import ClusterParams, StoreParams
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
    ForeignDirectoryError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from waltz.host import Coordinator, Host
from waltz.sim.loop import Process
from waltz.types import Address, PartitionId, ReplicaId

SEEDS = range(20)


def test_a_created_cluster_is_the_original_one_to_the_last_version() -> None:
    """CM-02, CM-03"""

    async def story(world: World) -> None:
        await world.ask(create, root="/waltz_cluster", storages=[])
        assert world.nodes("/waltz_cluster") == golden_tree("1-created")

    simulate(story)


def test_storage_nodes_are_entered_with_all_partitions() -> None:
    """CM-16, CM-17, CM-18: what the original has after adding and assigning three of them."""

    async def main(host: Host) -> None:
        await create(host.coordinator)
        assert await read_cluster_params(host.coordinator) == ClusterParams("golden", 2)
        assert await read_store_params(host.coordinator) == StoreParams(KEY, 2)
        replica_ids = ["vm:47310", "vm:47320", "vm:47330"]
        assignments = await read_replica_assignments(host.coordinator)
        assert assignments == dict.fromkeys(replica_ids, (0, 1))
        ports = await read_connection_metadata(host.coordinator)
        assert ports == {"vm:47310": 47311, "vm:47320": 47321, "vm:47330": 47331}

    async def story(world: World) -> None:
        await world.run(main)
        data = world.tree.read("/waltz/store/group").data or b""
        golden = golden_tree("2-storages-assigned")["/waltz_cluster/store/group"].data or b""
        assert GroupDescriptor.decode(data) == GroupDescriptor.decode(golden)

    simulate(story)


def test_a_second_creation_is_refused_and_changes_nothing() -> None:
    """CM-03"""

    async def story(world: World) -> None:
        await world.ask(create)
        before = world.nodes("/waltz")
        for name in ("golden", "other"):
            with pytest.raises(NodeExistsError, match="golden"):
                await world.ask(create, name=name)
        assert world.nodes("/waltz") == before

    simulate(story)


def test_several_clusters_share_one_coordinator() -> None:
    """CM-05"""

    async def story(world: World) -> None:
        await world.ask(create, root="/a/b")
        before = world.nodes("/a/b")
        await world.ask(create, root="/a/c")
        assert await world.ask(allocate_client_id, "/a/c") == 1
        assert world.nodes("/a/b") == before

    simulate(story)


def test_an_admin_port_on_another_host_cannot_be_kept() -> None:
    async def story(world: World) -> None:
        storages = [StorageEntry(Address("one", 1), Address("two", 1))]
        with pytest.raises(ConfigurationError, match="same host"):
            await world.ask(create, storages=storages)
        assert world.tree.children("/") == []

    simulate(story)


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_creation_cut_short_anywhere_can_be_run_again(takes_effect: bool) -> None:
    """CM-25: half a cluster is never taken for one."""

    def values(world: World, root: str) -> dict[str, bytes | None]:
        return {path.removeprefix(root): n.data for path, n in world.nodes(root).items()}

    async def cut(world: World, root: str, calls: int) -> bool:
        """Create with a coordinator that is lost after `calls`; return whether it was needed."""
        process = Process("creator")
        failing = FailingCoordinator(world.service.door(process), calls, takes_effect=takes_effect)
        try:
            await create(failing, root=root)
        except CoordinatorLostError:
            return True
        finally:
            world.service.expire(process)
        return False

    async def story(world: World) -> None:
        await world.ask(create, root="/whole")
        calls = 0
        while await cut(world, root := f"/cut{calls}", calls):
            try:
                await world.ask(read_store_params, root)
            except NoNodeError:
                await world.ask(create, root=root)
            else:
                with pytest.raises(NodeExistsError):
                    await world.ask(create, root=root)
            assert values(world, root) == values(world, "/whole")
            calls += 1
        assert calls > 30

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_creations_at_once_at_most_one_succeeds_and_its_cluster_stands(seed: int) -> None:
    async def story(world: World) -> None:
        async def attempt(number: int) -> int | None:
            storages = [StorageEntry(Address(f"s{number}", 1), Address(f"s{number}", 2))]
            key = UUID(int=number)
            try:
                await world.ask(create, cluster_key=key, storages=storages)
            except (NodeExistsError, VersionConflictError):
                return None
            return number

        winners = [n for n in await asyncio.gather(attempt(1), attempt(2)) if n is not None]
        assert len(winners) <= 1
        for number in winners:
            params = await world.ask(read_store_params)
            assert params.cluster_key == UUID(int=number)
            replicas = await world.ask(read_replica_assignments)
            assert list(replicas) == [f"s{number}:1"]

    simulate(story, seed)


def test_nothing_is_read_where_there_is_no_cluster() -> None:
    async def story(world: World) -> None:
        calls: list[Callable[[Coordinator], Coroutine[Any, Any, Any]]] = [
            read_cluster_params,
            read_store_params,
            read_replica_assignments,
            read_connection_metadata,
            allocate_client_id,
            allocate_server_id,
        ]
        for call in calls:
            with pytest.raises(NoNodeError, match="no cluster at /waltz"):
                await world.ask(call)

        async def view(host: Host) -> None:
            await ClusterView(host).start()

        with pytest.raises(NoNodeError):
            await world.run(view)

    simulate(story)


def test_partition_metadata_is_read_once_it_is_there() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        zero = PartitionId(0)
        with pytest.raises(NoNodeError):
            await world.ask(read_partition_metadata, zero)
        world.tree.create("/waltz/store/partition/0", NEW_PARTITION.encode(zero))
        found = await world.ask(read_partition_metadata, zero)
        assert found == NEW_PARTITION

    simulate(story)


@pytest.mark.parametrize("seed", range(3))
def test_fifty_clients_started_together_have_fifty_ids(seed: int) -> None:
    """CS-07, CM-26"""

    async def story(world: World) -> None:
        await world.ask(create)
        calls = [world.ask(allocate_client_id) for _ in range(50)]
        found = await asyncio.gather(*calls)
        assert sorted(found) == list(range(1, 51))
        assert await world.ask(allocate_server_id) == 1

    simulate(story, seed)


# Storage directories

ONE, TWO = ReplicaId("vm:47310"), ReplicaId("vm:47320")
FIRST, SECOND = UUID(int=1), UUID(int=2)


def registered(world: World) -> dict[str, str]:
    path = "/waltz/storageDirectories"
    data = {name: world.tree.read(f"{path}/{name}").data for name in world.tree.children(path)}
    return {name: (value or b"").decode() for name, value in data.items()}


def test_a_storage_node_registers_its_directory_and_may_come_back() -> None:
    """CX-03: the replica ID is the connect string; what it stands for is the directory."""

    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(register_storage_directory, ONE, FIRST)
        await world.ask(register_storage_directory, TWO, SECOND)
        assert registered(world) == {ONE: str(FIRST), TWO: str(SECOND)}
        before = world.nodes("/waltz/storageDirectories")
        await world.ask(register_storage_directory, ONE, FIRST)
        assert world.nodes("/waltz/storageDirectories") == before

    simulate(story)


def test_a_directory_that_was_moved_or_copied_is_refused() -> None:
    """CX-03, I11: two nodes with one directory would count one replica twice. Naming both, and what
    to do about it."""

    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(register_storage_directory, ONE, FIRST)
        before = world.nodes("/waltz/storageDirectories")
        with pytest.raises(ForeignDirectoryError) as refusal:
            await world.ask(register_storage_directory, TWO, FIRST)
        for fact in (str(FIRST), ONE, TWO, f"/waltz/storageDirectories/{ONE}", "moved or copied"):
            assert fact in str(refusal.value)
        assert world.nodes("/waltz/storageDirectories") == before
        world.tree.delete(f"/waltz/storageDirectories/{ONE}")
        await world.ask(register_storage_directory, TWO, FIRST)
        assert registered(world) == {TWO: str(FIRST)}

    simulate(story)


def test_another_directory_at_an_address_is_noted_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A blank disk, or one restored from elsewhere: it is told apart by what it has missed."""

    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(register_storage_directory, ONE, FIRST)
        await world.ask(register_storage_directory, ONE, SECOND)
        assert registered(world) == {ONE: str(SECOND)}

    simulate(story)
    assert f"storage_directory_replaced replica={ONE} was={FIRST} now={SECOND}" in caplog.text


@pytest.mark.parametrize("seed", SEEDS)
def test_of_two_copies_started_at_once_one_is_refused(seed: int) -> None:
    """CX-03"""
    outcomes: list[str] = []

    async def register(host: Host, replica_id: ReplicaId) -> None:
        try:
            await register_storage_directory(host.coordinator, replica_id, FIRST)
        except ForeignDirectoryError:
            outcomes.append("refused")
        else:
            outcomes.append("registered")

    async def story(world: World) -> None:
        await world.ask(create)
        await asyncio.gather(
            *(world.run(lambda host, r=r: register(host, r), r) for r in (ONE, TWO))  # type: ignore[misc]
        )
        assert sorted(outcomes) == ["refused", "registered"]
        assert list(registered(world).values()) == [str(FIRST)]

    simulate(story, seed)


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_registration_cut_short_anywhere_can_be_run_again(takes_effect: bool) -> None:
    async def cut(world: World, calls: int) -> bool:
        process = Process("node")
        failing = FailingCoordinator(world.service.door(process), calls, takes_effect=takes_effect)
        try:
            await register_storage_directory(failing, ONE, UUID(int=calls))
        except CoordinatorLostError:
            return True
        finally:
            world.service.expire(process)
        return False

    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(register_storage_directory, TWO, UUID(int=1000))
        calls = 0
        while await cut(world, calls):
            await world.ask(register_storage_directory, ONE, UUID(int=calls))
            assert registered(world) == {ONE: str(UUID(int=calls)), TWO: str(UUID(int=1000))}
            calls += 1
        assert calls > 4

    simulate(story)


def test_a_directory_cannot_be_registered_where_there_is_no_cluster() -> None:
    async def story(world: World) -> None:
        with pytest.raises(NoNodeError):
            await world.ask(register_storage_directory, ONE, FIRST)

    simulate(story)
