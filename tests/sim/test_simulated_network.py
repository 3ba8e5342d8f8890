"""Bytes on their way: order within a connection, none across; cuts, refusals, back pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import pytest

from waltz.errors import ConfigurationError, ConnectionFailedError
from waltz.host import Connection
from waltz.limits import CONNECT_SECONDS_MAX, WRITE_BUFFER_BYTES_LOW
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import Process, SimulatedLoop
from waltz.sim.simulated_network import ProcessNetwork, SimulatedNetwork, Way, draw_weather
from waltz.types import Address

HERE = Address("server", 7000)

Scene = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed)
        random = Random(seed)
        self.trace = RunTrace()
        self.network = SimulatedNetwork(self.loop, random, draw_weather(random), self.trace)
        self.server = Process("server")
        self.client = Process("client")

    def door(self, process: Process) -> ProcessNetwork:
        return self.network.door(process)


def play(scene: Scene, seeds: int = 20, *, records: bool = False) -> None:
    for seed in range(seeds):
        world = World(seed)
        if records:
            world.network.record()
        try:
            world.loop.run_until_complete(scene(world))
            assert world.loop.failures() == []
        finally:
            world.loop.shut_down()


async def read_all(connection: Connection) -> bytes:
    parts = []
    while data := await connection.read():
        parts.append(data)
    return b"".join(parts)


async def hold(connection: Connection) -> None:
    await asyncio.sleep(1_000.0)


def collector(into: list[bytes]) -> Callable[[Connection], Awaitable[None]]:
    async def accept(connection: Connection) -> None:
        into.append(await read_all(connection))

    return accept


def test_bytes_arrive_whole_and_in_order_and_end_with_the_connection() -> None:
    async def scene(world: World) -> None:
        sent = bytes(Random(7).randbytes(300_000))
        got: list[bytes] = []
        await world.door(world.server).listen(HERE, collector(got))
        connection = await world.door(world.client).connect(HERE)
        for start in range(0, len(sent), 7001):
            connection.write(sent[start : start + 7001])
        connection.close()
        connection.write(b"ignored")
        await asyncio.sleep(100.0)
        assert got == [sent]

    play(scene)


def test_nobody_listening_refuses() -> None:
    async def scene(world: World) -> None:
        with pytest.raises(ConnectionFailedError, match="server:7000"):
            await world.door(world.client).connect(HERE)
        listener = await world.door(world.server).listen(HERE, hold)
        await listener.close()
        with pytest.raises(ConnectionFailedError):
            await world.door(world.client).connect(HERE)

    play(scene)


def test_ports_are_taken_once_and_port_zero_takes_a_free_one() -> None:
    async def scene(world: World) -> None:
        door = world.door(world.server)
        await door.listen(HERE, hold)
        with pytest.raises(ConfigurationError, match="in use"):
            await door.listen(HERE, hold)
        with pytest.raises(ConfigurationError, match="this is server"):
            await door.listen(Address("elsewhere", 1), hold)
        listeners = [await door.listen(Address("server", 0), hold) for _ in range(2)]
        assert len({listener.address for listener in listeners}) == 2

    play(scene, seeds=1)


def test_connection_is_closed_when_accept_returns() -> None:
    async def at_once(connection: Connection) -> None:
        connection.write(b"good bye")

    async def scene(world: World) -> None:
        await world.door(world.server).listen(HERE, at_once)
        connection = await world.door(world.client).connect(HERE)
        assert await read_all(connection) == b"good bye"
        assert await connection.read() == b""

    play(scene)


def test_back_pressure_reaches_the_writer() -> None:
    async def scene(world: World) -> None:
        accepted: asyncio.Future[Connection] = world.loop.create_future()

        async def accept(connection: Connection) -> None:
            accepted.set_result(connection)
            await hold(connection)

        await world.door(world.server).listen(HERE, accept)
        connection = await world.door(world.client).connect(HERE)
        total = 4 * 1024 * 1024
        connection.write(bytes(total))
        waiting = asyncio.create_task(connection.drain())
        await asyncio.sleep(50.0)
        assert not waiting.done()
        assert connection.unsent_bytes > WRITE_BUFFER_BYTES_LOW
        reader = await accepted
        received = 0
        while received < total:
            received += len(await reader.read())
        await waiting
        assert connection.unsent_bytes == 0

    play(scene)


def test_who_is_paused_hears_nothing_until_resumed_and_then_all() -> None:
    async def scene(world: World) -> None:
        heard: list[bytes] = []
        ended = asyncio.Event()
        accepted: asyncio.Future[Connection] = world.loop.create_future()

        async def accept(connection: Connection) -> None:
            connection.hand_over(heard.append)
            connection.pause_reading()
            accepted.set_result(connection)
            await ended.wait()

        await world.door(world.server).listen(HERE, accept)
        connection = await world.door(world.client).connect(HERE)
        connection.send(b"one")
        connection.write(b"two")
        await asyncio.sleep(50.0)
        assert heard == []
        (await accepted).resume_reading()
        while b"".join(heard) != b"onetwo":
            await asyncio.sleep(1.0)
        connection.close()
        await asyncio.sleep(50.0)
        assert heard[-1] == b""
        ended.set()

    play(scene)


def test_a_peer_that_takes_no_answers_is_not_read() -> None:
    total = 4 * 1024 * 1024

    async def scene(world: World) -> None:
        heard: list[bytes] = []

        async def accept(connection: Connection) -> None:
            def receive(data: bytes) -> None:
                if not heard:
                    connection.send(bytes(total))
                heard.append(data)

            connection.hand_over(receive)
            await hold(connection)

        await world.door(world.server).listen(HERE, accept)
        connection = await world.door(world.client).connect(HERE)
        connection.send(b"1")
        await asyncio.sleep(50.0)
        connection.send(b"2")
        await asyncio.sleep(50.0)
        assert heard == [b"1"]
        taken = 0
        while taken < total:
            taken += len(await connection.read())
        await asyncio.sleep(50.0)
        assert heard == [b"1", b"2"]

    play(scene)


def test_a_death_cuts_both_ways_and_loses_at_most_the_tail() -> None:
    lengths = set()

    async def scene(world: World) -> None:
        got: list[bytes] = []
        await world.door(world.server).listen(HERE, collector(got))

        async def chatter() -> None:
            connection = await world.door(world.client).connect(HERE)
            for number in range(100):
                connection.write(bytes([number]))
                await asyncio.sleep(0.0001)

        world.loop.spawn(world.client, chatter())
        await asyncio.sleep(0.02)
        world.client.dead = True
        world.network.cut(world.client)
        await asyncio.sleep(10.0)
        (data,) = got or [b""]
        assert data == bytes(range(len(data)))
        lengths.add(len(data))

    play(scene, seeds=40)
    assert len(lengths) > 5


def test_a_dead_listener_refuses_and_its_connections_end() -> None:
    async def scene(world: World) -> None:
        task = world.loop.spawn(world.server, world.door(world.server).listen(HERE, hold))
        await asyncio.sleep(1)
        await task
        connection = await world.door(world.client).connect(HERE)
        world.server.dead = True
        world.network.cut(world.server)
        assert await connection.read() == b""
        connection.write(b"ignored")
        await connection.drain()
        with pytest.raises(ConnectionFailedError):
            await world.door(world.client).connect(HERE)

    play(scene)


BOTH_WAYS = [("client", "server"), ("server", "client")]


def test_blocked_processes_hear_nothing_until_unblocked() -> None:
    async def scene(world: World) -> None:
        got: list[bytes] = []
        await world.door(world.server).listen(HERE, collector(got))
        connection = await world.door(world.client).connect(HERE)
        world.network.block(BOTH_WAYS)
        connection.write(b"patience")
        connection.close()
        with pytest.raises(ConnectionFailedError, match="no answer"):
            await world.door(world.client).connect(HERE)
        await asyncio.sleep(50.0)
        assert got == []
        world.network.block(BOTH_WAYS)
        world.network.unblock(BOTH_WAYS)
        await asyncio.sleep(50.0)
        assert got == [], "blocked twice"
        world.network.unblock(BOTH_WAYS)
        await asyncio.sleep(50.0)
        assert got == [b"patience"]

    play(scene)


def test_a_way_can_be_blocked_while_the_way_back_is_open() -> None:
    """C4: one-way partitions."""

    async def scene(world: World) -> None:
        got: list[bytes] = []

        async def accept(connection: Connection) -> None:
            connection.write(b"to you")
            got.append(await read_all(connection))

        await world.door(world.server).listen(HERE, accept)
        connection = await world.door(world.client).connect(HERE)
        world.network.block(BOTH_WAYS[:1])
        connection.write(b"to me")
        heard = b""
        while len(heard) < len(b"to you"):
            heard += await connection.read()
        connection.close()
        await asyncio.sleep(50.0)
        assert got == []
        assert world.network.effects["bytes held"] > 0
        world.network.unblock(BOTH_WAYS[:1])
        await asyncio.sleep(50.0)
        assert got == [b"to me"]

    play(scene)


def test_connecting_goes_on_until_the_way_is_free_or_time_is_up() -> None:
    async def scene(world: World) -> None:
        await world.door(world.server).listen(HERE, hold)
        for way in BOTH_WAYS:
            world.network.block([way])
            before = world.loop.time()
            with pytest.raises(ConnectionFailedError, match="no answer"):
                await world.door(world.client).connect(HERE)
            assert world.loop.time() - before >= CONNECT_SECONDS_MAX
            assert world.network.effects["attempts to connect held"] > 3
            connecting = asyncio.ensure_future(world.door(world.client).connect(HERE))
            await asyncio.sleep(2.0)
            world.network.unblock([way])
            assert (await connecting).peer == str(HERE)

    play(scene, seeds=3)


def test_a_slow_way_takes_longer_until_it_is_sped_up() -> None:
    async def scene(world: World) -> None:
        arrivals: list[float] = []

        async def accept(connection: Connection) -> None:
            while await connection.read():
                arrivals.append(world.loop.time())

        await world.door(world.server).listen(HERE, accept)
        connection = await world.door(world.client).connect(HERE)
        world.network.slow_down(BOTH_WAYS[:1], 100.0)
        world.network.slow_down(BOTH_WAYS[:1], 1.0)
        before = world.loop.time()
        connection.write(b"late")
        await asyncio.sleep(200.0)
        world.network.speed_up(BOTH_WAYS[:1], 100.0)
        world.network.speed_up(BOTH_WAYS[:1], 1.0)
        assert world.network.seconds_on(BOTH_WAYS[0]) <= 2.0
        assert world.network.effects["bytes slowed down"] == 1
        seconds.append(arrivals[0] - before)

    seconds: list[float] = []
    play(scene)
    assert max(seconds) > 50.0


def test_connections_between_two_processes_can_be_lost_at_once() -> None:
    async def scene(world: World) -> None:
        other = Process("other")
        await world.door(world.server).listen(HERE, hold)
        broken = [await world.door(world.client).connect(HERE) for _ in range(2)]
        spared = await world.door(other).connect(HERE)
        assert world.network.break_between("server", "client") == 2
        assert world.network.effects["connections lost"] == 2
        for connection in broken:
            assert await connection.read() == b""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50.0):
                await spared.read()
        assert world.network.break_between("server", "client") == 0

    play(scene)


def test_connections_overtake_each_other() -> None:
    orders = set()

    async def scene(world: World) -> None:
        got: list[bytes] = []
        await world.door(world.server).listen(HERE, collector(got))
        connections = [await world.door(world.client).connect(HERE) for _ in range(3)]
        for name, connection in zip(b"abc", connections, strict=True):
            connection.write(bytes([name]))
            connection.close()
        await asyncio.sleep(10.0)
        assert sorted(got) == [b"a", b"b", b"c"]
        orders.add(b"".join(got))

    play(scene)
    assert len(orders) > 3


def test_same_seed_gives_the_same_trace() -> None:
    def digest(seed: int) -> str:
        async def scene(world: World) -> None:
            await world.door(world.server).listen(HERE, collector([]))
            connection = await world.door(world.client).connect(HERE)
            for number in range(50):
                connection.write(bytes(number))
            connection.close()
            await asyncio.sleep(10.0)

        world = World(seed)
        world.loop.run_until_complete(scene(world))
        world.loop.shut_down()
        return world.trace.digest()

    assert digest(3) == digest(3)
    assert digest(3) != digest(4)


def test_a_name_leads_where_it_leads_now() -> None:
    """LC-22, LC-26."""

    async def scene(world: World) -> None:
        door = world.door(world.client)
        assert await door.resolve(HERE) == [HERE]
        name = Address("servers", 7000)
        world.network.names["servers"] = ["server", "other"]
        assert await door.resolve(name) == [HERE, Address("other", 7000)]
        world.network.names["servers"] = []
        with pytest.raises(ConnectionFailedError, match="'servers' cannot be resolved"):
            await door.resolve(name)

    play(scene)


WAY: Way = ("client", "server")


def test_a_half_closed_connection_ends_for_its_receiver_and_goes_on_the_other_way() -> None:
    async def scene(world: World) -> None:
        ends: list[Connection] = []
        got: list[bytes] = []

        async def accept(connection: Connection) -> None:
            ends.append(connection)
            got.append(await read_all(connection))
            await asyncio.sleep(100.0)

        await world.door(world.server).listen(HERE, accept)
        connection = await world.door(world.client).connect(HERE)
        connection.write(b"heard")
        await asyncio.sleep(10.0)
        assert world.network.half_close(WAY, 1.0) == 1
        connection.write(b"lost")
        await asyncio.sleep(10.0)
        assert got == [b"heard"]
        ends[0].write(b"still there")
        assert await connection.read() != b""
        assert world.network.half_close(WAY, 1.0) == 0, "it has ended"

    play(scene)


@pytest.mark.parametrize(("kept", "arrives"), [(0.0, 0), (0.3, 300), (1.0, 1000)])
def test_an_end_may_fall_into_what_is_under_way(kept: float, arrives: int) -> None:
    async def scene(world: World) -> None:
        got: list[bytes] = []
        await world.door(world.server).listen(HERE, collector(got))
        connection = await world.door(world.client).connect(HERE)
        world.network.block([WAY])
        for _ in range(4):
            connection.write(bytes(250))
        world.network.half_close(WAY, kept)
        world.network.unblock([WAY])
        await asyncio.sleep(10.0)
        assert [*map(len, got)] == [arrives]

    play(scene)


def test_what_was_recorded_is_sent_again_on_a_new_connection() -> None:
    async def scene(world: World) -> None:
        got: list[bytes] = []
        await world.door(world.server).listen(HERE, collector(got))
        assert await world.network.replay(WAY, 0.0, 1.0, 1.0) == 0
        for data in (b"first", b"second"):
            connection = await world.door(world.client).connect(HERE)
            connection.write(data)
            connection.close()
            await asyncio.sleep(10.0)
        assert await world.network.replay(WAY, 0.0, 1.0, 1.0) == 5
        assert await world.network.replay(WAY, 1.0, 0.5, 1.0) == 3
        await asyncio.sleep(10.0)
        assert got == [b"first", b"second", b"first", b"sec"]
        world.network.cut(world.server)
        assert await world.network.replay(WAY, 0.0, 1.0, 1.0) == 0

    play(scene, records=True)
