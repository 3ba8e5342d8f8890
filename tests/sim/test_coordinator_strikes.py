"""Faults of foreign processes and operators change the nodes of the coordinator."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.cluster.simulated import World, create, settled, simulate
from waltz.cluster.cluster_shell import ServerMembership
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.store_params import decode_counter
from waltz.host import ANY_VERSION, Coordinator, Host, Node
from waltz.sim.faults.coordinator_strikes import (
    number_entries,
    partition_entries,
    put_back,
    rewrite,
)
from waltz.sim.loop import Process
from waltz.types import Address, Generation, PartitionId, ReplicaId, SessionId

PATHS: Final = ClusterPaths()
ONE: Final = PartitionId(1)


def test_foreign_writes_change_versions_and_nothing_else() -> None:
    async def story(world: World) -> None:
        service = world.service
        assert rewrite(service, 0.5) is None
        door = service.door(Process("one"))
        for path in ("/a", "/a/b", "/c"):
            await door.create(path, None if path == "/a" else path.encode())
        waiting = asyncio.ensure_future(door.changed("/c", await door.read("/c")))
        assert [rewrite(service, choice) for choice in (0.0, 0.7, 1.0)] == ["/a/b", "/c", "/c"]
        await waiting
        assert await door.read("/c") == Node(b"/c", 2, 0)

    simulate(story)


async def write_session(coordinator: Coordinator, number: int, opened: int) -> None:
    """Write the metadata of a partition whose last session is `number`, where `opened` was the last
    one that opened."""
    states = {ReplicaId("storage-0:7000"): ReplicaState(SessionId(opened), None)}
    metadata = PartitionMetadata(Generation(1), SessionId(number), states)
    path = PATHS.partition_metadata(ONE)
    await coordinator.write(path, metadata.encode(ONE), version=ANY_VERSION)


async def register(world: World, name: str) -> None:
    """Let a server take an ID, register and deal out partitions; it dies then."""

    async def main(host: Host) -> None:
        await ServerMembership(host, Address(name, 1), lambda _: None).start()

    server = world.start(main, name)
    await settled(2)
    world.kill(server)


async def copied(world: World) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return a backup from a cluster that has had one server, and a partition with session 3."""
    await world.ask(create)
    await register(world, "one")
    door = world.service.door(Process("operator"))
    await door.create(PATHS.partition_metadata(ONE), None)
    await world.ask(write_session, 3, 3)
    return partition_entries(world.tree), number_entries(world.tree)


def last_server_id(world: World) -> int:
    return decode_counter(world.tree.read(PATHS.server_id_counter).data or b"")


def test_a_backup_is_put_back_only_if_a_session_has_opened_since() -> None:
    async def story(world: World) -> None:
        backup = await copied(world)
        await world.ask(write_session, 4, 3)
        assert put_back(world.service, *backup) == []
        await world.ask(write_session, 4, 4)
        assert put_back(world.service, *backup) == [PATHS.partition_metadata(ONE)]

    simulate(story)


def test_a_backup_that_is_put_back_has_no_descriptor_of_a_later_server() -> None:
    async def story(world: World) -> None:
        backup = await copied(world)
        await register(world, "two")
        await world.ask(write_session, 4, 4)
        assert last_server_id(world) == 2
        assert world.tree.children(PATHS.server_descriptors)[-1] == "s_0000000001"
        assert put_back(world.service, *backup) == [PATHS.partition_metadata(ONE)]
        assert last_server_id(world) == 1
        assert world.tree.children(PATHS.server_descriptors) == []

    simulate(story)
