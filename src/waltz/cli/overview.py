"""What `waltz status` shows, read from the coordinator, the storage nodes and the servers."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

import waltz
from waltz.cluster.shell import ClusterView, read_partition_metadata, read_replica_assignments
from waltz.errors import NoNodeError, UnavailableError, WaltzError
from waltz.host import Coordinator, Host
from waltz.system.host import real_host
from waltz.types import Address, PartitionId, TlsSettings

VIEW_SECONDS_MAX = 10.0
MARK_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StorageOverview:
    replica_id: str
    reachable: bool


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """`high_water_mark` is None where no server could say; `replicas_current` counts the replicas
    that take part in the current store session."""

    partition_id: int
    server: str | None
    generation: int
    session_id: int
    high_water_mark: int | None
    replicas_current: int


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    name: str
    cluster_key: str
    storages: tuple[StorageOverview, ...]
    partitions: tuple[PartitionOverview, ...]

    @property
    def is_healthy(self) -> bool:
        """Every partition has a server that knows its mark, every storage node is reachable."""
        return all(storage.reachable for storage in self.storages) and all(
            partition.high_water_mark is not None for partition in self.partitions
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"healthy": self.is_healthy}


async def read_overview(cluster: str, tls: TlsSettings) -> ClusterOverview:
    """Raises CoordinatorLostError: nobody answers there."""
    host = real_host(Address.parse(cluster), tls)
    try:
        return await look_around(host, cluster, tls)
    finally:
        await host.coordinator.close()


async def look_around(host: Host, cluster: str, tls: TlsSettings) -> ClusterOverview:
    assignments = await read_replica_assignments(host.coordinator)
    view = ClusterView(host)
    await view.start()
    try:
        snapshot = view.current
        marks = await read_marks(cluster, tls, snapshot.partition_count)
        partitions = []
        for number in range(snapshot.partition_count):
            partition_id = PartitionId(number)
            owner = snapshot.partitions.get(partition_id)
            session_id, current = await read_session(host.coordinator, partition_id)
            partitions.append(
                PartitionOverview(
                    number,
                    str(owner[0]) if owner else None,
                    owner[1] if owner else -1,
                    session_id,
                    marks.get(number),
                    current,
                )
            )
    finally:
        await view.stop()
    return ClusterOverview(
        snapshot.name,
        str(snapshot.cluster_key),
        tuple(
            [
                StorageOverview(replica_id, await is_reachable(host, Address.parse(replica_id)))
                for replica_id in sorted(assignments)
            ]
        ),
        tuple(partitions),
    )


async def read_session(coordinator: Coordinator, partition_id: PartitionId) -> tuple[int, int]:
    """Return the partition's store session and how many replicas take part in it."""
    try:
        metadata = await read_partition_metadata(coordinator, partition_id)
    except NoNodeError:
        return -1, 0
    current = sum(
        state.session_id == metadata.session_id for state in metadata.replica_states.values()
    )
    return metadata.session_id, current


async def is_reachable(host: Host, address: Address) -> bool:
    try:
        connection = await host.network.connect(address)
    except UnavailableError:
        return False
    connection.close()
    return True


async def read_marks(cluster: str, tls: TlsSettings, partition_count: int) -> dict[int, int]:
    """Return the high-water marks that servers gave within the time allowed."""

    def ask() -> dict[int, int]:
        marks = {}
        with waltz.open_reader(cluster, timeout_seconds=MARK_SECONDS_MAX, tls=tls) as reader:
            for number in range(partition_count):
                try:
                    marks[number] = int(reader.high_water_mark(number))
                except WaltzError:
                    continue
        return marks

    return await asyncio.to_thread(ask)
