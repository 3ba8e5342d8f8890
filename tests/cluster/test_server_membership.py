"""Servers join a cluster, share its partitions and are followed, in simulated worlds drawn from
seeds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.cluster.golden import golden_tree
from tests.cluster.simulated import KEY, FailingCoordinator, World, create, settled, simulate
from waltz.cluster.cluster_shell import (
    ClusterSnapshot,
    ClusterView,
    ServerMembership,
)
from waltz.cluster.growing_shell import begin_growth, deal_out, finish_growth
from waltz.cluster.server_assignment import PartitionAssignment, ServerDescriptor
from waltz.cluster.store_params import StoreParams
from waltz.errors import (
    ConfigurationError,
    CoordinatorLostError,
)
from waltz.host import Host
from waltz.sim.loop import Process
from waltz.types import Address, Generation, PartitionId

SEEDS = range(20)


class Servers:
    """Servers of one world, and what each of them was told last."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: dict[str, dict[PartitionId, Generation]] = {}
        self.memberships: dict[str, ServerMembership] = {}

    def start(self, name: str, *, preferred: tuple[int, ...] = ()) -> Process:
        async def main(host: Host) -> None:
            def tell(assigned: dict[PartitionId, Generation]) -> None:
                for partition_id, generation in assigned.items():
                    assert generation >= self.told.get(name, {}).get(partition_id, 0)
                self.told[name] = assigned

            membership = ServerMembership(
                host,
                Address(name, 7000),
                tell,
                preferred_partitions=tuple(map(PartitionId, preferred)),
            )
            self.memberships[name] = membership
            await membership.start()

        return self.world.start(main, name)

    def owners(self) -> dict[PartitionId, str]:
        found: dict[PartitionId, str] = {}
        for name, assigned in sorted(self.told.items()):
            for partition_id in assigned:
                assert partition_id not in found, "one server per partition"
                found[partition_id] = name
        return found

    def assignment(self) -> PartitionAssignment:
        """The current assignment; it must fit the membership."""
        node = self.world.tree.read("/waltz/serverDescriptors")
        found = PartitionAssignment.decode(node.data or b"")
        assert found.membership_version == node.child_version
        return found


