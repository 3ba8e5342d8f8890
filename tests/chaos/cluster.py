"""A small cluster of processes whose servers are reached through proxies only.

Owns the coordinator, which runs in this process, and the proxies before the servers. A server
advertises the address of its proxy, so that clients that find the cluster through its servers
always pass a proxy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.live.faults import Proxy
from tests.live.launch import Cluster, free_addresses
from waltz.cluster.cluster_shell import StorageEntry
from waltz.system.embedded_server import EmbeddedCoordinatorServer
from waltz.types import Address

RESTORE_SECONDS: Final = (10.0, 0.4)
"""server.connectionRestoreTimeout of each server: as usual, and so short that most silences outlast
it."""

SERVERS: Final = len(RESTORE_SECONDS)
PARTITIONS: Final = 4


class ProxiedCluster(Cluster):
    """One storage node, and a server with a proxy for each of `restore_seconds`."""

    def __init__(
        self,
        directory: Path,
        *,
        restore_seconds: Sequence[float] = RESTORE_SECONDS,
        partitions: int = PARTITIONS,
    ) -> None:
        self._addresses = free_addresses(3 + len(restore_seconds))
        super().__init__(directory, next(self._addresses))
        self.partitions = partitions
        self.proxies = [Proxy() for _ in restore_seconds]
        self._restore_seconds = restore_seconds
        self._coordinator = EmbeddedCoordinatorServer(str(directory / "coordinator.json"))

    @property
    def address(self) -> str:
        """The address for clients whose connections may be cut; the coordinator's address leads to
        the cluster whatever is done to connections."""
        return f"waltz://{','.join(str(proxy.address) for proxy in self.proxies)}"

    async def start(self) -> None:
        assert isinstance(self.coordinator, Address)
        await self._coordinator.start(self.coordinator)
        entry = StorageEntry(next(self._addresses), next(self._addresses))
        await self.create(self.partitions, [entry])
        self.add_storage("storage", entry, "--assign-all")
        for number, (proxy, seconds) in enumerate(
            zip(self.proxies, self._restore_seconds, strict=True)
        ):
            await proxy.start()
            proxy.target = next(self._addresses)
            config = self.directory / f"server-{number}.yml"
            config.write_text(f"server.connectionRestoreTimeout: {seconds}\n")
            self.add_server(
                *(f"server-{number}", proxy.target, str(config)),
                *("--advertised", str(proxy.address)),
            )
        await self.start_nodes()

    async def close(self) -> None:
        await super().close()
        for proxy in self.proxies:
            await proxy.stop()
        await self._coordinator.stop()
