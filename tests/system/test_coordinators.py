"""What `host.Coordinator` promises, asked of all three: embedded, simulated, a real ZooKeeper."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.cluster.golden import golden_tree
from tests.cluster.simulated import FailingCoordinator
from tests.system.coordinators import (
    Play,
    Stage,
    answered,
    created,
    eventually,
    play_embedded,
    play_simulated,
    play_zookeeper,
)
from tests.zookeepers import RunningZooKeeper
from waltz.cluster.cluster_shell import (
    ClusterView,
    ServerMembership,
    StorageEntry,
    allocate_client_id,
    create_cluster,
)
from waltz.cluster.locking_shell import admin_lock
from waltz.cluster.placement_shell import change_placement
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.storage_placement import add_storage_node, assign_replicas
from waltz.errors import (
    CoordinationError,
    CoordinatorLostError,
    LocalProtocolError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from waltz.host import Coordinator, Host, Node
from waltz.types import Address, Generation, PartitionId, ReplicaId

_chroots = count()


@pytest.fixture(
    params=["embedded", "simulated", pytest.param("zookeeper", marks=pytest.mark.processes)]
)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    """Plays a story on one of the coordinators, with an empty tree."""
    if request.param == "embedded":
        return functools.partial(play_embedded, tmp_path / "coordinator.json")
    if request.param == "simulated":
        return play_simulated
    zookeeper: RunningZooKeeper = request.getfixturevalue("zookeeper")
    return functools.partial(play_zookeeper, zookeeper, f"/contract-{next(_chroots)}")


async def refused(call: Coroutine[Any, Any, object], error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        await call
    assert type(raised.value) is error


async def tree(coordinator: Coordinator, root: str) -> dict[str, Node]:
    """All nodes at and below `root`."""
    found = {root: await coordinator.read(root)}
    for name in await coordinator.children(root):
        found.update(await tree(coordinator, f"{root}/{name}"))
    return found


async def is_absent(coordinator: Coordinator, path: str) -> bool:
    try:
        await coordinator.read(path)
    except NoNodeError:
        return True
    return False


def test_a_node_has_data_and_versions(play: Play) -> None:
    """CM-02: none and empty differ, a child version counts creations and deletions."""

    async def story(stage: Stage) -> None:
        door = stage.host().coordinator
        assert await door.create("/a", b"1") == "/a"
        assert await door.create("/a/none", None) == "/a/none"
        assert await door.create("/a/empty", b"") == "/a/empty"
        assert await door.read("/a") == Node(b"1", 0, 2)
        assert await door.read("/a/none") == Node(None, 0, 0)
        assert await door.read("/a/empty") == Node(b"", 0, 0)
        assert await door.children("/a") == ["empty", "none"]
        assert await door.write("/a", b"2", version=0) == 1
        assert await door.write("/a", b"", version=-1) == 2
        await door.delete("/a/none", version=0)
        await door.delete("/a/empty")
        assert await door.read("/a") == Node(b"", 2, 4)
        assert await door.children("/") == ["a"]

    play(story)


def test_a_sequential_name_counts_what_was_ever_created_beside_it(play: Play) -> None:
    """CM-07: the names of server descriptors."""

    async def story(stage: Stage) -> None:
        door = stage.host().coordinator
        await door.create("/a", None)
        assert await door.create("/a/s_", b"", sequential=True) == "/a/s_0000000000"
        await door.create("/a/other", b"")
        await door.delete("/a/other")
        await door.delete("/a/s_0000000000")
        name = await door.create("/a/s_", b"", sequential=True, ephemeral=True)
        assert name == "/a/s_0000000002"
        assert await door.read("/a") == Node(None, 0, 5)

    play(story)


def test_what_cannot_be_done_is_refused_and_changes_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door = stage.host().coordinator
        await door.create("/a", b"1")
        await door.create("/a/b", b"")
        await door.create("/e", b"", ephemeral=True)
        before = await tree(door, "/a")
        for call, error in (
            (door.read("/b"), NoNodeError),
            (door.children("/b"), NoNodeError),
            (door.write("/b", b"", version=0), NoNodeError),
            (door.delete("/b"), NoNodeError),
            (door.create("/b/c", b""), NoNodeError),
            (door.create("/a", b""), NodeExistsError),
            (door.write("/a", b"", version=1), VersionConflictError),
            (door.delete("/a/b", version=4), VersionConflictError),
            (door.delete("/a"), CoordinationError),
            (door.create("/e/child", b""), CoordinationError),
            (door.create("/large", bytes(1024 * 1024 + 1)), CoordinationError),
            (door.write("/a", bytes(1024 * 1024 + 1), version=0), CoordinationError),
            (door.read("a"), LocalProtocolError),
            (door.create("/a/", b""), LocalProtocolError),
            (door.write("/a/../a", b"", version=0), LocalProtocolError),
            (door.delete("//a"), LocalProtocolError),
            (door.changed("", None), LocalProtocolError),
        ):
            await refused(call, error)
        assert await tree(door, "/a") == before

    play(story)


def test_compare_and_set_loses_no_increment(play: Play) -> None:
    """CM-26"""

    async def story(stage: Stage) -> None:
        doors = [stage.host().coordinator for _ in range(3)]
        await doors[0].create("/n", b"0")

        async def add(door: Coordinator) -> None:
            added = 0
            while added < 15:
                node = await door.read("/n")
                value = str(int(node.data or b"") + 1).encode()
                try:
                    await door.write("/n", value, version=node.version)
                except VersionConflictError:
                    continue
                added += 1

        await asyncio.gather(*map(add, doors))
        assert await doors[0].read("/n") == Node(b"45", 45, 0)

    play(story)


def test_a_change_is_told_by_level_and_by_edge(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        await other.create("/a", b"")
        first = Node(b"", 0, 0)
        await door.changed("/a", None)
        await door.changed("/absent", first)
        await door.changed("/a", Node(b"", 3, 0))

        async def told(change: Coroutine[Any, Any, object], path: str, seen: Node | None) -> None:
            waits = [asyncio.ensure_future(door.changed(path, seen)) for _ in range(2)]
            assert await door.children("/") is not None  # the waits hold nothing up
            assert not any(wait.done() for wait in waits)
            await change
            await asyncio.gather(*waits)

        await told(other.write("/a", b"1", version=0), "/a", first)
        await told(other.create("/a/c", None), "/a", await door.read("/a"))
        await told(other.delete("/a/c"), "/a", await door.read("/a"))
        await told(other.delete("/a"), "/a", await door.read("/a"))
        await told(other.create("/a", None), "/a", None)
        assert await door.read("/a") == Node(None, 0, 0)

    play(story)


def test_a_change_elsewhere_or_a_wait_given_up_tells_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door = stage.host().coordinator
        await door.create("/a", b"")
        await door.create("/a/b", b"")
        seen = await door.read("/a")
        given_up = asyncio.ensure_future(door.changed("/a", seen))
        waiting = asyncio.ensure_future(door.changed("/a", seen))
        await door.write("/a/b", b"1", version=0)
        given_up.cancel()
        await asyncio.wait([given_up])
        await door.create("/c", b"")
        assert not waiting.done()
        await door.write("/a", b"1", version=0)
        await waiting

    play(story)


def test_a_closed_session_takes_its_nodes_and_waits_at_once(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        await door.create("/e", b"", ephemeral=True)
        await door.create("/p", b"")
        assert await other.children("/") == ["e", "p"]
        gone = asyncio.ensure_future(other.changed("/e", await other.read("/e")))
        await door.close()
        await gone
        assert await other.children("/") == ["p"]
        for call in (door.read("/p"), door.create("/q", b""), door.changed("/q", None)):
            await refused(call, CoordinatorLostError)
        await door.close()

    play(story)


def test_closing_what_was_never_used_is_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door = stage.host().coordinator
        await door.close()
        await refused(door.read("/"), CoordinatorLostError)

    play(story)


def test_after_a_session_has_expired_another_begins_by_itself(play: Play) -> None:
    """CM-15, CM-27: the nodes of the old one are gone, waits go on or say that they are lost."""

    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        await door.create("/e", b"", ephemeral=True)
        seen = await other.read("/e")
        waiting = asyncio.ensure_future(answered(lambda: door.changed("/late", None)))
        await stage.expire(door)
        await other.changed("/e", seen)
        assert await other.children("/") == []
        await answered(lambda: door.create("/e", b"again", ephemeral=True))
        assert (await other.read("/e")).data == b"again"
        await other.create("/late", b"")
        await waiting

    play(story)


def test_the_mutex_of_an_expired_session_is_free(play: Play) -> None:
    """CM-24, CM-27"""

    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        for path in ("/r", "/r/store"):
            await door.create(path, None)
        held = asyncio.Event()
        locked = asyncio.Event()

        async def hold(coordinator: Coordinator, done: asyncio.Event) -> None:
            async with admin_lock(coordinator, root="/r"):
                held.set()
                await done.wait()

        first = asyncio.ensure_future(hold(door, locked))
        await held.wait()
        held.clear()
        second = asyncio.ensure_future(hold(other, locked))
        assert await door.children("/r/store") == ["adminLock"]
        assert not held.is_set()
        await stage.expire(door)
        await held.wait()
        locked.set()
        await second
        await asyncio.wait([first])

    play(story)


def test_a_session_knows_the_nodes_that_go_with_it(play: Play) -> None:
    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        await door.create("/e", None, ephemeral=True)
        await door.create("/p", None)
        assert (await door.read("/e")).is_own
        assert not (await other.read("/e")).is_own
        assert not (await door.read("/p")).is_own
        await stage.expire(door)
        await eventually(lambda: is_absent(other, "/e"))
        await created(door, "/e", None, ephemeral=True)
        assert (await answered(lambda: door.read("/e"))).is_own

    play(story)


def test_a_mutex_taken_by_a_call_whose_answer_was_lost_is_the_same_session_s(play: Play) -> None:
    """CM-24: another session waits for it all the same, and so does the same one for itself."""

    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        for path in ("/r", "/r/store"):
            await door.create(path, None)
        with pytest.raises(CoordinatorLostError):
            async with admin_lock(FailingCoordinator(door, 0, takes_effect=True), root="/r"):
                pass
        assert await other.children("/r/store") == ["adminLock"]
        inside: list[Coordinator] = []

        async def hold(coordinator: Coordinator) -> None:
            async with admin_lock(coordinator, root="/r"):
                assert not inside
                inside.append(coordinator)
                await coordinator.children("/r")
                inside.remove(coordinator)

        waiting = asyncio.ensure_future(hold(other))
        await asyncio.gather(hold(door), hold(door))
        await waiting
        assert await door.children("/r/store") == []

    play(story)


def test_an_outage_loses_no_answer_and_tells_in_bounded_time(play: Play) -> None:
    """CM-27: all works again by itself, and waits see what was changed meanwhile."""

    async def story(stage: Stage) -> None:
        door, other = stage.host().coordinator, stage.host().coordinator
        await door.create("/a", b"")
        for number in range(10):
            assert await door.write("/a", b"%d" % number, version=number) == number + 1
        await door.create("/a/s_", b"", sequential=True)
        before = await other.read("/a")
        early = asyncio.ensure_future(answered(lambda: other.changed("/a", before)))
        assert await other.read("/a") == before
        await stage.begin_outage()
        calls = [door.create("/b", b""), door.write("/a", b"x", version=10), door.delete("/a/s_")]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, CoordinatorLostError)
            assert outcome.may_be_written
        await refused(other.read("/a"), CoordinatorLostError)
        await stage.end_outage()
        assert await answered(lambda: door.read("/a")) == before
        assert await answered(lambda: door.children("/")) == ["a"]
        seen = await answered(lambda: other.read("/a"))
        late = asyncio.ensure_future(answered(lambda: other.changed("/a", seen)))
        assert await answered(lambda: other.read("/a")) == before
        assert not late.done()
        assert await answered(lambda: door.write("/a", b"x", version=10)) == 11
        await asyncio.gather(early, late)  # with its session, `early` may have ended before

    play(story)


# What is built on it


KEY = UUID("c9e0789e-63ae-41d1-8b53-48ffb21cd9b4")


def test_a_created_cluster_is_the_original_one_to_the_last_version(play: Play) -> None:
    """CM-02, CM-03, CM-05"""

    async def story(stage: Stage) -> None:
        door = stage.host().coordinator
        for root, name in (("/waltz_cluster", "golden"), ("/other/root", "other")):
            await create_cluster(
                door, name=name, partition_count=2, cluster_key=KEY, storages=[], root=root
            )
        golden = golden_tree("1-created")
        assert await tree(door, "/waltz_cluster") == golden
        assert len(await tree(door, "/other/root")) == len(golden)

    play(story)


def test_the_first_server_writes_what_the_original_writes(play: Play) -> None:
    """CM-07, CM-08: to the last byte and version."""

    async def story(stage: Stage) -> None:
        door, host = stage.host().coordinator, stage.host()
        root = "/waltz_cluster"
        await create_cluster(
            door, name="golden", partition_count=2, cluster_key=KEY, storages=[], root=root
        )
        told: list[dict[PartitionId, Generation]] = []
        server = ServerMembership(host, Address("localhost", 47210), told.append, root=root)
        await server.start()

        async def is_told() -> bool:
            return bool(told)

        await eventually(is_told)
        golden = golden_tree("3-server-up")
        for path in ("serverDescriptors", "serverDescriptors/s_0000000000", "ids", "ids/server"):
            path = f"{root}/{path}"
            assert await door.read(path) == golden[path]
        await server.stop()

    play(story)


def test_changes_of_storage_nodes_made_at_once_come_one_after_the_other(play: Play) -> None:
    """CM-16 to CM-19, CM-21, CM-24: to the values that the original has after them."""

    async def story(stage: Stage) -> None:
        doors = [stage.host().coordinator for _ in range(3)]
        root = "/waltz_cluster"
        await create_cluster(
            doors[0], name="golden", partition_count=2, cluster_key=KEY, storages=[], root=root
        )

        async def enter(number: int) -> None:
            door, port = doors[number - 1], 47300 + 10 * number
            replica_id = ReplicaId(f"vm:{port}")
            for change in (
                functools.partial(
                    add_storage_node,
                    address=Address("vm", port),
                    group=number,
                    admin_port=port + 1,
                ),
                functools.partial(
                    assign_replicas,
                    node=replica_id,
                    partition_ids=[PartitionId(0), PartitionId(1)],
                ),
            ):
                await change_placement(door, change, root=root)

        await asyncio.gather(*map(enter, (1, 2, 3)))
        golden = golden_tree("2-storages-assigned")
        for name, kind in (
            ("group", GroupDescriptor),
            ("assignment", ReplicaAssignments),
            ("connection", ConnectionMetadata),
        ):
            path = f"{root}/store/{name}"
            found = await doors[0].read(path)
            assert kind.decode(found.data or b"") == kind.decode(golden[path].data or b"")
        assert (await doors[0].read(f"{root}/store")).data == golden[f"{root}/store"].data
        assert await doors[0].children(f"{root}/store") == [
            "assignment", "connection", "group", "partition",
        ]  # fmt: skip

    play(story)


def test_clients_started_together_have_different_ids(play: Play) -> None:
    """CM-26, CS-07"""

    async def story(stage: Stage) -> None:
        doors = [stage.host().coordinator for _ in range(8)]
        await create_cluster(doors[0], name="test", partition_count=1, cluster_key=KEY, storages=[])
        found = await asyncio.gather(*(allocate_client_id(door) for door in doors * 3))
        assert sorted(found) == list(range(1, 25))

    play(story)


class Servers:
    """Two servers and a client of one cluster, and what they were told."""

    def __init__(self, stage: Stage) -> None:
        self.door = stage.host().coordinator
        self.hosts: dict[str, Host] = {name: stage.host() for name in ("one", "two")}
        self.view = ClusterView(stage.host())
        self.told: dict[str, dict[PartitionId, Generation]] = {}
        self.members = {
            name: ServerMembership(host, Address(name, 7000), functools.partial(self._tell, name))
            for name, host in self.hosts.items()
        }

    def _tell(self, name: str, found: dict[PartitionId, Generation]) -> None:
        self.told[name] = found

    async def start(self) -> None:
        await create_cluster(
            self.door,
            name="test",
            partition_count=4,
            cluster_key=KEY,
            storages=[StorageEntry(Address("h", 1), Address("h", 2))],
        )
        await self.view.start()
        for member in self.members.values():
            await member.start()
        await self.settled("one", "two")

    async def settled(self, *names: str) -> None:
        """Return once these serve all partitions, each told what the assignment says."""

        async def is_settled() -> bool:
            node = await self.door.read("/waltz/serverDescriptors")
            assignment = PartitionAssignment.decode(node.data or b"")
            members = {self.members[name].server_id: name for name in names}
            return (
                assignment.membership_version == node.child_version
                and set(assignment.servers) == set(members)
                and all(
                    dict(partitions) == self.told.get(members[server_id])
                    for server_id, partitions in assignment.servers.items()
                )
                and {address.host for address, _ in self.view.current.partitions.values()}
                == set(names)
            )

        await eventually(is_settled)

    async def stop(self) -> None:
        for member in self.members.values():
            await member.stop()
        await self.view.stop()


def test_an_expired_server_comes_back_with_its_id(play: Play) -> None:
    """CM-08, CM-11, CM-15: also the one that computes the assignment for all."""

    async def story(stage: Stage) -> None:
        servers = Servers(stage)
        await servers.start()
        for name in ("one", "two"):
            member = servers.members[name]
            before, server_id = servers.told[name], member.server_id
            await stage.expire(servers.hosts[name].coordinator)
            await eventually(functools.partial(has_left, servers.door, server_id, before))
            await servers.settled("one", "two")
            assert member.server_id == server_id
        await servers.members["one"].stop()
        await servers.settled("two")
        await servers.stop()

    async def has_left(
        door: Coordinator, server_id: int | None, before: dict[PartitionId, Generation]
    ) -> bool:
        """Whether the assignment has been computed anew since."""
        node = await door.read("/waltz/serverDescriptors")
        now = PartitionAssignment.decode(node.data or b"").servers
        return any(
            dict(partitions) != before for sid, partitions in now.items() if sid == server_id
        )

    play(story)


def test_servers_and_clients_outlive_an_outage(play: Play) -> None:
    """CM-14, CM-15, CM-27: nothing that is served changes while nobody answers."""

    async def story(stage: Stage) -> None:
        servers = Servers(stage)
        await servers.start()
        before, view = dict(servers.told), servers.view.current
        await stage.begin_outage()
        await refused(servers.door.read("/waltz"), CoordinatorLostError)
        assert (servers.told, servers.view.current) == (before, view)
        await stage.end_outage()
        await servers.settled("one", "two")
        await servers.members["two"].stop()
        # As its process does: it may not have reached the coordinator again to say that it goes.
        await servers.hosts["two"].coordinator.close()
        await servers.settled("one")
        await servers.stop()

    play(story)
