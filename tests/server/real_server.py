"""A server on real sockets, and a proxy before it that cuts and holds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.host import Disk, Host
from waltz.server.server_shell import Server, ServerConfig
from waltz.storage.directory.space import FreeMinimum
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.system.tcp_network import NOT_CONFIGURED
from waltz.types import Address, PartitionId, TlsSettings

LOOPBACK = Address("127.0.0.1", 0)


class Proxy:
    """Passes bytes on to `target` and back, until told otherwise."""

    def __init__(self) -> None:
        self.target = LOOPBACK
        self.count = 0
        """TCP connections so far."""
        self.may_flow = asyncio.Event()
        self.may_flow.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> Address:
        assert self._server is not None, "started"
        return Address(LOOPBACK.host, self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK.host, 0)

    def cut(self) -> None:
        """End all connections; what is on its way is lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        try:
            there_reader, there_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        self._writers |= {writer, there_writer}
        await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))
        self._writers -= {writer, there_writer}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1024):
                await self.may_flow.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def running_server(
    directory: Path,
    *,
    tls: TlsSettings = NOT_CONFIGURED,
    partition_count: int = 1,
    disk: Disk | None = None,
    local_path: str | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Host, Server]]:
    """A server with these `settings` and that disk, a storage node and a coordinator in this
    process. `local_path` is the socket of this machine at which the server listens, too."""
    coordinator = EmbeddedCoordinatorServer(str(directory / "coordinator.json"), tls=tls)
    await coordinator.start(LOOPBACK)
    host = real_host(coordinator.address, tls)
    key = uuid4()
    (directory / "storage").mkdir()
    node = StorageNode(
        real_host(None, tls),
        StorageConfig(
            directory=str(directory / "storage"),
            cluster_key=key,
            partition_count=partition_count,
            data_address=LOOPBACK,
            admin_address=LOOPBACK,
            assigned_partitions=frozenset(map(PartitionId, range(partition_count))),
            disk_free_minimum=FreeMinimum.parse("1MiB"),
        ),
    )
    await node.start()
    await create_cluster(
        host.coordinator,
        name="test",
        partition_count=partition_count,
        cluster_key=key,
        storages=[StorageEntry(node.data_address, node.admin_address)],
    )
    own = host if disk is None else replace(host, disk=disk)
    if local_path is not None:
        near = real_host(None, tls, local_paths={LOOPBACK: local_path})
        own = replace(own, network=near.network)
    server = Server(own, ServerConfig(LOOPBACK, **settings))
    await server.start()
    try:
        yield host, server
    finally:
        await server.stop()
        await node.stop()
        await host.coordinator.close()
        await coordinator.stop()
