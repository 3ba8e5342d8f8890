"""The node of histories: who reads it, and what becomes of a server that outlives a restore."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from tests.cluster.simulated import World, create, settled, simulate
from waltz.cluster.cluster_shell import ServerMembership
from waltz.cluster.log_history import LogHistory, encode_histories
from waltz.cluster.log_history_shell import expect_histories, read_log_histories, refuse_retired
from waltz.cluster.paths import ClusterPaths
from waltz.errors import ConfigurationError, ForeignDirectoryError, RemoteProtocolError
from waltz.host import Host
from waltz.types import Address, PartitionId, TransactionId

PATHS = ClusterPaths("/waltz")
RETIRED = UUID(int=5)
RESTORE = LogHistory(UUID(int=1), 1000, {PartitionId(0): TransactionId(9)}, (RETIRED,))


async def write_history(world: World, data: bytes) -> None:
    await world.run(lambda host: host.coordinator.create(PATHS.history, data))


def test_without_the_node_no_restore_has_begun_a_history() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        assert await world.ask(read_log_histories, PATHS) == ()
        await world.ask(refuse_retired, PATHS, RETIRED)
        await write_history(world, encode_histories((RESTORE,)))
        assert await world.ask(read_log_histories, PATHS) == (RESTORE,)
        await world.ask(refuse_retired, PATHS, UUID(int=6))
        with pytest.raises(ForeignDirectoryError, match=f"restore {RESTORE.history_id}"):
            await world.ask(refuse_retired, PATHS, RETIRED)

    simulate(story)


def test_a_node_that_says_something_else_is_an_error() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        await write_history(world, b"x")
        with pytest.raises(RemoteProtocolError, match="the node of histories is b'x'"):
            await world.ask(read_log_histories, PATHS)

    simulate(story)


def test_histories_that_have_changed_since_the_start_are_refused() -> None:
    async def story(world: World) -> None:
        await world.ask(create)
        await world.ask(expect_histories, PATHS, ())
        await write_history(world, encode_histories((RESTORE,)))
        await world.ask(expect_histories, PATHS, (RESTORE,))
        with pytest.raises(ConfigurationError, match="restored from an archive since this server"):
            await world.ask(expect_histories, PATHS, ())

    simulate(story)


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_server_that_lives_through_a_restore_does_not_register_again(
    is_restored: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It would tell its clients of the history before. It knows that it is not registered, and says
    the reason once."""
    memberships: list[ServerMembership] = []

    async def main(host: Host) -> None:
        membership = ServerMembership(host, Address("one", 7000), lambda _: None)
        memberships.append(membership)
        await membership.start()
        assert membership.histories == ()

    async def story(world: World) -> None:
        await world.ask(create)
        world.start(main, "one")
        await settled()
        (name,) = world.tree.children(PATHS.server_descriptors)
        assert memberships[0].is_registered
        if is_restored:
            await write_history(world, encode_histories((RESTORE,)))
        path = f"{PATHS.server_descriptors}/{name}"
        await world.run(lambda host: host.coordinator.delete(path))
        await settled()
        assert bool(world.tree.children(PATHS.server_descriptors)) is not is_restored
        await asyncio.sleep(3600.0)
        assert memberships[0].is_registered is not is_restored

    simulate(story)
    told = "the log was restored from an archive since this server started: restart the server"
    assert caplog.text.count(told) == is_restored
