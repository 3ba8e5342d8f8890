"""A client without a coordinator beside servers in miniature: real frames on loopback."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.client.applications import Note, Recorder
from tests.client.fake_cluster import CLUSTER_KEY, until
from tests.client.telling_servers import (
    OLD_CODEC,
    NamedNetwork,
    TellingServer,
    closed_port,
    host_without_coordinator,
    in_order,
    run_bounded,
    started,
    topology_of,
)
from tests.server.real_server import running_server
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.client.lifecycle_events import (
    ClusterChanged,
    PartitionMounted,
    PartitionUnmounted,
    ServerConnected,
    ServerDisconnected,
)
from waltz.errors import (
    ClusterChangedError,
    ConnectionFailedError,
    PartitionNotReadyError,
    RemoteProtocolError,
)
from waltz.host import Connection, Host, Listener
from waltz.reader.reader_shell import AsyncLogReader
from waltz.system.real_host import NoCoordinator
from waltz.types import Address, PartitionId
from waltz.wire.client_protocol import MountRequest

OTHER_KEY = UUID(int=8)
P0 = PartitionId(0)


def opened(
    host: Host, *servers: Address, recorder: Recorder | None = None, **options: Any
) -> AsyncWaltzClient:
    settings = ClientOptions(servers=servers, **options)
    return AsyncWaltzClient(host, recorder or Recorder(), settings)


async def nonsense(network: NamedNetwork, said: bytes) -> tuple[Listener, list[str]]:
    """Listen where something else than a server says `said`, and keeps the connection."""
    accepted: list[str] = []

    async def accept(connection: Connection) -> None:
        accepted.append(connection.peer)
        connection.write(said)
        while await connection.read():
            pass

    return await network.listen(Address("127.0.0.1", 0), accept), accepted


def with_network(work: Callable[[NamedNetwork, Host], Awaitable[None]]) -> None:
    async def main() -> None:
        network = NamedNetwork()
        await work(network, host_without_coordinator(network))

    run_bounded(main)


# Opening


def test_it_writes_and_reads_without_a_coordinator(tmp_path: Path) -> None:
    """LC-60, LC-86: beside a server that has one, but is not asked for it."""

    async def main() -> None:
        async with running_server(tmp_path) as (with_coordinator, server):
            host = replace(with_coordinator, coordinator=NoCoordinator())
            async with opened(host, server.address, recorder=Recorder()) as client:
                assert client.partition_count == 1
                assert await client.append(0, b"a") == 0
                assert await client.append(0, b"b") == 1
                assert await client.get_high_water_mark(0) == 1
            async with AsyncLogReader(host, servers=[server.address]) as reader:
                runs = [list(columns.data) async for columns in reader.read(0, 0, 2)]
                assert [data for run in runs for data in run] == [b"a", b"b"]

    asyncio.run(asyncio.wait_for(main(), 240.0))


def test_all_servers_are_connected_that_the_first_one_tells_of() -> None:
    """LC-60, LC-63."""

    async def work(network: NamedNetwork, host: Host) -> None:
        one, two = await started(1, 2)
        async with opened(host, one.address) as client:
            assert client.client_id == 1
            assert client.partition_count == 2
            assert client.cluster_key == CLUSTER_KEY
            await until(lambda: bool(two.connections))
        for server in (one, two):
            await server.stop()

    with_network(work)


def test_the_third_of_three_is_taken_when_two_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    """LC-10, LC-11, LC-13: the two refusals are in the log."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        dead = [closed_port(), closed_port()]
        with caplog.at_level(logging.INFO):
            async with opened(host, *dead, server.address) as client:
                assert await client.append(0, b"a") == 0
        for address in dead:
            assert f"server_not_found address={address}" in caplog.text
        assert network.attempts[:3] == [*dead, server.address]
        await server.stop()

    with_network(work)


