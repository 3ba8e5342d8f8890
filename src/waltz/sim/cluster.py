"""A whole cluster in one process: storage nodes and servers, each on a machine of its own.

Owns how the product's shells are set up and started. Knows them by their public names only.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from uuid import UUID

from waltz import limits
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.shell import StorageEntry, create_cluster, register_storage_directory
from waltz.errors import NoNodeError
from waltz.host import Host
from waltz.server.shell import Server, ServerConfig
from waltz.sim.disk import SimulatedDisk
from waltz.sim.replicas import Replicas, durable_part, replica_on
from waltz.sim.scenario import ClusterShape
from waltz.sim.sites import Sites, until_stopped
from waltz.storage.shell import StorageConfig, StorageNode
from waltz.types import Address, ReplicaId

STORAGE_DIRECTORY: Final = "/storage"
PORT: Final = 7000
ADMIN_PORT: Final = 7001
PATHS: Final = ClusterPaths(DEFAULT_ROOT)
SCRUB_SECONDS: Final = 30.0
"""Between two passes over the records: what nobody has read is to be found before a run ends."""


class SimulatedCluster:
    """A cluster on simulated machines."""

    def __init__(
        self, sites: Sites, shape: ClusterShape, cluster_key: UUID, *, name: str = "simulated"
    ) -> None:
        self.sites = sites
        self.name = name
        self.shape = shape
        self.cluster_key = cluster_key
        self.storages = shape.storages
        self.servers = shape.servers

    async def start(self) -> None:
        """Create the cluster's metadata and let storage nodes and servers start."""
        await self.sites.run("creator", self._create_metadata)
        for name in self.storages:
            self._start_storage(name)
        for name in self.servers:
            self._start_server(name)

    def add_storage(self, name: str) -> None:
        """Start one more storage node, with an empty disk. The cluster does not know it yet."""
        self.storages.append(name)
        self._start_storage(name)

    def add_server(self, name: str) -> None:
        """Start one more server, which joins by itself."""
        self.servers.append(name)
        self._start_server(name)

    def _start_storage(self, name: str) -> None:
        disk = SimulatedDisk([STORAGE_DIRECTORY])
        self.sites.add(name, partial(self._run_storage, name), disk)

    def _start_server(self, name: str) -> None:
        self.sites.add(name, partial(self._run_server, name), SimulatedDisk())

    def replicas(self, *, durable: bool) -> Replicas:
        """What lies on the disks of the storage nodes now; or only what would still be there after
        a power cut now."""
        disks = {name: self.sites.disk(name) for name in self.storages}
        return {
            name: replica_on(
                durable_part(disk) if durable else disk,
                STORAGE_DIRECTORY,
                self.shape.partition_ids,
            )
            for name, disk in disks.items()
        }

    def is_outdated(self, name: str, disk: SimulatedDisk) -> bool:
        """Whether the cluster can tell that the disk of a storage node, which is not running, is
        an old one: of each partition the metadata know of a later session there, or have written
        its replica off."""
        marks = replica_on(disk, STORAGE_DIRECTORY, self.shape.partition_ids).marks
        replica_id = ReplicaId(str(Address(name, PORT)))
        for partition_id in self.shape.partition_ids:
            try:
                node = self.sites.coordinator.tree.read(PATHS.partition_metadata(partition_id))
            except NoNodeError:
                continue
            metadata = PartitionMetadata.decode(node.data or b"", partition_id)
            state = metadata.replica_states.get(replica_id)
            if state is None or state.closing_high_water_mark is not None:
                continue
            if partition_id in marks and marks[partition_id].session_id >= state.session_id:
                return False
        return True

    async def _create_metadata(self, host: Host) -> None:
        await create_cluster(
            host.coordinator,
            name=self.name,
            partition_count=self.shape.partition_count,
            cluster_key=self.cluster_key,
            storages=[
                StorageEntry(Address(name, PORT), Address(name, ADMIN_PORT))
                for name in self.storages
            ],
        )
        await host.coordinator.close()

    async def _run_storage(self, name: str, host: Host) -> None:
        address = Address(name, PORT)

        async def register(directory_id: UUID) -> None:
            replica_id = ReplicaId(str(address))
            await register_storage_directory(host.coordinator, replica_id, directory_id)
            await host.coordinator.close()

        config = StorageConfig(
            directory=STORAGE_DIRECTORY,
            cluster_key=self.cluster_key,
            partition_count=self.shape.partition_count,
            data_address=address,
            admin_address=Address(name, ADMIN_PORT),
            segment_bytes_threshold=self.shape.segment_bytes_threshold,
            assigned_partitions=frozenset(self.shape.partition_ids),
            register=register,
            scrub_interval_seconds=SCRUB_SECONDS,
        )
        node = StorageNode(host, config)
        await node.start()
        await until_stopped(node.run())
        await node.stop()

    async def _run_server(self, name: str, host: Host) -> None:
        config = ServerConfig(
            Address(name, PORT),
            feed_cache_bytes=limits.FEED_CACHE_BYTES,
            feed_fetch_min=limits.FEED_FETCH_MIN,
            lock_table_slots=limits.LOCK_TABLE_SLOTS,
            checkpoint_transactions=limits.CHECKPOINT_TRANSACTIONS,
            ends_with_partition=True,
        )
        server = Server(host, config)
        await server.start()
        await until_stopped(server.run())
        await server.stop()
        await host.coordinator.close()
