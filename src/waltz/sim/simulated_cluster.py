"""A whole cluster in one process: storage nodes and servers, each on a machine of its own.

Owns how the product's shells are set up and started. Knows them by their public names only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from waltz import limits
from waltz.access.policy_watch_shell import AccessConfig
from waltz.cluster.cluster_shell import (
    StorageEntry,
    create_cluster,
    latest_session,
    read_store_params,
    register_storage_directory,
)
from waltz.cluster.kept_coordinator_shell import KeptCoordinator
from waltz.cluster.partition_metadata import NEW_PARTITION, PartitionMetadata, last_session
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.replica_assignments import ReplicaAssignments
from waltz.cluster.store_params import ClusterParams, StoreParams
from waltz.errors import NoNodeError
from waltz.host import Host
from waltz.server.server_shell import Server, ServerConfig
from waltz.sim.judges.replicas import Replicas, replica_on
from waltz.sim.loop import Process
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites, until_stopped
from waltz.storage.storage_node_shell import StorageConfig, StorageNode
from waltz.types import Address, PartitionId, ReplicaId, SessionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.storage_protocol import STORAGE_CODEC

STORAGE_DIRECTORY: Final = "/storage"
PORT: Final = 7000
ADMIN_PORT: Final = 7001
PATHS: Final = ClusterPaths(DEFAULT_ROOT)
SCRUB_SECONDS: Final = 30.0
"""Seconds between two scrubs of the records: what no process has read must be found before a run
ends."""


def replica_id_of(name: str) -> ReplicaId:
    """Return the cluster's name for the storage node on a machine."""
    return ReplicaId(str(Address(name, PORT)))


def machine_of(replica_id: ReplicaId) -> str:
    """The machine that a storage node runs on."""
    return Address.parse(replica_id).host


SERVERS_NAME: Final = "servers"
"""Leads to all servers of a cluster, as a name of a service does."""


def server_addresses(shape: ClusterShape) -> tuple[Address, ...]:
    """Return the addresses given to clients without a coordinator: a name for all servers, and one
    server."""
    return Address(SERVERS_NAME, PORT), Address(shape.servers[-1], PORT)


