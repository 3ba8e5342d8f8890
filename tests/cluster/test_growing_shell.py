"""The values that say how many partitions there are, written one after the other, cut short
anywhere, by two at a time."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest

from tests.cluster.simulated import KEY, FailingCoordinator, World, settled, simulate
from waltz.cluster.cluster_shell import ServerMembership, create_cluster
from waltz.cluster.growing_shell import begin_growth, deal_out, finish_growth, read_counts
from waltz.cluster.partition_growth import PartitionCounts
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.store_params import ClusterParams, StoreParams
from waltz.errors import ConfigurationError, CoordinatorLostError, NoNodeError, VersionConflictError
from waltz.host import Coordinator, Host
from waltz.sim.loop import Process
from waltz.types import Address


async def create(coordinator: Coordinator) -> None:
    await create_cluster(
        coordinator, name="c", partition_count=2, cluster_key=KEY, storages=(), root="/waltz"
    )


async def grow(coordinator: Coordinator, to: int) -> bool:
    await begin_growth(coordinator, to)
    await finish_growth(coordinator, to)
    return await deal_out(coordinator, to)


def start_server(world: World, name: str = "one") -> Process:
    async def main(host: Host) -> None:
        await ServerMembership(host, Address(name, 1), lambda _: None).start()

    return world.start(main, name)


def assigned(world: World) -> PartitionAssignment:
    return PartitionAssignment.decode(world.tree.read("/waltz/serverDescriptors").data or b"")


def test_each_value_is_written_once_in_the_bytes_of_the_original() -> None:
    """F-35: the root, the store parameters and the assignment, and no other node."""

    async def story(world: World) -> None:
        await world.ask(create)
        start_server(world)
        await settled()
        before = world.nodes("/waltz")
        assert await world.ask(read_counts) == PartitionCounts(2, 2, 2)
        await world.ask(begin_growth, 5)
        assert await world.ask(read_counts) == PartitionCounts(2, 5, 2)
        await world.ask(finish_growth, 5)
        assert await world.ask(read_counts) == PartitionCounts(5, 5, 2)
        assert await world.ask(deal_out, 5)
        assert await world.ask(read_counts) == PartitionCounts(5, 5, 5)
        after = world.nodes("/waltz")
        assert after.keys() == before.keys()
        changed = {path for path in after if after[path].data != before[path].data}
        assert changed == {"/waltz", "/waltz/store", "/waltz/serverDescriptors"}
        for path in changed:
            assert after[path].version == before[path].version + 1
        assert after["/waltz"].data == ClusterParams("c", 5).encode()
        assert after["/waltz/store"].data == StoreParams(KEY, 5).encode()
        found, was = (
            assigned(world),
            PartitionAssignment.decode(before["/waltz/serverDescriptors"].data or b""),
        )
        assert found.membership_version == was.membership_version
        assert found.servers == {1: {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}}

    simulate(story)


def test_without_a_server_the_first_one_deals_out() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        assert not await world.ask(grow, 5)
        start_server(world)
        await settled()
        assert assigned(world).servers == {1: dict.fromkeys(range(5), 1)}

    simulate(story)


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_has_lost_its_session_meanwhile_deals_out_what_it_did_not_see(
    seed: int,
) -> None:
    """It runs and is not registered when the partitions are added."""

    async def story(world: World) -> None:
        await world.ask(create)
        process = start_server(world)
        await settled()
        world.service.lose(process)
        world.service.expire(process)
        assert not await world.ask(grow, 5), "nobody is there"
        world.service.heal(process)
        await settled(60)
        held = assigned(world).servers
        assert sorted(number for each in held.values() for number in each) == [0, 1, 2, 3, 4]

    simulate(story, seed)


def test_another_number_is_refused_until_the_first_one_is_finished() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(begin_growth, 5)
        before = world.nodes("/waltz/store")["/waltz/store"]
        for to in (3, 6):
            with pytest.raises(ConfigurationError, match="finish it first, with --to 5"):
                await world.ask(begin_growth, to)
        await world.ask(begin_growth, 5)
        assert world.tree.read("/waltz/store").version == before.version, "written once"
        await world.ask(finish_growth, 5)
        await world.ask(grow, 6)
        assert await world.ask(read_counts) == PartitionCounts(6, 6, 0)

    simulate(story)


def test_no_cluster_is_an_error() -> None:
    async def story(world: World) -> None:
        with pytest.raises(NoNodeError):
            await world.ask(begin_growth, 5)

    simulate(story)


@pytest.mark.parametrize("takes_effect", [False, True])
def test_a_growth_cut_short_anywhere_can_be_done_again(takes_effect: bool) -> None:
    """And whatever state it leaves is one that servers start in and go on in."""

    async def cut(world: World, calls: int) -> bool:
        process = Process(f"operator {calls}")
        failing = FailingCoordinator(world.service.door(process), calls, takes_effect=takes_effect)
        try:
            await grow(failing, 5)
        except CoordinatorLostError:
            return True
        finally:
            world.service.expire(process)
        return False

    async def story(world: World, calls: int) -> bool:
        await world.ask(create)
        start_server(world)
        await settled()
        was_cut = await cut(world, calls)
        counts = await world.ask(read_counts)
        assert counts.assigned <= counts.cluster <= counts.store
        start_server(world, "two")
        await settled()
        found = assigned(world)
        assert sorted(number for held in found.servers.values() for number in held) == list(
            range(found.partition_count)
        )
        assert await world.ask(grow, 5)
        assert await world.ask(read_counts) == PartitionCounts(5, 5, 5)
        await settled()
        held = assigned(world).servers
        assert sorted(number for each in held.values() for number in each) == [0, 1, 2, 3, 4]
        return was_cut

    calls = 0
    while simulate(partial(story, calls=calls)):
        calls += 1
    assert calls > 15


@pytest.mark.parametrize("seed", range(20))
def test_of_two_operators_at_once_both_come_to_the_same_or_one_is_refused(seed: int) -> None:
    """While servers come, too: nothing that was dealt out gets lost."""

    async def attempt(world: World, to: int) -> int | None:
        for _ in range(20):
            try:
                await world.ask(grow, to)
            except VersionConflictError:
                continue
            except ConfigurationError as error:
                if re.search("finish it first|never gets smaller", str(error)):
                    return None
                raise
            return to
        raise AssertionError("conflicts without end")

    async def story(world: World) -> None:
        await world.ask(create)
        start_server(world)
        await settled(seed % 3)
        same = seed % 2 == 0
        start_server(world, "two")
        done = await asyncio.gather(attempt(world, 5), attempt(world, 5 if same else 7))
        await settled()
        counts = await world.ask(read_counts)
        assert counts == PartitionCounts(*[max(each or 0 for each in done)] * 3)
        if same:
            assert list(done) == [5, 5]
        held = assigned(world).servers
        assert sorted(number for each in held.values() for number in each) == list(
            range(counts.cluster)
        )

    simulate(story, seed)
