"""Faults of foreign processes and operators change the nodes of the coordinator."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.cluster.simulated import World, create, settled, simulate
from tests.sim import struck_machines
from waltz.cluster.cluster_shell import ServerMembership
from waltz.cluster.partition_metadata import PartitionMetadata, ReplicaState
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.store_params import decode_counter
from waltz.errors import CoordinatorLostError
from waltz.host import ANY_VERSION, Coordinator, Host, Node
from waltz.sim.faults.coordinator_strikes import (
    number_entries,
    partition_entries,
    put_back,
    rewrite,
)
from waltz.sim.faults.kinds import (
    CoordinatorOutage,
    CoordinatorSlowness,
    Fault,
    ForeignWrites,
    Isolation,
    LostAnswers,
    SessionLoss,
    count_of,
)
from waltz.sim.loop import Process
from waltz.sim.simulated_disk import SimulatedDisk
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


# Processes that ask meanwhile


def on_coordinator(fault: Fault, expected: str) -> None:
    """Check what becomes of the calls that a process makes meanwhile."""

    async def scene(world: struck_machines.World) -> None:
        outcomes: set[str] = set()

        async def main(host: Host) -> None:
            coordinator = host.coordinator
            await coordinator.create("/own", b"", ephemeral=True)
            while not done.is_set():
                before = world.loop.time()
                try:
                    children = await coordinator.children("/")
                    version = (await coordinator.read("/shared")).version
                    if "own" not in children:
                        outcomes.add("session lost")
                    if version:
                        outcomes.add("changed")
                except CoordinatorLostError:
                    outcomes.add("lost")
                if world.loop.time() - before > 5.0:
                    outcomes.add("slow")
                await asyncio.sleep(0.1)

        done = asyncio.Event()
        world.sites.coordinator.tree.create("/shared", b"")
        world.sites.add("user", main, SimulatedDisk(), may_end=True)
        await asyncio.sleep(1.0)
        await world.strike(fault)
        await asyncio.sleep(10.0)
        assert expected in outcomes
        await asyncio.sleep(30.0)
        outcomes.clear()
        await asyncio.sleep(5.0)
        assert outcomes <= {"session lost", "changed"}
        assert world.strikes.record.counts.total() == count_of(fault)
        done.set()

    struck_machines.play(scene, seeds=3)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (SessionLoss(progress=0.0, name="user"), "session lost"),
        (CoordinatorOutage(progress=0.0, seconds=20.0), "lost"),
        (CoordinatorSlowness(progress=0.0, seconds=50.0, slowest_seconds=10.0), "slow"),
        (LostAnswers(progress=0.0, seconds=20.0, share=0.9), "lost"),
        (ForeignWrites(progress=0.0, choices=(0.1, 0.9), pause_seconds=1.0), "changed"),
        (
            Isolation(
                progress=0.0,
                name="user",
                others=(),
                with_coordinator=True,
                seconds=1.0,
                session_ended=True,
            ),
            "session lost",
        ),
    ],
)
def test_coordinators_give_trouble_of_each_kind(fault: Fault, expected: str) -> None:
    on_coordinator(fault, expected)
