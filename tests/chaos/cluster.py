"""A small cluster of processes whose servers are reached through proxies only.

Owns the coordinator, which runs here, the processes, and the proxies before the servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from tests.chaos.proxy import ChaosProxy
from tests.smoke.processes import HOST, Node
from waltz.cli.trial_directory import choose_ports
from waltz.cli.up import DISK_FREE_BYTES_TRIAL
from waltz.cluster.cluster_shell import StorageEntry, create_cluster
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.system.real_host import real_host
from waltz.types import Address

RESTORE_SECONDS: Final = (10.0, 0.4)
"""server.connectionRestoreTimeout of each server: as usual, and so short that most silences outlast
it."""

SERVERS: Final = len(RESTORE_SECONDS)
PARTITIONS: Final = 4


class Cluster:
    """One storage node, some servers and their proxies, in `directory`."""

    def __init__(self, directory: Path, restore_seconds: Sequence[float], partitions: int) -> None:
        self.directory = directory
        self.partitions = partitions
        self.proxies = [ChaosProxy() for _ in restore_seconds]
        self._restore_seconds = restore_seconds
        self.servers: list[Node] = []
        self._storages: list[Node] = []
        self._coordinator = EmbeddedCoordinatorServer(str(directory / "coordinator.json"))

    @property
    def address(self) -> str:
        """How clients find it."""
        return f"waltz://{','.join(str(proxy.address) for proxy in self.proxies)}"

    @property
    def inner_address(self) -> str:
        """How those find it who must not depend on what becomes of connections to servers."""
        return str(self._coordinator.address)

    async def start(self) -> None:
        await self._coordinator.start(Address(HOST, 0))
        ports = iter(choose_ports(HOST, 0, 2 + len(self.proxies)))
        await self._start_storage(
            StorageEntry(Address(HOST, next(ports)), Address(HOST, next(ports)))
        )
        for number, proxy in enumerate(self.proxies):
            await self._start_server(number, proxy, Address(HOST, next(ports)))

    async def _start_storage(self, entry: StorageEntry) -> None:
        host = real_host(self._coordinator.address)
        await create_cluster(
            host.coordinator,
            name="chaos",
            partition_count=self.partitions,
            cluster_key=uuid4(),
            storages=[entry],
        )
        await host.coordinator.close()
        (self.directory / "storage").mkdir()
        arguments = [
            *("storage", "--coordinator", self.inner_address),
            *("--address", str(entry.connect), "--admin-address", str(entry.admin)),
            *("--directory", str(self.directory / "storage")),
            *("--disk-free-min", str(DISK_FREE_BYTES_TRIAL), "--assign-all"),
        ]
        self._storages = [Node("storage", entry.connect, arguments, self.directory / "storage.log")]
        await self._storages[0].start()

    async def _start_server(self, number: int, proxy: ChaosProxy, address: Address) -> None:
        await proxy.start()
        proxy.target = address
        config = self.directory / f"server-{number}.yml"
        config.write_text(f"server.connectionRestoreTimeout: {self._restore_seconds[number]}\n")
        arguments = [
            *("server", str(config), "--coordinator", self.inner_address),
            *("--address", str(address), "--advertised", str(proxy.address)),
        ]
        node = Node(f"server-{number}", address, arguments, config.with_suffix(".log"))
        self.servers.append(node)
        await node.start()

    async def stop(self) -> None:
        for node in (*self.servers, *self._storages):
            if node.runs:
                await node.kill()
        for proxy in self.proxies:
            await proxy.stop()
        await self._coordinator.stop()

    def complaints(self) -> list[str]:
        """What the processes have logged as errors."""
        return [
            f"{node.name} logged: {line}"
            for node in (*self.servers, *self._storages)
            for line in node.log.read_text(errors="replace").splitlines()
            if " ERROR " in line or line.startswith("Traceback")
        ]


@asynccontextmanager
async def running_cluster(
    directory: Path,
    *,
    restore_seconds: Sequence[float] = RESTORE_SECONDS,
    partitions: int = PARTITIONS,
) -> AsyncIterator[Cluster]:
    """Run a new cluster in `directory`, which does not exist, for as long as the block; it has a
    server for each of `restore_seconds`."""
    directory.mkdir(parents=True)
    cluster = Cluster(directory, restore_seconds, partitions)
    try:
        await cluster.start()
        yield cluster
    finally:
        await asyncio.shield(cluster.stop())
