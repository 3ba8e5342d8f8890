"""Asks servers how they and their partitions are, and which replicas they miss."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from waltz.cli.replica_standing import view_replicas
from waltz.cluster.cluster_shell import read_cluster_params, read_membership
from waltz.cluster.paths import ClusterPaths
from waltz.errors import UnavailableError
from waltz.host import Host
from waltz.operators.questions_shell import (
    ask_assigned,
    ask_connectivity,
    ask_health,
    ask_reports,
    talk_to_server,
)
from waltz.types import Address, PartitionId, ReplicaId
from waltz.wire.report_protocol import PartitionReport

LOST_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ServerAnswers:
    """What a server said, or in `trouble` why it said nothing."""

    trouble: str | None
    assigned: frozenset[PartitionId] = frozenset()
    health: Mapping[PartitionId, bool] | None = None
    reaches: Mapping[str, bool] | None = None
    reports: Mapping[PartitionId, PartitionReport] | None = None
    """How the partitions are by their replicas' own words; None: the server cannot say."""
    silence: str | None = None
    """Why it cannot."""
    coordinator_problem: str | None = None


async def ask_everything(
    host: Host, address: Address, seconds: float, owned: Sequence[PartitionId] = ()
) -> ServerAnswers:
    """What a server says of itself, and of the partitions `owned`; what keeps it from that is part
    of the answer."""
    try:
        async with talk_to_server(host, address, seconds=seconds) as talk:
            assigned = frozenset(await ask_assigned(talk))
            health = await ask_health(talk)
            answers = ServerAnswers(None, assigned, health, await ask_connectivity(talk))
    except UnavailableError as error:
        return ServerAnswers(str(error))
    try:
        found = await ask_reports(host, address, owned, seconds=seconds)
    except UnavailableError as error:
        return replace(answers, silence=str(error))
    return replace(answers, reports=found.reports, coordinator_problem=found.coordinator_problem)


async def ask_lost_replicas(host: Host, root: str) -> Mapping[PartitionId, frozenset[ReplicaId]]:
    """Return for every partition the storage nodes on which it cannot count now: those that a
    running server does not reach, and those that the partition's server says to be away, silent,
    behind, damaged or refusing appends. The metadata do not tell: a store session goes on without
    them. Raises NoNodeError: there is no cluster. CoordinatorLostError."""
    params = await read_cluster_params(host.coordinator, root)
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    owned = membership.assignment.servers
    found = await asyncio.gather(
        *[
            ask_everything(
                host, each.address, LOST_ANSWER_SECONDS, sorted(owned.get(server_id, {}))
            )
            for server_id, each in membership.descriptors.items()
        ]
    )
    return lost_replicas(params.partition_count, found)


def lost_replicas(
    partition_count: int, answers: Sequence[ServerAnswers]
) -> Mapping[PartitionId, frozenset[ReplicaId]]:
    """Return what `ask_lost_replicas` does, from what the servers have said."""
    unreached = frozenset(
        ReplicaId(node)
        for each in answers
        for node, is_reached in (each.reaches or {}).items()
        if not is_reached
    )
    lost = dict.fromkeys(map(PartitionId, range(partition_count)), unreached)
    for each in answers:
        for number, report in (each.reports or {}).items():
            replicas = [entry.replica_id for entry in report.replicas]
            away = {
                ReplicaId(view.replica_id)
                for view in view_replicas(replicas, report)
                if view.is_fault
            }
            lost[number] = lost.get(number, unreached) | away
    return lost


async def ask_servers(host: Host, root: str, seconds: float) -> Mapping[Address, ServerAnswers]:
    """What each server says of itself. Raises NoNodeError: there is no cluster.
    CoordinatorLostError."""
    await read_cluster_params(host.coordinator, root)
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    addresses = sorted({each.address for each in membership.descriptors.values()})
    answers = await asyncio.gather(*[ask_everything(host, each, seconds) for each in addresses])
    return dict(zip(addresses, answers, strict=True))