def test_a_failed_handshake_ends_the_opening() -> None:
    """LC-12: the good address after it is not tried."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        listener, accepted = await nonsense(network, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(RemoteProtocolError, match=str(listener.address)):
            await opened(host, listener.address, server.address).start()
        assert len(accepted) == 1
        assert server.accepted == 0
        await listener.close()
        await server.stop()

    with_network(work)


def test_a_server_that_is_too_old_says_what_to_do() -> None:
    async def work(network: NamedNetwork, host: Host) -> None:
        old = TellingServer(1, OLD_CODEC)
        await old.start()
        with pytest.raises(RemoteProtocolError, match="give the coordinator's address instead"):
            await opened(host, old.address).start()
        await old.stop()

    with_network(work)


def test_the_time_out_names_each_address_and_its_reason() -> None:
    """LC-14: one refuses, one never says anything."""

    async def work(network: NamedNetwork, host: Host) -> None:
        dead = closed_port()
        listener, _ = await nonsense(network, b"")
        with pytest.raises(ConnectionFailedError) as raised:
            await opened(host, dead, listener.address, connection_seconds_max=1.5).start()
        text = str(raised.value)
        assert "no server in 1.5 s" in text
        assert f"{dead}: no connection to {dead}" in text
        assert f"{listener.address}: no answer" in text
        await listener.close()

    with_network(work)


def test_the_first_success_is_enough() -> None:
    """LC-15, LC-62, LC-63: nine that never answer, placed after it, are not even tried."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        listener, accepted = await nonsense(network, b"")
        network.names = {f"hole-{n}": [listener.address] for n in range(9)}
        holes = [Address(f"hole-{n}", 1) for n in range(9)]
        async with opened(host, server.address, *holes):
            assert accepted == []
        await listener.close()
        await server.stop()

    with_network(work)


def test_a_server_that_has_no_client_id_to_give_is_passed_over() -> None:
    async def work(network: NamedNetwork, host: Host) -> None:
        one, two = await started(1, 2)
        one.client_id_error = "the coordinator is away"
        async with opened(host, one.address, two.address) as client:
            assert client.client_id == 1
        assert (one.client_ids, two.client_ids) == (1, 1)
        for server in (one, two):
            await server.stop()

    with_network(work)


# Names


def test_a_name_that_cannot_be_resolved_fails_alone() -> None:
    """LC-22."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        network.names["nowhere"] = []
        async with opened(host, Address("nowhere", 1), server.address) as client:
            assert await client.append(0, b"a") == 0
        await server.stop()

    with_network(work)


def test_a_name_whose_every_address_is_dead_fails_once_and_names_all() -> None:
    """LC-24."""

    async def work(network: NamedNetwork, host: Host) -> None:
        dead = [closed_port(), closed_port()]
        network.names["db"] = dead
        with pytest.raises(ConnectionFailedError) as raised:
            await opened(host, Address("db", 1), connection_seconds_max=1.5).start()
        assert all(str(address) in str(raised.value) for address in dead)

    with_network(work)


def test_a_failed_handshake_tries_no_other_address_of_the_name() -> None:
    """LC-25."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        listener, _ = await nonsense(network, b"garbage garbage")
        network.names["db"] = [listener.address, server.address]
        with pytest.raises(RemoteProtocolError):
            await opened(in_order(host), Address("db", 1)).start()
        assert server.accepted == 0
        await listener.close()
        await server.stop()

    with_network(work)


def test_a_name_is_resolved_again_every_time() -> None:
    """LC-26, UA-12: all servers have got other addresses."""

    async def work(network: NamedNetwork, host: Host) -> None:
        old, new = await started(1, 1)
        name = Address("db", 1)
        network.names["db"] = [old.address]
        old.topology = new.topology = topology_of({0: (name, 1)})
        async with opened(host, name) as client:
            assert await client.append(0, b"a") == 0
            await old.stop()
            network.names["db"] = [new.address]
            new.partitions[0].log = list(old.partitions[0].log)
            assert await client.append(0, b"b") == 1
        await new.stop()

    with_network(work)


