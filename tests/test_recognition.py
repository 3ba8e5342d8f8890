"""Every kind of client at every kind of port: who has the wrong address is told which one it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.server.real_server import running_server
from tests.zookeepers import RunningZooKeeper, running_zookeeper
from waltz.cluster.cluster_shell import read_replica_assignments
from waltz.connections.connection_shell import ServerConnection
from waltz.errors import WaltzError
from waltz.host import Host
from waltz.operators.conversation_shell import conversation
from waltz.recognition import (
    ADMIN,
    COORDINATOR,
    HTTP,
    SERVER,
    STORAGE,
    ZOOKEEPER,
    mistaken,
    recognized,
)
from waltz.system.embedded import EmbeddedCoordinator
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.http import Answer, HttpServer
from waltz.system.real_host import real_host
from waltz.system.tcp_network import RealNetwork
from waltz.system.zookeeper import ZooKeeperCoordinator
from waltz.types import Address
from waltz.wire.admin_protocol import ADMIN_CLIENT_GREETING, ADMIN_CODEC, ADMIN_SERVER_GREETING
from waltz.wire.handshake import Link
from waltz.wire.storage_protocol import STORAGE_CLIENT_GREETING, STORAGE_CODEC

PATIENCE = (1.0, 10.0, 60.0)
"""A client of the coordinator tries a wrong port again for as long. It tells what it has met, if it
has met anything by then."""


async def be_client(host: Host, address: Address, seconds: float) -> None:
    (await ServerConnection.open(host, address)).close()


async def be_server(host: Host, address: Address, seconds: float) -> None:
    async with conversation(host, address, STORAGE_CODEC, STORAGE_CLIENT_GREETING, seconds=60):
        pass


async def be_operator(host: Host, address: Address, seconds: float) -> None:
    async with conversation(host, address, ADMIN_CODEC, ADMIN_CLIENT_GREETING, seconds=60):
        pass


async def be_member(host: Host, address: Address, seconds: float) -> None:
    coordinator = EmbeddedCoordinator(address, RealNetwork(), call_seconds_max=seconds)
    try:
        await coordinator.children("/")
    finally:
        await coordinator.close()


async def be_member_of_a_zookeeper(host: Host, address: Address, seconds: float) -> None:
    coordinator = ZooKeeperCoordinator(str(address), call_seconds_max=seconds)
    try:
        await coordinator.children("/")
    finally:
        await coordinator.close()


MAY_BE_A_ZOOKEEPER = r"a ZooKeeper does this, too.*check host and port"

CLIENTS: dict[str, Callable[[Host, Address, float], Awaitable[None]]] = {
    SERVER: be_client,
    STORAGE: be_server,
    ADMIN: be_operator,
    COORDINATOR: be_member,
    ZOOKEEPER: be_member_of_a_zookeeper,
}
"""By what each looks for."""


async def refusal(wanted: str, host: Host, address: Address, text: str) -> str:
    """Return what a client says of a wrong port, in which `text` occurs."""
    said = ""
    for seconds in PATIENCE:
        with pytest.raises(WaltzError) as raised:
            await CLIENTS[wanted](host, address, seconds)
        said = str(raised.value)
        if re.search(text, said):
            return said
    raise AssertionError(f"{said!r} does not say {text!r}")


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningZooKeeper]:
    with running_zookeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@asynccontextmanager
async def all_ports(directory: Path) -> AsyncIterator[tuple[Host, dict[str, Address]]]:
    """A server, a storage node, a coordinator and an HTTP port as they are; an admin port by its
    greeting."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(Link(ADMIN_CODEC, ADMIN_SERVER_GREETING).hello())
        await writer.drain()

    admin = await asyncio.start_server(greet, "127.0.0.1", 0)
    http = HttpServer({"/": lambda: Answer(200, "text/plain", b"")})
    await http.start(Address("127.0.0.1", 0))
    coordinator = EmbeddedCoordinatorServer(str(directory / "another.json"))
    await coordinator.start(Address("127.0.0.1", 0))
    async with running_server(directory) as (host, server):
        (replica_id,) = await read_replica_assignments(host.coordinator)
        yield (
            host,
            {
                SERVER: server.address,
                STORAGE: Address.parse(replica_id),
                ADMIN: Address("127.0.0.1", admin.sockets[0].getsockname()[1]),
                HTTP: http.address,
                COORDINATOR: coordinator.address,
            },
        )
    await coordinator.stop()
    admin.close()
    await http.stop()


@pytest.mark.parametrize("wanted", CLIENTS)
def test_every_client_names_what_it_has_found_and_what_it_wants(
    tmp_path: Path, wanted: str
) -> None:
    async def ask_all() -> None:
        async with all_ports(tmp_path) as (host, ports):

            async def ask(found: str, address: Address) -> None:
                if found == wanted:
                    await CLIENTS[wanted](host, address, PATIENCE[-1])
                    return
                said = await refusal(wanted, host, address, f"{found} answers ")
                assert f"; expected {wanted}: give the address of {wanted}" in said

            await asyncio.gather(*(ask(found, address) for found, address in ports.items()))

    asyncio.run(ask_all())


@pytest.mark.processes
@pytest.mark.parametrize("wanted", CLIENTS)
def test_a_zookeeper_that_says_nothing_is_named_as_what_it_may_be(
    zookeeper: RunningZooKeeper, wanted: str
) -> None:
    """It ends the connection of all but its own clients, as a process does that takes TLS only."""

    async def ask() -> None:
        host = real_host(None)
        if wanted == ZOOKEEPER:
            await CLIENTS[wanted](host, zookeeper.address, PATIENCE[-1])
            return
        for _ in range(2):  # plain at first, then with TLS
            await refusal(wanted, host, zookeeper.address, MAY_BE_A_ZOOKEEPER)

    asyncio.run(ask())


@pytest.mark.parametrize("data", [b"", b"H", b"GET / HTTP/1.1", b"H\x00\x00 another greeting"])
def test_what_is_not_known_is_not_guessed(data: bytes) -> None:
    assert recognized(data) is None
    assert mistaken("Waltz Client", recognized(data)) is None


def test_a_port_with_tls_and_a_coordinator_are_known_by_their_first_bytes() -> None:
    assert recognized(b"\x15\x03\x01\x00\x02") == "a port that expects TLS"
    assert recognized(b'{"error"') == COORDINATOR
    assert recognized(b"srvr is not executed because it is not in the whitelist.") == ZOOKEEPER