def test_the_first_server_writes_what_the_original_writes() -> None:
    """CM-07, CM-08: to the last byte and version."""

    async def main(host: Host) -> None:
        server = ServerMembership(
            host, Address("localhost", 47210), lambda _: None, root="/waltz_cluster"
        )
        await server.start()
        await settled()
        assert server.server_id == 1

    async def story(world: World) -> None:
        await world.ask(create, root="/waltz_cluster", storages=[])
        world.start(main, "server")
        await settled(5)
        golden = golden_tree("3-server-up")
        for path in ("serverDescriptors", "serverDescriptors/s_0000000000", "ids", "ids/server"):
            path = f"/waltz_cluster/{path}"
            assert world.tree.read(path) == golden[path]

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_servers_share_the_partitions_and_take_over_from_the_dead(seed: int) -> None:
    """CM-08, CM-11, CM-30: also when the dead one was the coordinator."""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        one = servers.start("one")
        await settled(2)
        assert servers.told["one"] == {0: 1, 1: 1}
        servers.start("two")
        await settled(2)
        assert {len(held) for held in servers.told.values()} == {1}
        moved = next(iter(servers.told["two"].items()))
        assert moved[1] == 2
        world.kill(one)
        del servers.told["one"]
        await settled()
        assert servers.told["two"] == {moved[0]: 2, 1 - moved[0]: 2}
        assert list(servers.assignment().servers) == [2]

    simulate(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_servers_started_together_agree(seed: int) -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        for name in ("one", "two", "three"):
            servers.start(name)
        await settled(5)
        assert servers.owners().keys() == {0, 1}
        assert sorted(servers.assignment().servers) == [1, 2, 3]

    simulate(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_server_returns_with_its_id_after_its_session_was_lost(seed: int) -> None:
    """CM-15, SV-29; while it is cut off it keeps what it serves, fencing is the store's."""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        processes = {name: servers.start(name) for name in ("one", "two")}
        await settled(5)
        before = servers.memberships["one"].server_id
        generations = {
            p: g for held in servers.assignment().servers.values() for p, g in held.items()
        }
        world.service.lose(processes["one"])
        told = servers.told["one"]
        await settled()
        assert servers.told["one"] == told
        assert set(servers.told["two"]) == {0, 1}
        world.service.heal(processes["one"])
        await settled()
        assert servers.memberships["one"].server_id == before
        assert servers.owners().keys() == {0, 1}
        assert {len(held) for held in servers.told.values()} == {1}
        for held in servers.assignment().servers.values():
            assert all(generation > generations[p] - 1 for p, generation in held.items())

    simulate(story, seed)


def test_a_session_that_ends_unseen_is_replaced_at_once() -> None:
    """CM-27"""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        process = servers.start("one")
        await settled(2)
        world.service.expire(process)
        await settled(2)
        assert world.tree.children("/waltz/serverDescriptors") == ["s_0000000001"]
        assert servers.told["one"] == {0: 1, 1: 1}
        assert servers.assignment().membership_version == 3

    simulate(story)


def test_a_server_that_stops_leaves_at_once() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        servers.start("one")
        servers.start("two")
        await settled(2)
        await servers.memberships["one"].stop()
        await servers.memberships["one"].stop()
        await settled(1)
        assert servers.told["two"].keys() == {0, 1}

    simulate(story)


def test_preferred_partitions_are_given() -> None:
    """CM-07, CM-09"""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        servers.start("two", preferred=(0,))
        await settled(2)
        assert servers.told["two"] == {0: 2}

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_preferences_changed_at_once_are_all_in_force_and_move_nothing_else(seed: int) -> None:
    """SV-25, H9, H10: where the original spins for ever, or answers for another request."""

    async def story(world: World) -> None:
        await world.ask(partial(create, partition_count=6))
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        servers.start("two")
        await settled(2)
        before = {name: dict(told) for name, told in servers.told.items()}
        moving, other, *_ = before["one"]
        two = servers.memberships["two"]
        answers: list[bool] = []

        async def change(add: tuple[PartitionId, ...], remove: tuple[PartitionId, ...]) -> None:
            answers.append(await two.prefer(add=add, remove=remove))

        changes = [
            asyncio.create_task(change((moving,), ())),
            asyncio.create_task(change((other,), ())),
            asyncio.create_task(change((PartitionId(6),), ())),
            asyncio.create_task(change((), ())),
        ]
        await asyncio.gather(*changes)
        await change((), (other,))
        assert sorted(answers) == [False, True, True, True, True]
        await settled(5)
        assert two.preferred_partitions == (moving,)
        assert servers.told["two"][moving] == 2
        for partition_id, generation in before["two"].items():
            if partition_id in servers.told["two"]:
                assert servers.told["two"][partition_id] == generation, "it never went away"
        assert len(world.tree.children("/waltz/serverDescriptors")) == 2
        assert len(servers.owners()) == 6

    simulate(story, seed)


def test_preference_outlives_its_server() -> None:
    """SV-25, CX-14: the original forgets it."""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        process = servers.start("two")
        await settled(2)
        assert await servers.memberships["two"].prefer(add=[PartitionId(0), PartitionId(1)])
        await settled(5)
        assert servers.told["two"].keys() == {0, 1}
        world.kill(process)
        await settled()
        assert servers.told["one"].keys() == {0, 1}
        servers.start("two")
        await settled(5)
        assert servers.memberships["two"].preferred_partitions == (0, 1)
        assert servers.owners() == {0: "two", 1: "two"}

    simulate(story)


def test_a_preference_that_was_cut_short_comes_into_force_when_asked_again() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        answers: list[object] = []
        memberships: list[ServerMembership] = []

        async def main(host: Host) -> None:
            for failing in range(6):
                losing = FailsOnce(host.coordinator, 1000, takes_effect=True)
                membership = ServerMembership(
                    replace(host, coordinator=losing),
                    Address("one", 7000 + failing),
                    answers.append,
                )
                await membership.start()
                await settled(2)
                losing._calls_left = failing
                with contextlib.suppress(CoordinatorLostError):
                    await membership.prefer(add=[PartitionId(1)])
                assert await membership.prefer(add=[PartitionId(1)])
                memberships.append(membership)
                await settled(2)
                await membership.stop()

        process = world.start(main, "one")
        await settled(100)
        assert not process.dead
        assert len(memberships) == 6
        assert world.tree.children("/waltz/serverDescriptors") == []

    simulate(story)


def test_contradicting_parameters_stop_a_server() -> None:
    """SV-01: both numbers are named."""

    async def story(world: World) -> None:
        await world.ask(create)
        world.tree.write("/waltz/store", StoreParams(KEY, 1).encode(), version=-1)

        async def main(host: Host) -> None:
            await ServerMembership(host, Address("one", 7000), lambda _: None).start()

        with pytest.raises(ConfigurationError, match="2 partitions, its store 1"):
            await world.run(main)

    simulate(story)


def test_partitions_that_are_half_added_keep_no_server_from_starting() -> None:
    """The store parameters are ahead; the server has the partitions that the cluster has."""

    async def story(world: World) -> None:
        await world.ask(create)
        world.tree.write("/waltz/store", StoreParams(KEY, 5).encode(), version=-1)
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        assert servers.told["one"] == {0: 1, 1: 1}

    simulate(story)


def test_running_servers_follow_an_assignment_with_more_partitions() -> None:
    """And deal that many out from then on, the one that learned of them too; never fewer again."""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        one = servers.start("one")
        await settled(2)
        servers.start("two")
        await settled(2)

        async def grow(host: Host) -> bool:
            await finish_growth(host.coordinator, 5)
            return await deal_out(host.coordinator, 5)

        assert await world.run(grow)
        await settled(2)
        both = {**servers.told["one"], **servers.told["two"]}
        assert sorted(both) == [0, 1, 2, 3, 4]
        assert all(both[PartitionId(number)] == 1 for number in (2, 3, 4))
        world.kill(one)
        await settled(60)
        assert sorted(servers.told["two"]) == [0, 1, 2, 3, 4]

    simulate(story)


def test_a_server_that_starts_after_a_growth_was_cut_short_deals_the_rest_out() -> None:
    """The cluster parameters are written, the assignment is not."""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        one = servers.start("one")
        await settled(2)
        await world.ask(begin_growth, 5)
        await world.ask(finish_growth, 5)
        await settled(2)
        assert sorted(servers.told["one"]) == [0, 1], "it has not noticed"
        world.kill(one)
        servers.start("two")
        await settled(60)
        assert sorted(servers.told["two"]) == [0, 1, 2, 3, 4]

    simulate(story)


def test_a_node_that_is_no_descriptor_is_passed_over() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        world.tree.create("/waltz/serverDescriptors/bad", b"\0")
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        assert servers.told["one"] == {0: 1, 1: 1}

    simulate(story)


def test_an_assignment_that_cannot_be_continued_is_left_alone() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        broken = PartitionAssignment(0, 2, {}).encode()
        world.tree.write("/waltz/serverDescriptors", broken, version=-1)
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        assert servers.told == {}
        assert world.tree.read("/waltz/serverDescriptors").data == broken
        mended = PartitionAssignment(0, 0, {}).encode()
        world.tree.write("/waltz/serverDescriptors", mended, version=-1)
        await settled(5)
        assert servers.told["one"] == {0: 1, 1: 1}

    simulate(story)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_view_follows_servers_as_they_come_and_go(seed: int) -> None:
    """CM-14"""

    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        seen: list[ClusterSnapshot] = []

        async def watch(host: Host) -> None:
            view = ClusterView(host, seen.append)
            await view.start()
            assert view.current == seen[-1]
            await settled(100)
            await view.stop()
            await view.stop()

        world.start(watch, "client")
        await settled(1)
        assert seen == [ClusterSnapshot("golden", KEY, 2, {})]
        one = servers.start("one")
        await settled(2)
        assert seen[-1].partitions == {p: (Address("one", 7000), 1) for p in (0, 1)}
        world.kill(one)
        await settled()
        assert seen[-1] == replace(seen[-1], partitions={})
        servers.start("two")
        await settled(2)
        assert seen[-1].partitions == {p: (Address("two", 7000), 2) for p in (0, 1)}
        assert all(older != newer for older, newer in pairwise(seen))
        steady = world.nodes("/waltz")
        await settled(60)
        assert world.nodes("/waltz") == steady, "CM-01: a steady cluster writes nothing"

    simulate(story, seed)


def test_a_view_keeps_what_it_knew_while_the_coordinator_is_away() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        servers = Servers(world)
        servers.start("one")
        await settled(2)
        views: list[ClusterView] = []

        async def watch(host: Host) -> None:
            views.append(ClusterView(host))
            await views[0].start()

        client = world.start(watch, "client")
        await settled(2)
        known = views[0].current
        assert known.partitions.keys() == {0, 1}
        world.service.lose(client)
        await servers.memberships["one"].stop()
        servers.start("two")
        await settled(20)
        assert views[0].current == known
        world.service.heal(client)
        await settled(10)
        assert views[0].current.partitions[PartitionId(0)] == (Address("two", 7000), 2)

    simulate(story)


class FailsOnce(FailingCoordinator):
    """Fails one call and is then as good as the coordinator behind it."""

    async def _pass(self, call: Coroutine[Any, Any, Any]) -> Any:
        if self._calls_left < 0:
            return await call
        return await super()._pass(call)


def test_a_lost_answer_to_a_registration_does_not_register_twice() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        told: list[dict[PartitionId, Generation]] = []

        async def main(host: Host) -> None:
            # Calls of a start: 2 parameters, 2 for the ID, 1 for the preference; then parent,
            # children, children again, create.
            losing = FailsOnce(host.coordinator, 8, takes_effect=True)
            unlucky = ServerMembership(
                replace(host, coordinator=losing), Address("one", 7000), told.append
            )
            await unlucky.start()
            await settled(10)

        process = world.start(main, "one")
        await settled(5)
        assert not process.dead
        assert world.tree.children("/waltz/serverDescriptors") == ["s_0000000000"]
        node = world.tree.read("/waltz/serverDescriptors/s_0000000000")
        assert ServerDescriptor.decode(node.data or b"").server_id == 1
        assert told == [{0: 1, 1: 1}]

    simulate(story)


def test_the_error_of_a_callback_is_not_swallowed() -> None:
    class BrokenError(Exception):
        pass

    def refuse(_: object) -> None:
        raise BrokenError

    async def story(world: World) -> None:
        await world.ask(create)

        async def main(host: Host) -> None:
            membership = ServerMembership(host, Address("one", 7000), refuse)
            await membership.start()
            await settled(2)
            with pytest.raises(BrokenError):
                await membership.stop()

        await world.run(main)

    simulate(story)
