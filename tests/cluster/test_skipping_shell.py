"""The counters and generations of a coordinator that was set back, raised by one server or two."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest

from tests.cluster.simulated import FailingCoordinator, World, create, settled, simulate
from waltz.cluster.cluster_shell import ServerMembership, allocate_client_id, allocate_server_id
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.server_assignment import PartitionAssignment
from waltz.cluster.skipping_shell import pass_over_numbers
from waltz.cluster.store_params import encode_counter
from waltz.cluster.tree import Tree
from waltz.errors import ConfigurationError, CoordinatorLostError
from waltz.host import ANY_VERSION, Coordinator, Host
from waltz.types import Address, Generation, PartitionId, SessionId

ROOT = "/waltz"
PATHS = ClusterPaths(ROOT)
ONE = PartitionId(0)


DRAWN = 7
SESSION = SessionId(600_000)
NEXT = 1_000_000 + DRAWN + 1


class Drawn:
    """A source of random numbers that draws one number."""

    def uniform(self, low: float, high: float) -> float:
        assert low <= DRAWN < high
        return DRAWN

    def uuid(self) -> UUID:
        raise AssertionError("no UUID is drawn")


async def pass_over(
    coordinator: Coordinator, partition_id: PartitionId, generation: Generation
) -> None:
    await pass_over_numbers(coordinator, Drawn(), ROOT, partition_id, generation, SESSION)


async def begin(world: World) -> list[dict[PartitionId, Generation]]:
    """Start a server, and return what it is assigned, as that comes."""
    told: list[dict[PartitionId, Generation]] = []
    await world.ask(create)

    async def main(host: Host) -> None:
        await ServerMembership(host, Address("one", 1), told.append).start()

    world.start(main, "one")
    await settled()
    return told


def generations(world: World) -> set[Generation]:
    data = world.tree.read(PATHS.server_descriptors).data or b""
    servers = PartitionAssignment.decode(data).servers
    return {generation for held in servers.values() for generation in held.values()}


def test_a_server_opens_its_partitions_under_the_raised_generations() -> None:
    async def story(world: World) -> None:
        told = await begin(world)
        (first,) = told
        assert await world.ask(allocate_client_id) == 1
        await world.ask(pass_over, ONE, first[ONE])
        await settled()
        assert told == [first, dict.fromkeys(first, Generation(SESSION))]
        assert await world.ask(allocate_client_id) == NEXT + 1
        assert await world.ask(allocate_server_id) == NEXT + 1

    simulate(story)


def test_what_was_passed_over_is_not_passed_over_again() -> None:
    async def story(world: World) -> None:
        (first,) = await begin(world)
        await world.ask(pass_over, ONE, first[ONE])
        before = world.nodes(ROOT)
        for partition_id in first:
            await world.ask(pass_over, partition_id, first[partition_id])
        assert world.nodes(ROOT) == before

    simulate(story)


@pytest.mark.parametrize("seed", range(20))
def test_of_servers_that_do_it_at_once_one_raises_the_generations(seed: int) -> None:
    async def story(world: World) -> None:
        (first,) = await begin(world)
        await asyncio.gather(*(world.ask(pass_over, each, first[each]) for each in first))
        assert generations(world) == {Generation(SESSION)}
        assert await world.ask(allocate_client_id) in (NEXT, 2 * NEXT - 1)

    simulate(story, seed)


def test_numbers_that_come_to_their_end_are_refused_and_nothing_is_raised() -> None:
    async def story(world: World) -> None:
        (first,) = await begin(world)
        data = encode_counter(2**31 - 2)
        world.service.apply(
            lambda tree: tree.write(PATHS.client_id_counter, data, version=ANY_VERSION)
        )
        before = world.nodes(ROOT)
        with pytest.raises(ConfigurationError, match="client IDs up to 2147483646"):
            await world.ask(pass_over, ONE, first[ONE])
        assert world.nodes(ROOT) == before

    simulate(story)


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("failing", range(6))
def test_cut_short_at_any_call_it_is_repeated_and_raises_generations_once(
    failing: int, takes_effect: bool
) -> None:
    async def story(world: World) -> None:
        (first,) = await begin(world)

        async def cut_short(host: Host) -> None:
            coordinator = FailingCoordinator(host.coordinator, failing, takes_effect=takes_effect)
            await pass_over(coordinator, ONE, first[ONE])

        with pytest.raises(CoordinatorLostError):
            await world.run(cut_short)
        await world.ask(pass_over, ONE, first[ONE])
        assert generations(world) == {Generation(SESSION)}
        assert await world.ask(allocate_client_id) in (NEXT, 2 * NEXT - 1)

    simulate(story)


async def pass_over_as_drawn(generation: Generation, session: SessionId, host: Host) -> None:
    await pass_over_numbers(host.coordinator, host.random, ROOT, ONE, generation, session)


def test_a_backup_that_is_put_back_twice_leads_to_other_numbers_each_time() -> None:
    async def story(world: World) -> None:
        (first,) = await begin(world)
        backup = {path: node.data for path, node in world.nodes(ROOT).items() if node.data}
        seen: set[tuple[int, ...]] = set()
        for session in range(SESSION, 6 * SESSION, SESSION):
            for path, data in backup.items():
                world.service.apply(partial(Tree.write, path=path, data=data, version=ANY_VERSION))

            await world.run(partial(pass_over_as_drawn, first[ONE], SessionId(session)))
            seen.add((await world.ask(allocate_client_id), *sorted(generations(world))))
        assert len(seen) == 5

    simulate(story)
