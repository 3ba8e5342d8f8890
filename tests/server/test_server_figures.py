"""The figures of a server at work, on simulated machines."""

from __future__ import annotations

import asyncio

from tests.server.test_server_shell import STORAGES, Caller, World, play
from waltz.host import Host
from waltz.server.feeding.backlog import CONNECTION_BACKLOG_BYTES_MAX
from waltz.wire.client_protocol import FeedData


def test_each_stage_of_a_batch_is_timed_and_looks_into_the_cache_are_counted() -> None:
    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        assert world.server is not None
        before = world.server.state().partitions[0]
        assert before.append_seconds.wait.count == before.append_seconds.feed.count == 0
        caller.append(b"hello")
        await caller.hear(FeedData)
        state = world.server.state()
        partition = state.partitions[0]
        seconds = partition.append_seconds
        assert seconds.wait.count == seconds.store.count == seconds.feed.count == 1
        assert seconds.store.sum_seconds > 0.0, "it was to three machines and back"
        assert state.cache_hits > 0
        assert partition.counters.store_sessions == 1
        assert partition.session_seconds is not None
        assert partition.session_id is not None
        assert (state.throttled_connections, state.throttles) == (0, 0)

    play(scene)


def test_a_client_that_is_not_read_any_further_is_counted_while_it_lasts() -> None:
    async def scene(world: World, host: Host) -> None:
        caller = await Caller.connect(host)
        await caller.mount()
        for name in STORAGES[1:]:
            world.sites.kill(world.sites.site(name))
        body = bytes(1024 * 1024)
        for _ in range(CONNECTION_BACKLOG_BYTES_MAX // len(body) + 1):
            caller.append(body)
        server = world.server
        assert server is not None
        while not server.state().throttles:
            await asyncio.sleep(0.1)
        assert server.state().throttled_connections == 1
        for name in STORAGES[1:]:
            world.sites.disk(name).release_locks()
            world.sites.boot(world.sites.site(name))
        while server.state().throttled_connections:
            await asyncio.sleep(0.1)
        assert server.state().throttles == 1

    play(scene, seeds=1)
