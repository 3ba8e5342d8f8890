"""A real server tells what its cluster is, and gives client IDs: on simulated machines."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from tests.server.logical_caller import LogicalCaller
from waltz.client.applying.callbacks import NoCallbacks
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.limits import RECONNECT_SECONDS_MAX
from waltz.sim.faults.kinds import Crash, Stop
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import PORT, SimulatedCluster
from waltz.sim.sites import Sites
from waltz.types import Address
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    ClientIdResponse,
    Topology,
    TopologyRequest,
)

KEY = UUID(int=1)
DOWN_SECONDS = 60.0
SHAPE = ClusterShape(
    partition_count=4, storage_count=3, server_count=2, segment_bytes_threshold=20_000
)


class Stage:
    def __init__(self, seed: int = 1, shape: ClusterShape = SHAPE) -> None:
        self.loop = SimulatedLoop(seed, virtual_seconds_max=2_000.0)
        self.sites = Sites(self.loop, seed, RunTrace())
        self.cluster = SimulatedCluster(self.sites, shape, KEY)
        self.strikes = Strikes(self.sites)

    def play(self, main: Callable[[Host], Coroutine[Any, Any, None]]) -> None:
        async def scene() -> None:
            await self.cluster.start()
            await self.sites.run("client", main)

        try:
            self.loop.run_until_complete(scene())
            assert self.loop.failures() == []
        finally:
            self.loop.shut_down()


async def connected(host: Host, name: str) -> LogicalCaller:
    """A caller, once the server is there."""
    while True:
        try:
            return await LogicalCaller.connect(host, Address(name, PORT))
        except UnavailableError:
            await asyncio.sleep(0.1)


async def topology_heard(caller: LogicalCaller, wanted: Callable[[Topology], bool]) -> Topology:
    """Hear until one is as wanted."""
    while not wanted(told := await caller.hear(Topology)):
        pass
    return told


def is_whole(servers: int) -> Callable[[Topology], bool]:
    def check(topology: Topology) -> bool:
        owners = {entry.server_id for entry in topology.partitions}
        return len(topology.partitions) == 4 and len(owners) == servers

    return check


def test_a_subscriber_is_told_who_serves_what_and_every_change() -> None:
    """LC-61: a server is added, and one is stopped."""
    stage = Stage()

    async def main(host: Host) -> None:
        caller = await connected(host, "server-0")
        caller.say(TopologyRequest(True))
        whole = await topology_heard(caller, is_whole(2))
        assert whole.cluster_key == KEY
        assert whole.cluster_name == "simulated"
        assert whole.partition_count == 4
        addresses = {address for entry in whole.servers for address in entry.addresses}
        assert addresses == {Address("server-0", PORT), Address("server-1", PORT)}
        stage.cluster.add_server("server-2")
        more = await topology_heard(caller, is_whole(3))
        assert more.membership_version > whole.membership_version
        strike = asyncio.create_task(
            stage.strikes.strike(
                Stop(progress=0.0, names=("server-1",), pause_seconds=(60.0,), one_by_one=False)
            )
        )
        less = await topology_heard(caller, is_whole(2))
        assert Address("server-1", PORT) not in {e.addresses[0] for e in less.servers}
        await strike

    stage.play(main)


def test_who_has_not_subscribed_is_told_once() -> None:
    stage = Stage()

    async def main(host: Host) -> None:
        await asyncio.sleep(20.0)
        caller = await connected(host, "server-0")
        caller.say(TopologyRequest(False))
        await topology_heard(caller, is_whole(2))
        stage.cluster.add_server("server-2")
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(20.0):
                    await caller.hear(Topology)
            caller.connection.write(caller.link.heartbeat(wants_answer=False))  # not idle

    stage.play(main)


def test_client_ids_are_never_given_twice() -> None:
    """LC-60, PM-04: by two servers at the same time."""
    stage = Stage()

    async def main(host: Host) -> None:
        callers = [await connected(host, name) for name in ("server-0", "server-1")]
        for caller in callers:
            for number in range(10):
                caller.say(ClientIdRequest(number))
        given: list[int] = []
        for caller in callers:
            numbers = set()
            for _ in range(10):
                answer = await caller.hear(ClientIdResponse)
                assert answer.client_id is not None
                numbers.add(answer.request_number)
                given.append(answer.client_id)
            assert numbers == set(range(10))
        assert sorted(given) == list(range(1, 21))

    stage.play(main)


def test_a_hundred_clients_come_back_to_one_restarted_server_without_a_storm() -> None:
    """LC-64: attempts to connect, by second, while the server is away and when it is back."""
    shape = ClusterShape(
        partition_count=1, storage_count=3, server_count=1, segment_bytes_threshold=20_000
    )
    stage = Stage(3, shape)
    attempts: Counter[int] = Counter()
    network = stage.sites.network
    connect = network.connect

    async def counted(process: object, address: Address) -> object:
        if address.host == "server-0":
            attempts[int(stage.loop.time())] += 1
        return await connect(process, address)  # type: ignore[arg-type]

    network.connect = counted  # type: ignore[method-assign, assignment]
    clients = 100

    async def main(host: Host) -> None:
        options = ClientOptions(servers=[Address("server-0", PORT)], refresh_seconds=0.0)
        opened: list[AsyncWaltzClient] = []
        for _ in range(clients):
            client = AsyncWaltzClient(host, NoCallbacks(), options)
            while True:
                try:
                    await client.start()
                    break
                except UnavailableError:
                    client = AsyncWaltzClient(host, NoCallbacks(), options)
            opened.append(client)
        assert await opened[0].append(0, b"before") == 0
        attempts.clear()
        went_down = stage.loop.time()
        await stage.strikes.strike(
            Crash(
                progress=0.0,
                names=("server-0",),
                disk_operations=(0,),
                power_lost=False,
                pause_seconds=(DOWN_SECONDS,),
            )
        )
        for client in opened:
            assert await client.get_high_water_mark(0, timeout_seconds=120.0) == 0
        steady = [count for second, count in attempts.items() if second > went_down + 4 * 5.0]
        # Each client has two connections and, while both are lost, its search: in the steady state
        # each of them tries once per longest pause, which jitter shortens to a half at most.
        assert steady
        assert max(attempts.values()) <= 10 * clients
        assert max(steady) <= 2 * 3 * clients / RECONNECT_SECONDS_MAX
        for client in opened:
            await client.close()

    stage.play(main)
