"""The overview that `waltz status` shows: every fact comes from the process that knows it, and is
unknown if that is silent.

The coordinator names the servers, storage nodes and partitions; their state comes from themselves:
from servers, which ask the replicas of their partitions, and from storage nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import waltz
from waltz.cli.cluster_place import ClusterPlace
from waltz.cli.replica_standing import ReplicaView, count_current, view_replicas
from waltz.cli.storage_questions import StorageReport, ask_storage
from waltz.cluster.cluster_shell import ClusterView, read_partition_metadata, read_store_params
from waltz.cluster.placement_shell import read_placement
from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import NoNodeError, UnavailableError, WaltzError
from waltz.host import Coordinator, Host
from waltz.operators.questions_shell import ReportAnswers, ServerReport, ask_reports, ask_server
from waltz.types import Address, PartitionId, ReplicaId
from waltz.wire.report_protocol import PartitionReport

MARK_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StorageOverview:
    """`reachable`: whether servers can use the node; `problems`: its faults, or the reason why it
    cannot be reached."""

    replica_id: str
    reachable: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerOverview:
    """A server that has partitions. `problems` are its faults, `unknown` what it cannot report;
    `coordinator_seconds` is the age of the coordinator's last answer to it."""

    address: str
    coordinator_seconds: float | None
    problems: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionOverview:
    """A partition with `replicas` replicas, of which `replicas_current` have just reported that
    they hold every commit and take appends, None if no server could be asked. `high_water_mark`
    is None if no server could tell it; `writable` likewise; `problem` is why `writable` is not
    True."""

    partition_id: int
    server: str | None
    generation: int
    session_id: int
    high_water_mark: int | None
    replicas_current: int | None
    replicas: int
    writable: bool | None
    problem: str | None
    replica_states: tuple[ReplicaView, ...]

    @property
    def is_confirmed(self) -> bool:
        """Return whether the partition is known to be well."""
        is_whole = self.replicas > 0 and self.replicas_current == self.replicas
        return self.writable is True and is_whole and self.high_water_mark is not None

    @property
    def is_faulty(self) -> bool:
        """Return whether the partition has a known fault."""
        return self.writable is False or any(each.is_fault for each in self.replica_states)


@dataclass(frozen=True, slots=True)
class ClusterOverview:
    name: str
    cluster_key: str
    storages: tuple[StorageOverview, ...]
    servers: tuple[ServerOverview, ...]
    partitions: tuple[PartitionOverview, ...]

    @property
    def is_healthy(self) -> bool | None:
        """Return True if everything was asked and is well, False if there is a known fault, None if
        no fault is known and something could not be asked."""
        has_problem = any(each.problems for each in self.storages) or any(
            each.problems for each in self.servers
        )
        if has_problem or any(each.is_faulty for each in self.partitions):
            return False
        is_known = not any(each.unknown for each in self.servers)
        return True if is_known and all(p.is_confirmed for p in self.partitions) else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"healthy": self.is_healthy}


async def read_overview(place: ClusterPlace) -> ClusterOverview:
    """Return the cluster's overview. Raises CoordinatorLostError: the coordinator does not answer.
    NoNodeError: there is no cluster."""
    async with place.host() as host:
        return await look_around(host, place)


@dataclass(frozen=True, slots=True)
class Heard:
    """A server's answers: one that every version gives, and one that only later versions give."""

    health: ServerReport | UnavailableError
    reports: ReportAnswers | UnavailableError

    def report(self, partition_id: PartitionId) -> PartitionReport | None:
        if isinstance(self.reports, UnavailableError):
            return None
        return self.reports.reports.get(partition_id)