def test_changed_names_are_seen_while_all_is_well() -> None:
    """LC-88: a server that nobody has told of, found by looking now and then."""

    async def work(network: NamedNetwork, host: Host) -> None:
        old, new = await started(1, 1)
        network.names["db"] = [old.address]
        old.topology = topology_of({0: (old.address, 1)})
        async with opened(host, Address("db", 1), refresh_seconds=0.05) as client:
            assert await client.append(0, b"a") == 0
            new.partitions[0].generation = 2
            new.partitions[0].log = list(old.partitions[0].log)
            new.topology = topology_of({0: (new.address, 2)}, version=2)
            network.names["db"] = [new.address]
            await until(lambda: new.count(MountRequest) == 1)
            assert await client.append(0, b"b") == 1
            assert len(new.partitions[0].log) == 2
            assert len(old.partitions[0].log) == 1
        for server in (old, new):
            await server.stop()

    with_network(work)


# Following


def test_a_new_server_is_connected_and_one_without_partitions_is_left() -> None:
    """LC-61: with no change of configuration; the old one is not tried again."""

    async def work(network: NamedNetwork, host: Host) -> None:
        one, two = await started(1, 1)
        one.topology = topology_of({0: (one.address, 1)})
        async with opened(host, one.address, refresh_seconds=0) as client:
            await client.append(0, b"a")
            two.partitions[0].log = list(one.partitions[0].log)
            two.partitions[0].generation = 2
            two.topology = topology_of({0: (two.address, 2)}, version=2)
            one.tell(two.topology)
            await until(lambda: bool(two.connections))  # until then `one` may still be appended to
            assert await client.append(0, b"b") == 1
            assert len(two.partitions[0].log) == 2
            await until(lambda: not one.connections)
            accepted = one.accepted
            one.cut()
            await client.append(0, b"c")
            assert one.accepted == accepted
        for server in (one, two):
            await server.stop()

    with_network(work)


def test_a_server_that_is_cut_off_from_the_others_drags_nobody_back() -> None:
    """LC-86."""

    async def work(network: NamedNetwork, host: Host) -> None:
        stale, fresh = await started(2, 2)
        old = topology_of({0: (stale.address, 1), 1: (stale.address, 1)})
        new = topology_of({0: (fresh.address, 2), 1: (stale.address, 1)}, version=2)
        stale.topology, fresh.topology = old, new
        fresh.partitions[0].generation = 2
        async with opened(host, fresh.address) as client:
            await client.append(0, b"a")
            await client.append(1, b"b")
            stale.tell(old)
            assert await client.get_high_water_mark(1) == 0
            await client.append(0, b"c")
        assert len(fresh.partitions[0].log) == 2
        assert not stale.partitions[0].log
        for server in (stale, fresh):
            await server.stop()

    with_network(work)


def test_more_partitions_are_seen() -> None:
    """CI-09, UA-121."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(2)
        async with opened(host, server.address) as client:
            assert client.partition_count == 1
            here = server.address
            server.tell(topology_of({0: (here, 1), 1: (here, 1)}, version=2))
            await until(lambda: client.partition_count == 2)
            assert await client.append(1, b"a") == 0
        await server.stop()

    with_network(work)


# Breaks


def test_an_idle_client_comes_back_by_itself() -> None:
    """LC-71, LC-73, LC-89, UA-15: ten times, each break and return told once and in order."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        address = server.address
        events: list[Any] = []
        options: dict[str, Any] = {"reconnect_seconds_max": 0.05, "listener": events.append}
        async with opened(host, address, **options) as client:
            for times in range(1, 11):
                await until(lambda n=times: events.count(PartitionMounted(P0)) == n)  # type: ignore[misc]
                await server.stop()
                await until(lambda n=times: events.count(ServerDisconnected(address)) == n)  # type: ignore[misc]
                await server.start_again(address)
            assert await client.append(0, b"a") == 0
        up = [ServerConnected(address), PartitionMounted(P0)]
        servers = [e for e in events if isinstance(e, ServerConnected | ServerDisconnected)]
        mounts = [e for e in events if isinstance(e, PartitionMounted | PartitionUnmounted)]
        assert servers[:20] == [up[0], ServerDisconnected(address)] * 10
        assert mounts[:20] == [up[1], PartitionUnmounted(P0)] * 10
        await server.stop()

    with_network(work)


