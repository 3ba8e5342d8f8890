"""A whole cluster in one process: storage nodes and servers, each on a machine of its own.

Owns how the product's shells are set up and started. Knows them by their public names only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from waltz.cluster.shell import StorageEntry, create_cluster
from waltz.host import Host
from waltz.server.shell import Server, ServerConfig
from waltz.sim.checkers import Log, records_on_disk
from waltz.sim.disk import SimulatedDisk
from waltz.sim.sites import Sites
from waltz.storage.shell import StorageConfig, StorageNode
from waltz.types import Address, PartitionId

STORAGE_DIRECTORY: Final = "/storage"
PORT: Final = 7000
ADMIN_PORT: Final = 7001


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """How large a cluster is, and what of its settings differs from run to run."""

    partition_count: int
    storage_count: int
    server_count: int
    segment_bytes_threshold: int
    syncs_late: bool
    """A seeded bug: disks say that they have synced, and lag one sync behind."""

    @property
    def partition_ids(self) -> list[PartitionId]:
        return [PartitionId(number) for number in range(self.partition_count)]


def draw_shape(random: Random, *, syncs_late: bool, server_count_min: int) -> ClusterShape:
    return ClusterShape(
        partition_count=2,
        storage_count=3,
        server_count=max(random.choice((1, 2, 2)), server_count_min),
        segment_bytes_threshold=random.choice((2_000, 20_000, 1_000_000_000)),
        syncs_late=syncs_late,
    )


class SimulatedCluster:
    """A cluster on simulated machines."""

    def __init__(self, sites: Sites, shape: ClusterShape, cluster_key: UUID) -> None:
        self.sites = sites
        self.shape = shape
        self.cluster_key = cluster_key
        self.storages = [f"storage-{number}" for number in range(shape.storage_count)]
        self.servers = [f"server-{number}" for number in range(shape.server_count)]

    async def start(self) -> None:
        """Create the cluster's metadata and let storage nodes and servers start."""
        await self.sites.run("creator", self._create_metadata)
        for name in self.storages:
            disk = SimulatedDisk([STORAGE_DIRECTORY], syncs_late=self.shape.syncs_late)
            self.sites.add(name, partial(self._run_storage, name), disk)
        for name in self.servers:
            self.sites.add(name, partial(self._run_server, name), SimulatedDisk())

    def replicas(self) -> Mapping[str, Log]:
        """What lies on the disks of the storage nodes now."""
        return {name: self._log_on(self.sites.disk(name)) for name in self.storages}

    def _log_on(self, disk: SimulatedDisk) -> Log:
        log = {}
        for partition_id in self.shape.partition_ids:
            directory = f"{STORAGE_DIRECTORY}/{partition_id}"
            names = disk.list_directory(directory) if disk.exists(directory) else ()
            files = {name: disk.content(f"{directory}/{name}") for name in names}
            log[partition_id] = records_on_disk(files)
        return log

    async def _create_metadata(self, host: Host) -> None:
        await create_cluster(
            host.coordinator,
            name="simulated",
            partition_count=self.shape.partition_count,
            cluster_key=self.cluster_key,
            storages=[
                StorageEntry(Address(name, PORT), Address(name, ADMIN_PORT))
                for name in self.storages
            ],
        )
        await host.coordinator.close()

    async def _run_storage(self, name: str, host: Host) -> None:
        config = StorageConfig(
            directory=STORAGE_DIRECTORY,
            cluster_key=self.cluster_key,
            partition_count=self.shape.partition_count,
            data_address=Address(name, PORT),
            admin_address=Address(name, ADMIN_PORT),
            segment_bytes_threshold=self.shape.segment_bytes_threshold,
            assigned_partitions=frozenset(self.shape.partition_ids),
        )
        node = StorageNode(host, config)
        await node.start()
        await node.run()

    async def _run_server(self, name: str, host: Host) -> None:
        server = Server(host, ServerConfig(address=Address(name, PORT)))
        await server.start()
        await server.run()
