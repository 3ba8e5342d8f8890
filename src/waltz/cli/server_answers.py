"""Asks servers for their state, that of their partitions, and which replicas they miss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
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
    """A server's answers; `trouble` is the reason if it did not answer."""

    trouble: str | None
    assigned: frozenset[PartitionId] = frozenset()
    health: Mapping[PartitionId, bool] | None = None
    reaches: Mapping[str, bool] | None = None
    reports: Mapping[PartitionId, PartitionReport] | None = None
    """The reports on partitions, from their replicas' own answers; None if the server has no
    reports."""
    silence: str | None = None
    """The reason why it has none."""
    coordinator_problem: str | None = None


async def ask_everything(
    host: Host, address: Address, seconds: float, owned: Sequence[PartitionId] = ()
) -> ServerAnswers:
    """Return a server's answers about itself, and about the partitions `owned`; an error is part of
    the result."""
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


async def ask_owners(
    host: Host, root: str
) -> tuple[Sequence[ServerAnswers], Mapping[PartitionId, ServerAnswers]]:
    """Return the answers of all running servers, and per partition those of its server; partitions
    without a running server are missing.

    Raises NoNodeError: there is no cluster. CoordinatorLostError.
    """
    await read_cluster_params(host.coordinator, root)
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    owned = {each: membership.assignment.servers.get(each, {}) for each in membership.descriptors}
    found = await asyncio.gather(
        *[
            ask_everything(host, each.address, LOST_ANSWER_SECONDS, sorted(owned[server_id]))
            for server_id, each in membership.descriptors.items()
        ]
    )
    owners = {
        number: answers
        for numbers, answers in zip(owned.values(), found, strict=True)
        for number in numbers
    }
    return found, owners


def lost_replicas(
    partition_ids: Iterable[PartitionId],
    owners: Mapping[PartitionId, ServerAnswers],
    answers: Iterable[ServerAnswers],
) -> Mapping[PartitionId, frozenset[ReplicaId]]:
    """Return per partition the storage nodes that it cannot count on now.

    A partition's own server knows: a node is lost that its report calls away, silent, behind,
    damaged or refusing appends. A server without reports only says which nodes it reaches; of a
    partition whose server does not answer, or that has none, every node is lost that a running
    server does not reach. The metadata does not tell: a store session continues without them.

    owners  the answers of each partition's server.
    answers  those of all servers.
    """
    unreached_by_any = frozenset[ReplicaId]().union(*map(_unreached, answers))
    lost = {}
    for number in partition_ids:
        owner = owners.get(number)
        report = (owner.reports or {}).get(number) if owner is not None else None
        if report is not None:
            replicas = [entry.replica_id for entry in report.replicas]
            lost[number] = frozenset(
                ReplicaId(view.replica_id)
                for view in view_replicas(replicas, report)
                if view.is_fault
            )
        elif owner is not None and owner.reaches is not None:
            lost[number] = _unreached(owner)
        else:
            lost[number] = unreached_by_any
    return lost


def _unreached(answers: ServerAnswers) -> frozenset[ReplicaId]:
    reaches = answers.reaches or {}
    return frozenset(ReplicaId(node) for node, is_reached in reaches.items() if not is_reached)


async def ask_servers(host: Host, root: str, seconds: float) -> Mapping[Address, ServerAnswers]:
    """Return each server's answers about itself. Raises NoNodeError: there is no cluster.
    CoordinatorLostError."""
    await read_cluster_params(host.coordinator, root)
    _, membership = await read_membership(host.coordinator, ClusterPaths(root).server_descriptors)
    addresses = sorted({each.address for each in membership.descriptors.values()})
    answers = await asyncio.gather(*[ask_everything(host, each, seconds) for each in addresses])
    return dict(zip(addresses, answers, strict=True))