class SimulatedCluster:
    """A cluster on simulated machines."""

    def __init__(
        self,
        sites: Sites,
        shape: ClusterShape,
        cluster_key: UUID,
        next_version: Callable[[str], int] = lambda _: CLIENT_CODEC.versions[-1],
        next_storage_version: Callable[[str], int] = lambda _: STORAGE_CODEC.versions[-1],
        *,
        name: str = "simulated",
        follows_policy: bool = False,
    ) -> None:
        """`next_version` is asked, at each start of a server, for the latest version of the client
        protocol that it speaks, `next_storage_version`, also of a storage node, for that of the
        storage protocol. `follows_policy`: servers ask the policy that the coordinator keeps."""
        self.sites = sites
        self._access = AccessConfig(follows_coordinator=follows_policy)
        self.name = name
        self.shape = shape
        self.cluster_key = cluster_key
        self.storages = shape.storages
        self.servers = shape.servers
        self._next_version = next_version
        self._next_storage_version = next_storage_version

    @property
    def partition_ids(self) -> list[PartitionId]:
        """Return the cluster's present partitions; before it is created, those that it will
        have."""
        return list(map(PartitionId, range(self._counts()[0])))

    def _counts(self) -> tuple[int, int]:
        """Return the number of partitions of the cluster, and of those that storage nodes make room
        for."""
        tree = self.sites.coordinator.tree
        try:
            params, store = tree.read(PATHS.root).data, tree.read(PATHS.store).data
        except NoNodeError:
            params = store = None
        if params is None or store is None:
            return self.shape.partition_count, self.shape.partition_count
        found = ClusterParams.decode(params).partition_count
        return found, StoreParams.decode(store).partition_count

    async def start(self) -> None:
        """Create the cluster's metadata and let storage nodes and servers start."""
        self.sites.network.names[SERVERS_NAME] = self.servers
        await self.sites.run("creator", self._create_metadata)
        for name in self.storages:
            self._start_storage(name)
        for name in self.shape.spares:
            self.add_storage(name)
        for name in self.servers:
            self._start_server(name)

    def begin_again(self, cluster_key: UUID, disks: Mapping[str, SimulatedDisk]) -> None:
        """Start the storage nodes of a cluster that was restored, on their disks, and servers. No
        process of before is alive."""
        self.cluster_key = cluster_key
        self.storages = [*disks]
        for name, disk in disks.items():
            self._start_storage(name, disk)
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

    def _start_storage(self, name: str, disk: SimulatedDisk | None = None) -> None:
        disk = disk or SimulatedDisk([STORAGE_DIRECTORY])
        self.sites.add(name, partial(self._run_storage, name), disk)

    def _start_server(self, name: str) -> None:
        self.sites.add(name, partial(self._run_server, name), SimulatedDisk())

    def replicas(self, *, durable: bool) -> Replicas:
        """Return the present content of the storage nodes' disks; if `durable`, only what a power
        cut now would leave."""
        disks = {name: self.sites.disk(name) for name in self.storages}
        partition_ids = self.partition_ids
        return {
            name: replica_on(
                disk.files.durable_contents() if durable else disk.contents(),
                STORAGE_DIRECTORY,
                partition_ids,
            )
            for name, disk in disks.items()
        }

    def assigned(self) -> dict[PartitionId, set[str]]:
        """Return, per partition, the names of the storage nodes assigned to it."""
        node = self.sites.coordinator.tree.read(PATHS.replica_assignments)
        assignments = ReplicaAssignments.decode(node.data or b"")
        return {
            partition_id: {*map(machine_of, assignments.replicas(partition_id))}
            for partition_id in self.partition_ids
        }

    def members(self) -> dict[PartitionId, set[str]]:
        """Return, per partition, the names of the storage nodes in its metadata: a majority of them
        holds what is committed. Empty before its first session."""
        return {
            partition_id: {*map(machine_of, self._metadata(partition_id).replica_states)}
            for partition_id in self.partition_ids
        }

    def current_replicas(self, partition_id: PartitionId) -> list[ReplicaId]:
        """Return the storage nodes that have begun the partition's last session, by the metadata
        and by their own disks: below a mark that was told they hold what the log has."""
        metadata = self._metadata(partition_id)
        found = []
        for replica_id, state in metadata.replica_states.items():
            if state.session_id != metadata.session_id or state.closing_high_water_mark is not None:
                continue
            contents = self.sites.disk(machine_of(replica_id)).contents()
            marks = replica_on(contents, STORAGE_DIRECTORY, [partition_id]).marks.get(partition_id)
            if marks is not None and marks.session_id == metadata.session_id:
                found.append(replica_id)
        return found

    def nodes(self) -> dict[str, bytes]:
        """Return the data of the coordinator's nodes, by path below the cluster's root."""
        tree = self.sites.coordinator.tree
        found: dict[str, bytes] = {}

        def walk(path: str) -> None:
            found[path.removeprefix(PATHS.root)] = tree.read(path).data or b""
            for name in tree.children(path):
                walk(f"{path}/{name}")

        walk(PATHS.root)
        return found

    def written_off(self, replicas: Replicas) -> set[tuple[str, PartitionId]]:
        """Return the replicas that begin anew from the mark that the metadata wrote them off with,
        whatever their own marks: it names them as closed, and they lack the last session that took
        appends, or hold nothing of it beyond their low-water mark.

        The second is a replica that was filled up and given the mark of a session, and the session
        ended before the metadata named it: no vote of that session was its vote.
        """
        found = set()
        for partition_id in self.partition_ids:
            states = self._metadata(partition_id).replica_states
            for replica_id, state in states.items():
                replica = replicas[machine_of(replica_id)]
                marks = replica.marks.get(partition_id)
                if marks is None or state.closing_high_water_mark is None:
                    continue
                joined = len(replica.records[partition_id]) > marks.low_water_mark + 1
                last = last_session(states)
                if marks.session_id < last or (marks.session_id == last and not joined):
                    found.add((machine_of(replica_id), partition_id))
        return found

    def _metadata(self, partition_id: PartitionId) -> PartitionMetadata:
        try:
            node = self.sites.coordinator.tree.read(PATHS.partition_metadata(partition_id))
        except NoNodeError:
            return NEW_PARTITION
        return PartitionMetadata.decode(node.data or b"", partition_id)

    def is_outdated(self, name: str, disk: SimulatedDisk) -> bool:
        """Return whether the cluster can tell that the disk of a storage node, which is not
        running, is an old one: for each partition the metadata knows of a later session there, or
        has written its replica off."""
        marks = replica_on(disk.contents(), STORAGE_DIRECTORY, self.partition_ids).marks
        replica_id = replica_id_of(name)
        for partition_id in self.partition_ids:
            state = self._metadata(partition_id).replica_states.get(replica_id)
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
            await register_storage_directory(host.coordinator, replica_id_of(name), directory_id)
            await host.coordinator.close()

        kept = KeptCoordinator(lambda: self.sites.coordinator.door(Process(f"{name} asks")))

        async def read_partition_count() -> int:
            return (await kept.ask(read_store_params)).partition_count

        async def latest(partition_id: PartitionId) -> SessionId:
            return await kept.ask(partial(latest_session, partition_id=partition_id))

        config = StorageConfig(
            directory=STORAGE_DIRECTORY,
            cluster_key=self.cluster_key,
            partition_count=self._counts()[1],
            data_address=address,
            admin_address=Address(name, ADMIN_PORT),
            segment_bytes_threshold=self.shape.segment_bytes_threshold,
            assigned_partitions=frozenset(self.shape.partition_ids),
            register=register,
            latest_session=latest,
            read_partition_count=read_partition_count,
            scrub_interval_seconds=SCRUB_SECONDS,
            protocol_version_max=self._next_storage_version(name),
            ends_with_partition=True,
        )
        node = StorageNode(host, config)
        await node.start()
        await until_stopped(node.run())
        await node.stop()
        await kept.close()

    async def _run_server(self, name: str, host: Host) -> None:
        config = ServerConfig(
            Address(name, PORT),
            feed_cache_bytes=limits.FEED_CACHE_BYTES,
            feed_fetch_min=limits.FEED_FETCH_MIN,
            lock_table_slots=limits.LOCK_TABLE_SLOTS,
            checkpoint_transactions=limits.CHECKPOINT_TRANSACTIONS,
            restore_seconds=limits.CONNECTION_RESTORE_SECONDS,
            idle_seconds=limits.IDLE_SECONDS_MAX,
            protocol_version_max=self._next_version(name),
            storage_protocol_version_max=self._next_storage_version(name),
            access=self._access,
            watches_coordinator=False,  # it decides nothing, and every run has its own trouble
            ends_with_partition=True,
        )
        server = Server(host, config)
        await server.start()
        await until_stopped(server.run())
        await server.stop()
        await host.coordinator.close()