async def look_around(host: Host, place: ClusterPlace) -> ClusterOverview:
    root = place.root
    placement = await read_placement(host.coordinator, root)
    params = await read_store_params(host.coordinator, root)
    view = ClusterView(host, root=root)
    await view.start()
    snapshot = view.current
    await view.stop()
    nodes = sorted(placement.partitions)
    asking_nodes = asyncio.gather(
        *[ask_storage(host, node, placement.admin_ports, params) for node in nodes]
    )
    owned: dict[Address, list[PartitionId]] = {}
    for partition_id, (address, _) in sorted(snapshot.partitions.items()):
        owned.setdefault(address, []).append(partition_id)
    answers = await asyncio.gather(*[_ask(host, *each) for each in owned.items()])
    heard = dict(zip(owned, answers, strict=True))
    found = await asking_nodes
    marks = await read_marks(place, _unreported(heard))
    partitions = []
    for number in map(PartitionId, range(snapshot.partition_count)):
        owner = snapshot.partitions.get(number)
        said = None if owner is None else heard[owner[0]]
        session_id = await read_session_id(host.coordinator, number, root)
        partitions.append(
            partition_overview(number, owner, said, placement, session_id, marks.get(number))
        )
    return ClusterOverview(
        snapshot.name,
        str(snapshot.cluster_key),
        tuple(map(storage_overview, nodes, found)),
        tuple(server_overview(address, heard[address]) for address in sorted(heard)),
        tuple(partitions),
    )


def partition_overview(
    partition_id: PartitionId,
    owner: tuple[Address, int] | None,
    said: Heard | None,
    placement: StoragePlacement,
    session_id: int,
    mark: int | None,
) -> PartitionOverview:
    replicas = placement.holding(partition_id)
    report = None if said is None else said.report(partition_id)
    views = view_replicas(replicas, report)
    writable, problem = writable_of(partition_id, said)
    if report is not None and report.high_water_mark is not None:
        mark = report.high_water_mark
    return PartitionOverview(
        partition_id,
        str(owner[0]) if owner else None,
        owner[1] if owner else -1,
        session_id,
        mark,
        None if report is None else count_current(views),
        len(replicas),
        writable,
        problem,
        views,
    )


def writable_of(partition_id: PartitionId, said: Heard | None) -> tuple[bool | None, str | None]:
    """Return whether appends are taken, None if that is not known, and the reason if it is not
    True."""
    if said is None:
        return False, "no server has it"
    if isinstance(said.health, UnavailableError):
        return None, "its server does not answer"  # the server's own line has the reason, once
    if (problem := said.health.problem(partition_id)) is not None:
        return False, problem
    if isinstance(said.reports, UnavailableError):
        return None, f"it has a store session, which may or may not work: {said.reports}"
    report = said.report(partition_id)
    if report is None:
        return None, "it has just moved"
    return {1: True, 0: False}.get(report.writable), report.reason


def storage_overview(replica_id: ReplicaId, found: StorageReport) -> StorageOverview:
    return StorageOverview(replica_id, found.trouble is None, found.told())


def server_overview(address: Address, said: Heard) -> ServerOverview:
    if isinstance(said.health, UnavailableError):
        return ServerOverview(str(address), None, (f"does not answer: {said.health}",), ())
    if isinstance(said.reports, UnavailableError):
        return ServerOverview(str(address), None, (), (str(said.reports),))
    problem = said.reports.coordinator_problem
    age = said.reports.coordinator_seconds
    return ServerOverview(str(address), age, () if problem is None else (problem,), ())


async def _ask(host: Host, address: Address, partition_ids: Sequence[PartitionId]) -> Heard:
    """Ask a server everything; an error is part of the result."""

    async def health() -> ServerReport | UnavailableError:
        try:
            return await ask_server(host, address)
        except UnavailableError as error:
            return error

    async def reports() -> ReportAnswers | UnavailableError:
        try:
            return await ask_reports(host, address, partition_ids)
        except UnavailableError as error:
            return error

    return Heard(*await asyncio.gather(health(), reports()))


async def read_session_id(coordinator: Coordinator, partition_id: PartitionId, root: str) -> int:
    """Return the partition's last store session, as the coordinator has it; -1 for none."""
    try:
        return (await read_partition_metadata(coordinator, partition_id, root)).session_id
    except NoNodeError:
        return -1


def _unreported(heard: Mapping[Address, Heard]) -> list[PartitionId]:
    """Return the partitions whose servers have a session and did not report the mark: for others
    waiting would be in vain."""
    found: Iterable[PartitionId] = (
        number
        for each in heard.values()
        if isinstance(each.health, ServerReport)
        for number, is_open in each.health.partitions.items()
        if is_open and each.report(number) is None
    )
    return sorted(found)


async def read_marks(place: ClusterPlace, numbers: Sequence[PartitionId]) -> dict[int, int]:
    """Return the high-water marks that servers gave within the time limit."""

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
