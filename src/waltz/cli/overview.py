"""What `waltz status` shows, read from the coordinator, the storage nodes and the servers."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

import waltz
from waltz.client.questions.shell import ServerReport, ask_server
from waltz.cluster.paths import root_at
from waltz.cluster.shell import ClusterView, read_partition_metadata, read_replica_assignments
from waltz.errors import NoNodeError, UnavailableError, WaltzError
from waltz.host import Coordinator, Host
from waltz.system.host import real_host
from waltz.types import Address, PartitionId, TlsSettings, parse_coordinator

VIEW_SECONDS_MAX = 10.0
MARK_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StorageOverview:
    replica_id: str
    reachable: bool


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """`high_water_mark` is None where no server could say; `replicas_current` counts the replicas
    that take part in the current store session, `problem` is why no appends are taken."""

    partition_id: int
    server: str | None
    generation: int
    session_id: int
    high_water_mark: int | None
    replicas_current: int
    problem: str | None

    @property
    def is_writable(self) -> bool:
        return self.problem is None


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    name: str
    cluster_key: str
    storages: tuple[StorageOverview, ...]
    partitions: tuple[PartitionOverview, ...]

    @property
    def is_healthy(self) -> bool:
        """Every partition can be written to and its mark is known, every storage node is
        reachable."""
        return all(storage.reachable for storage in self.storages) and all(
            partition.high_water_mark is not None and partition.is_writable
            for partition in self.partitions
        )

    def to_json(self) -> dict[str, Any]:
        partitions = [asdict(p) | {"writable": p.is_writable} for p in self.partitions]
        return asdict(self) | {"partitions": partitions, "healthy": self.is_healthy}


async def read_overview(cluster: str, tls: TlsSettings) -> ClusterOverview:
    """Raises CoordinatorLostError: nobody answers there."""
    address = parse_coordinator(cluster)
    host = real_host(address, tls)
    try:
        return await look_around(host, cluster, root_at(address), tls)
    finally:
        await host.coordinator.close()


async def look_around(host: Host, cluster: str, root: str, tls: TlsSettings) -> ClusterOverview:
    assignments = await read_replica_assignments(host.coordinator, root)
    view = ClusterView(host, root=root)
    await view.start()
    try:
        snapshot = view.current
        marks = await read_marks(cluster, tls, snapshot.partition_count)
        addresses = {address for address, _ in snapshot.partitions.values()}
        reports = dict(
            zip(addresses, await asyncio.gather(*[report(host, a) for a in addresses]), strict=True)
        )
        partitions = []
        for number in range(snapshot.partition_count):
            partition_id = PartitionId(number)
            owner = snapshot.partitions.get(partition_id)
            session_id, current = await read_session(host.coordinator, partition_id, root)
            partitions.append(
                PartitionOverview(
                    number,
                    str(owner[0]) if owner else None,
                    owner[1] if owner else -1,
                    session_id,
                    marks.get(number),
                    current,
                    problem_of(partition_id, reports[owner[0]] if owner else None),
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


async def report(host: Host, address: Address) -> ServerReport | UnavailableError:
    """What the server says of itself, or why it does not."""
    try:
        return await ask_server(host, address)
    except UnavailableError as error:
        return error


def problem_of(
    partition_id: PartitionId, found: ServerReport | UnavailableError | None
) -> str | None:
    """Why the partition takes no appends; `found` None: it has no server."""
    if found is None:
        return "no server has it"
    if isinstance(found, UnavailableError):
        return f"its server does not answer: {found}"
    return found.problem(partition_id)


async def read_session(
    coordinator: Coordinator, partition_id: PartitionId, root: str
) -> tuple[int, int]:
    """Return the partition's store session and how many replicas take part in it."""
    try:
        metadata = await read_partition_metadata(coordinator, partition_id, root)
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
