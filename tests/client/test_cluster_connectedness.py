"""Whether a client is connected to its cluster, and who it is connected to."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from tests.client.applications import Recorder
from tests.client.fake_cluster import hosts_for, server_thread, until
from tests.client.telling_servers import (
    NamedNetwork,
    host_without_coordinator,
    run_bounded,
    started,
)
from tests.clusters import wait_until
from tests.server.real_server import Proxy, running_server
from waltz.client.blocking_client import WaltzClient
from waltz.client.client_options import ClientOptions
from waltz.client.client_shell import AsyncWaltzClient
from waltz.connections.connection_shell import RESTORED, ServerConnection
from waltz.server.server_shell import Server, ServerConfig
from waltz.types import Address

LOOPBACK = Address("127.0.0.1", 0)


def test_a_client_is_connected_as_long_as_one_server_is_there() -> None:
    """LC-05: of three two are stopped, then the third, and that one comes back."""

    async def work() -> None:
        servers = one, two, three = await started(1, 2, 3)
        options = ClientOptions(servers=[one.address], refresh_seconds=0)
        async with AsyncWaltzClient(host_without_coordinator(), Recorder(), options) as client:
            await until(lambda: client.connected_servers == {each.address for each in servers})
            await one.stop()
            await two.stop()
            await until(lambda: client.connected_servers == {three.address})
            assert await client.append(2, b"still connected") == 0
            at = three.address
            await three.stop()
            await until(lambda: not client.connected_servers)
            await three.start_again(at)
            await until(lambda: client.connected_servers == {at})
        await three.stop()

    run_bounded(work)


def test_a_client_for_threads_says_it_too() -> None:
    """LC-05."""
    with (
        server_thread() as server,
        WaltzClient(hosts_for(server), Recorder(), ClientOptions()) as client,
    ):
        wait_until(lambda: client.connected_servers == {server.address}, "not connected")


def test_connections_and_nodes_have_ids_that_nobody_else_has(tmp_path: Path) -> None:
    """LC-06: of a connection for itself; of a server at each of its connections, and no other's."""

    async def main() -> None:
        async with running_server(tmp_path) as (host, server):
            other = Server(host, ServerConfig(LOOPBACK))
            await other.start()
            agreements = []
            for address in (server.address, server.address, other.address, other.address):
                connection = await ServerConnection.open(host, address, RESTORED)
                agreements.append(connection.agreement)
                connection.close()
            assert None not in agreements
            nodes = [each.node_id for each in agreements if each is not None]
            assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
            assert len({each.connection_id for each in agreements if each is not None}) == 4
            await other.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))


def test_a_node_is_restored_by_another_address_of_its_name(tmp_path: Path) -> None:
    """LC-46: the connection is the node's, by whichever address it is reached."""

    async def main() -> None:
        network, proxies = NamedNetwork(), [Proxy(), Proxy()]
        for proxy in proxies:
            await proxy.start()
        name = Address("node", 7)
        network.names["node"] = [proxies[0].address]
        async with running_server(tmp_path, advertised=name) as (host, server):
            for proxy in proxies:
                proxy.target = server.address
            doors = replace(host, network=network)
            async with AsyncWaltzClient(doors, Recorder()) as client:
                assert await client.append(0, b"first") == 0
                await until(lambda: server.state().connections == 2)
                network.names["node"] = [proxies[1].address]
                for proxy in proxies:
                    proxy.cut()
                assert await client.append(0, b"second") == 1
                connections = client.engine._connections
                await until(lambda: all(each.is_carried for each in connections._open.values()))
                await until(lambda: server.state().connections == proxies[1].count == 2)
                assert connections._machine._next_sequence == 2, "none but those of the beginning"
        for proxy in proxies:
            await proxy.stop()

    asyncio.run(asyncio.wait_for(main(), 240.0))