def test_an_operation_waits_for_servers_that_come_back_in_time() -> None:
    """LC-74."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        address = server.address
        async with opened(host, address) as client:
            await client.append(0, b"a")
            await server.stop()
            note = asyncio.create_task(client.append(0, b"b"))
            mark = asyncio.create_task(client.get_high_water_mark(0))
            await until(lambda: address in network.attempts[4:])
            await server.start_again(address)
            assert await note == 1
            assert await mark >= 0
        await server.stop()

    with_network(work)


def test_an_operation_gives_up_when_no_server_comes_back_in_time() -> None:
    """LC-74."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        events: list[Any] = []
        options: dict[str, Any] = {"mount_seconds_max": 0.2, "listener": events.append}
        async with opened(host, server.address, **options) as client:
            await until(lambda: PartitionMounted(P0) in events)  # however long that takes
            await client.append(0, b"a")
            await server.stop()
            await until(lambda: PartitionUnmounted(P0) in events)
            with pytest.raises(PartitionNotReadyError):
                await client.append(0, b"b")

    with_network(work)


def test_a_cluster_that_was_replaced_is_told_once_and_never_applied() -> None:
    """LC-75, LC-76, LC-89, UA-17, UA-18."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        address = server.address
        events: list[Any] = []
        recorder = Recorder()
        client = opened(host, address, recorder=recorder, listener=events.append)
        await client.start()
        await client.append(0, b"a")
        await server.stop()
        other = TellingServer(1)
        for number in range(5):
            other.partitions[0].add(b"other %d" % number)
        await other.start_again(address)
        other.topology = topology_of({0: (address, 7)}, version=9, key=OTHER_KEY)
        other.partitions[0].generation = 7
        changed = ClusterChanged(CLUSTER_KEY, OTHER_KEY)
        await until(lambda: changed in events)
        with pytest.raises(ClusterChangedError, match=str(OTHER_KEY)):
            await client.submit(Note())
        with pytest.raises(ClusterChangedError):
            await client.get_high_water_mark(0)
        await client.close()
        assert events.count(changed) == 1
        attempts = len(network.attempts)
        assert recorder.data == [b"a"]
        async with opened(host_without_coordinator(), address, recorder=Recorder()) as another:
            assert another.cluster_key == OTHER_KEY
            assert await another.append(0, b"new") == 5
        assert len(network.attempts) == attempts
        await other.stop()

    with_network(work)


def test_a_replaced_cluster_is_told_of_however_it_is_found() -> None:
    """LC-75, LC-89: here by the search, at a server that had no partition before."""

    async def work(network: NamedNetwork, host: Host) -> None:
        owner, given = await started(1, 1)
        address = given.address
        owner.topology = topology_of({0: (owner.address, 1)}, idle=[address])
        given.topology = owner.topology
        events: list[Any] = []
        client = opened(host, address, listener=events.append)
        await client.start()
        await client.append(0, b"a")
        await owner.stop()
        await given.stop()
        other = TellingServer(1)
        other.topology = topology_of({0: (address, 7)}, key=OTHER_KEY)
        await other.start_again(address)
        await until(lambda: ClusterChanged(CLUSTER_KEY, OTHER_KEY) in events)
        await client.close()
        await other.stop()

    with_network(work)


def test_a_reader_of_a_cluster_that_was_replaced_says_so() -> None:
    """LC-75."""

    async def work(network: NamedNetwork, host: Host) -> None:
        (server,) = await started(1)
        address = server.address
        server.partitions[0].add(b"a")
        async with AsyncLogReader(host, servers=[address]) as reader:
            following = reader.follow(0, 0)
            assert (await anext(following)).data == [b"a"]
            await server.stop()
            other = TellingServer(1)
            other.partitions[0].add(b"x")
            other.partitions[0].add(b"y")
            await other.start_again(address)
            other.topology = topology_of({0: (address, 7)}, key=OTHER_KEY)
            with pytest.raises(ClusterChangedError):
                await anext(following)
            with pytest.raises(ClusterChangedError):
                await reader.high_water_mark(0)
        await other.stop()

    with_network(work)
