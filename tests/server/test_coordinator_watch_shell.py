"""A server's question whether its coordinator is there, in simulated time."""

from __future__ import annotations

import asyncio

from tests.cluster.simulated import World, simulate
from waltz.host import Host
from waltz.server.coordinator_watch_shell import (
    COORDINATOR_CHECK_SECONDS,
    CoordinatorWatch,
    CountedCoordinator,
)
from waltz.server.server_metrics import COORDINATOR_SILENT_SECONDS_MAX

ROOT = "/c"


def test_the_age_of_the_last_answer_is_known_and_grows_while_none_comes() -> None:
    """F-7: nothing else of the server needs the coordinator meanwhile."""

    async def story(world: World) -> None:
        async def server(host: Host) -> None:
            await host.coordinator.create(ROOT, None)
            watch = CoordinatorWatch(host, ROOT, CountedCoordinator(host.coordinator))
            assert watch.contact().age_seconds is None
            assert watch.contact().problem() is not None
            watch.start()
            for _ in range(10):
                await asyncio.sleep(COORDINATOR_CHECK_SECONDS)
                age = watch.contact().age_seconds
                assert age is not None
                assert age < 2 * COORDINATOR_CHECK_SECONDS + 1
                assert watch.contact().problem() is None
            before = watch.contact()
            assert before.is_connected
            assert before.calls_lost == 0
            assert before.state_seconds is not None
            assert before.state_seconds >= 10 * COORDINATOR_CHECK_SECONDS
            world.service.begin_outage()
            await asyncio.sleep(40.0)
            contact = watch.contact()
            assert contact.is_connected is False
            assert contact.calls_lost > 3
            assert contact.state_seconds is not None
            assert 30.0 < contact.state_seconds <= 40.0
            assert contact.age_seconds is not None
            assert 40.0 <= contact.age_seconds <= 40.0 + 2 * COORDINATOR_CHECK_SECONDS
            problem = contact.problem()
            assert problem is not None
            assert "not answered for 4" in problem
            world.service.end_outage()
            await asyncio.sleep(COORDINATOR_SILENT_SECONDS_MAX)
            again = watch.contact()
            assert again.problem() is None
            assert again.is_connected
            assert again.calls_lost >= contact.calls_lost
            assert again.state_seconds is not None
            assert again.state_seconds < COORDINATOR_SILENT_SECONDS_MAX
            await watch.stop()
            await watch.stop()

        await world.run(server)

    simulate(story)


def test_an_answer_that_there_is_no_cluster_is_an_answer() -> None:
    async def story(world: World) -> None:
        async def server(host: Host) -> None:
            watch = CoordinatorWatch(host, "/nowhere", CountedCoordinator(host.coordinator))
            watch.start()
            await asyncio.sleep(30.0)
            assert watch.contact().problem() is None
            await watch.stop()

        await world.run(server)

    simulate(story)
