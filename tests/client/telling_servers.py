"""Servers in miniature that tell what their cluster is, and names that lead where a test says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from tests.client.fake_cluster import CLUSTER_KEY, FakeServer
from waltz.errors import ConnectionFailedError
from waltz.host import Connection, Host
from waltz.system.clock import RealClock
from waltz.system.random import RealRandom
from waltz.system.real_disk import RealDisk
from waltz.system.real_host import NoCoordinator
from waltz.system.tcp_network import RealNetwork
from waltz.system.workers import RealWorkers
from waltz.types import Address, ClientId, Generation, PartitionId, ServerId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    ClientIdResponse,
    PartitionEntry,
    ServerEntry,
    Topology,
    TopologyRequest,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Codec, Message

T = TypeVar("T")

OLD_CODEC = Codec(
    CLIENT_CODEC.magic,
    (0, 1, 2, 3, 4),
    [kind for kind in CLIENT_CODEC.messages if kind.SINCE < 5],
)
"""What Java servers speak at most."""


class TellingServer(FakeServer):
    """Answers what a client without a coordinator asks; the cluster is what a test says."""

    def __init__(self, partition_count: int = 1, codec: Codec = CLIENT_CODEC) -> None:
        super().__init__(partition_count, codec)
        self.topology: Topology | None = None
        """None: it does not answer."""
        self.client_id_error: str | None = None
        self.client_ids = 0
        self.accepted = 0
        self._subscribers: list[Connection] = []

    async def _serve(self, connection: Connection) -> None:
        self.accepted += 1
        await super()._serve(connection)

    def _answer(self, connection: Connection, link: Link, message: Message) -> None:
        match message:
            case TopologyRequest() if self.topology is not None:
                if message.subscribe:
                    self._subscribers.append(connection)
                self._send(connection, self.topology)
            case TopologyRequest():
                pass
            case ClientIdRequest():
                error = self.client_id_error
                self.client_ids += 1
                client_id = None if error else ClientId(self.client_ids)
                self._send(connection, ClientIdResponse(message.request_number, client_id, error))
            case _:
                super()._answer(connection, link, message)

    def tell(self, topology: Topology) -> None:
        """The cluster is this now: tell all who have subscribed."""
        self.topology = topology
        for connection in self._subscribers:
            self._send(connection, topology)


def topology_of(
    routes: Mapping[int, tuple[Address, int]],
    *,
    version: int = 1,
    key: UUID = CLUSTER_KEY,
    count: int | None = None,
    idle: Sequence[Address] = (),
) -> Topology:
    """`routes`: of each partition its server and generation; `idle`: servers without one."""
    addresses = [*dict.fromkeys((*(address for address, _ in routes.values()), *idle))]
    ids = {address: ServerId(1 + number) for number, address in enumerate(addresses)}
    return Topology(
        key,
        "fake",
        len(routes) if count is None else count,
        version,
        tuple(ServerEntry(server_id, (address,)) for address, server_id in ids.items()),
        tuple(
            PartitionEntry(PartitionId(number), Generation(generation), ids[address])
            for number, (address, generation) in routes.items()
        ),
    )


async def started(*partition_counts: int) -> list[TellingServer]:
    """One server for each count; together they have one partition each, all know all."""
    servers = [TellingServer(count) for count in partition_counts]
    for server in servers:
        await server.start()
    routes = {number: (server.address, 1) for number, server in enumerate(servers)}
    for server in servers:
        server.topology = topology_of(routes)
    return servers


class NamedNetwork(RealNetwork):
    """Resolves names as a test says, and counts attempts to connect."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, list[Address]] = {}
        self.attempts: list[Address] = []
        self.resolved: list[str] = []

    async def resolve(self, address: Address) -> Sequence[Address]:
        self.resolved.append(address.host)
        if address.host not in self.names:
            return await super().resolve(address)
        if not self.names[address.host]:
            raise ConnectionFailedError(f"{address.host!r} cannot be resolved")
        return self.names[address.host]

    async def connect(self, address: Address, *, name: str | None = None) -> Connection:
        self.attempts.append(address)
        return await super().connect(address, name=name)


class InOrder(RealRandom):
    """Keeps the order in which names were resolved."""

    def __init__(self) -> None:
        self._draws = 0

    def uniform(self, low: float, high: float) -> float:
        self._draws += 1
        return low + (high - low) * min(1.0, self._draws / 1e6)


def host_without_coordinator(network: RealNetwork | None = None) -> Host:
    return Host(
        RealClock(),
        network or NamedNetwork(),
        RealDisk(),
        RealRandom(),
        RealWorkers(),
        NoCoordinator(),
    )


def in_order(host: Host) -> Host:
    return replace(host, random=InOrder())


def closed_port() -> Address:
    """An address at which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return Address("127.0.0.1", found.getsockname()[1])


def run_bounded(work: Callable[[], Awaitable[T]]) -> T:
    """Run `work`; fails if it takes implausibly long."""

    async def main() -> T:
        async with asyncio.timeout(40):
            return await work()

    return asyncio.run(main())
