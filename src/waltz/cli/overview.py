"""What `waltz status` shows, read from the coordinator, the storage nodes and the servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import waltz
from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.storage_questions import StorageReport, ask_storage
from waltz.client.questions.shell import ServerReport, ask_server
from waltz.cluster.placement.shell import read_placement
from waltz.cluster.shell import ClusterView, read_partition_metadata, read_store_params
from waltz.errors import NoNodeError, UnavailableError, WaltzError
from waltz.host import Coordinator, Host
from waltz.types import Address, PartitionId, ReplicaId

MARK_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StorageOverview:
    """`reachable` is whether servers can use it; `problems` is what it, or the attempt to reach it,
    says is wrong."""

    replica_id: str
    reachable: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """`high_water_mark` is None where no server could say; of `replicas`, which the partition is
    assigned to, `replicas_current` take part in the current store session; `problem` is why no
    appends are taken."""

    partition_id: int
    server: str | None
    generation: int
    session_id: int
    high_water_mark: int | None
    replicas_current: int
    replicas: int
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
        """Every partition can be written to and its mark is known, every storage node is reachable
        and knows of nothing wrong."""
        return not any(storage.problems for storage in self.storages) and all(
            partition.high_water_mark is not None and partition.is_writable
            for partition in self.partitions
        )

    def to_json(self) -> dict[str, Any]:
        partitions = [asdict(p) | {"writable": p.is_writable} for p in self.partitions]
        return asdict(self) | {"partitions": partitions, "healthy": self.is_healthy}


async def read_overview(place: ClusterPlace) -> ClusterOverview:
    """Raises CoordinatorLostError: nobody answers there. NoNodeError: there is no cluster."""
    async with place.host() as host:
        return await look_around(host, place)


async def look_around(host: Host, place: ClusterPlace) -> ClusterOverview:
    root = place.root
    placement = await read_placement(host.coordinator, root)
    params = await read_store_params(host.coordinator, root)
    view = ClusterView(host, root=root)
    await view.start()
    try:
        snapshot = view.current
        addresses = sorted({address for address, _ in snapshot.partitions.values()})
        answers = await asyncio.gather(*[report(host, address) for address in addresses])
        reports = dict(zip(addresses, answers, strict=True))
        marks = await read_marks(place, open_partitions(reports.values()))
        partitions = []
        for number in range(snapshot.partition_count):
            partition_id = PartitionId(number)
            owner = snapshot.partitions.get(partition_id)
            replicas = placement.holding(partition_id)
            session_id, current = await read_session(host.coordinator, partition_id, replicas, root)
            partitions.append(
                PartitionOverview(
                    number,
                    str(owner[0]) if owner else None,
                    owner[1] if owner else -1,
                    session_id,
                    marks.get(number),
                    current,
                    len(replicas),
                    problem_of(partition_id, reports[owner[0]] if owner else None),
                )
            )
    finally:
        await view.stop()
    nodes = sorted(placement.partitions)
    found = await asyncio.gather(
        *[ask_storage(host, node, placement.admin_ports, params) for node in nodes]
    )
    return ClusterOverview(
        snapshot.name,
        str(snapshot.cluster_key),
        tuple(map(storage_overview, nodes, found)),
        tuple(partitions),
    )


def storage_overview(replica_id: ReplicaId, found: StorageReport) -> StorageOverview:
    return StorageOverview(replica_id, found.trouble is None, found.told())


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
    coordinator: Coordinator, partition_id: PartitionId, replicas: Sequence[ReplicaId], root: str
) -> tuple[int, int]:
    """Return the partition's store session and how many of `replicas` take part in it."""
    try:
        metadata = await read_partition_metadata(coordinator, partition_id, root)
    except NoNodeError:
        return -1, 0
    return metadata.session_id, len({*metadata.current_replicas} & {*replicas})


def open_partitions(reports: Iterable[ServerReport | UnavailableError]) -> list[PartitionId]:
    """The partitions whose servers take appends: others would be waited for in vain."""
    found = [report.partitions for report in reports if isinstance(report, ServerReport)]
    return sorted(number for health in found for number, is_open in health.items() if is_open)


async def read_marks(place: ClusterPlace, numbers: Sequence[PartitionId]) -> dict[int, int]:
    """Return the high-water marks that servers gave within the time allowed."""

    def ask() -> dict[int, int]:
        marks: dict[int, int] = {}
        if not numbers:
            return marks
        with waltz.open_reader(
            place.coordinator, timeout_seconds=MARK_SECONDS_MAX, tls=place.tls
        ) as reader:
            for number in numbers:
                try:
                    marks[number] = int(reader.high_water_mark(number))
                except WaltzError:
                    continue
        return marks

    return await asyncio.to_thread(ask)
