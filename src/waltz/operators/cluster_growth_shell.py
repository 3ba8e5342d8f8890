"""Adds partitions to a running cluster: asks every node first, then makes one step after the other.

Owns the order of the steps between the coordinator, storage nodes and servers. Each step can be
repeated, by the same operator or another one, wherever the previous attempt stopped; what has been
done is read from the cluster, not remembered (docs/decisions/0033). `cluster/partition_growth.py`
decides what is refused, except for what only the peers know: whether they follow a growth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from waltz.cluster.cluster_shell import read_membership, read_store_params
from waltz.cluster.growing_shell import begin_growth, deal_out, finish_growth, read_counts
from waltz.cluster.partition_growth import (
    PartitionCounts,
    check_growth,
    grown_placement,
    to_take,
)
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.cluster.placement_shell import change_placement, read_placement
from waltz.cluster.storage_placement import StoragePlacement
from waltz.cluster.store_params import StoreParams
from waltz.connections.connection_shell import ServerConnection
from waltz.connections.denial_errors import denial_error
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.errors import (
    ConfigurationError,
    HandshakeRefusedError,
    RemoteProtocolError,
    RemoteStorageError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import GROWTH_LOOK_SECONDS, HANDSHAKE_SECONDS_MAX
from waltz.operators.conversation_shell import Conversation, talk_to_admin_port
from waltz.operators.questions_shell import ask_health, talk_to_server
from waltz.types import Address, PartitionId, ReplicaId
from waltz.wire.admin_protocol import (
    GROWTH_SINCE,
    AdminSuccessResponse,
    PartitionAssignmentRequest,
    PartitionCountRequest,
    PartitionCountResponse,
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.discovery_protocol import GrowthReport, GrowthRequest
from waltz.wire.lifecycle_protocol import Feature

GROWTH_TAKEN_SECONDS_MAX: Final = 30.0
"""Wait at most this long for a storage node to make room for new partitions and to take them."""

GROWTH_SERVED_POLL_SECONDS: Final = 0.3
"""Pause between two questions to the servers about whether they serve the new partitions."""


FOLLOWING = ConnectionSettings(features=(Feature.GROWTH, Feature.DENIALS))

NOT_FOLLOWING = (
    "is the Java original's or of an earlier release, and would not follow; replace it by one of"
    " this release"
)


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """The effect of adding partitions, and the obstacles to it now.

    counts     the number of partitions before.
    after      the placement once the partitions are added.
    taken      the partitions that each storage node has to take.
    obstacles  nodes that do not follow a growth, or cannot be asked whether they do; in words.
    """

    counts: PartitionCounts
    to: int
    before: StoragePlacement
    after: StoragePlacement
    taken: Mapping[ReplicaId, tuple[PartitionId, ...]]
    obstacles: tuple[str, ...]

    @property
    def new(self) -> Sequence[PartitionId]:
        """Return the partitions that no server has yet."""
        first = min(self.counts.cluster, self.counts.assigned or self.to)
        return [PartitionId(number) for number in range(first, self.to)]


async def plan_growth(
    host: Host, to: int, *, root: str = DEFAULT_ROOT, despite_earlier_clients: bool = False
) -> GrowthPlan:
    """Ask every storage node and every running server; change nothing.

    With `despite_earlier_clients` clients of versions before 5 are no obstacle. Raises
    ConfigurationError as `check_growth`, `grown_placement`. NoNodeError: there is no cluster.
    CoordinatorLostError.
    """
    coordinator = host.coordinator
    counts = await read_counts(coordinator, root)
    check_growth(counts, to)
    params = await read_store_params(coordinator, root)
    before = await read_placement(coordinator, root)
    after, taken = before, dict[ReplicaId, tuple[PartitionId, ...]]()
    if counts.cluster < to:
        after = grown_placement(before, counts.cluster, to)
        taken = dict(to_take(after, counts.cluster, to))
    _, membership = await read_membership(coordinator, ClusterPaths(root).server_descriptors)
    servers = sorted({each.address for each in membership.descriptors.values()})
    found = await asyncio.gather(
        *(_storage_obstacle(host, node, before, params) for node in sorted(before.partitions)),
        *(_server_obstacle(host, each, despite_earlier_clients) for each in servers),
    )
    obstacles = tuple(each for each in found if each is not None)
    return GrowthPlan(counts, to, before, after, taken, obstacles)


async def _storage_obstacle(
    host: Host, node: ReplicaId, placement: StoragePlacement, params: StoreParams
) -> str | None:
    try:
        address = _admin_address(node, placement)
        async with talk_to_admin_port(host, address, params) as talk:
            if talk.version < GROWTH_SINCE:
                return f"storage node {node} {NOT_FOLLOWING}"
            await _ask_count(talk)
    except (UnavailableError, RemoteStorageError, ConfigurationError) as error:
        return (
            f"storage node {node} cannot be asked whether it follows: {error}; bring it back, or"
            " take it out of the cluster"
        )
    return None


async def _server_obstacle(
    host: Host, address: Address, despite_earlier_clients: bool
) -> str | None:
    try:
        report = await ask_growth(host, address)
    except UnavailableError as error:
        return f"server {address} cannot be asked whether it follows: {error}"
    if report is None:
        return f"server {address} {NOT_FOLLOWING}"
    if report.earlier_clients and not despite_earlier_clients:
        return (
            f"{report.earlier_clients} clients of server {address} speak a version before 5 of the"
            " protocol: one of the Java original does not follow, and loses track of the partitions"
            " it has, too, until it is started again. End them first"
        )
    return None


async def ask_growth(host: Host, address: Address) -> GrowthReport | None:
    """Return the server's report on growth; None if the server is too old to give one. Raises
    UnavailableError: it does not answer in time, or not as a server."""
    try:
        connection = await ServerConnection.open(host, address, FOLLOWING)
    except (RemoteProtocolError, HandshakeRefusedError) as error:
        raise UnavailableError(f"{address} does not answer as a server: {error}") from error
    try:
        agreement = connection.agreement
        if agreement is None or Feature.GROWTH not in agreement.features:
            return None
        connection.send([GrowthRequest(0)])
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            while (messages := await connection.receive()) is not None:
                for message in messages:
                    if isinstance(message, GrowthReport):
                        return message
                    if isinstance(message, Denied):
                        raise UnavailableError(str(denial_error(message)))
        raise UnavailableError(f"{address} closed the connection")
    except (RemoteProtocolError, TimeoutError) as error:
        raise UnavailableError(f"no answer from {address}: {error or 'it is silent'}") from error
    finally:
        connection.close()


async def add_partitions(
    host: Host,
    plan: GrowthPlan,
    *,
    root: str = DEFAULT_ROOT,
    tell: Callable[[str], None] = lambda _: None,
) -> bool:
    """Make the remaining steps of the growth; `tell` is called with a line for each. Return whether
    a server has been given the new partitions: False if none runs.

    Raises ConfigurationError: an obstacle, or another operator adds another number meanwhile.
    UnavailableError, RemoteStorageError: a storage node has not done its part; nothing that is
    served has changed. CoordinatorLostError, VersionConflictError. After each of these it may be
    called again, with a new plan.
    """
    if plan.obstacles:
        raise ConfigurationError("; ".join(plan.obstacles))
    coordinator, to = host.coordinator, plan.to
    if plan.counts.cluster < to:
        await begin_growth(coordinator, to, root=root)
        tell(f"storage nodes may have {to} partitions")
        await _place(host, plan, root=root, tell=tell)
        await finish_growth(coordinator, to, root=root)
    tell(f"the cluster has {to} partitions")
    return await deal_out(coordinator, to, root=root)


async def _place(host: Host, plan: GrowthPlan, *, root: str, tell: Callable[[str], None]) -> None:
    """Have storage nodes take the new partitions, then assign them; repeat if the assignment has
    changed in between."""
    coordinator, first, to = host.coordinator, plan.counts.cluster, plan.to
    params = replace(await read_store_params(coordinator, root), partition_count=to)
    while True:
        placement = await read_placement(coordinator, root)
        planned = grown_placement(placement, first, to)
        taken = to_take(planned, first, to)
        await asyncio.gather(
            *(
                _take(host, node, planned, params, taken.get(node, ()))
                for node in placement.partitions
            )
        )
        tell(f"{len(taken)} storage nodes have taken the new partitions")
        noted: list[StoragePlacement] = []

        def change(
            before: StoragePlacement,
            taken: Mapping[ReplicaId, tuple[PartitionId, ...]] = taken,
            noted: list[StoragePlacement] = noted,
        ) -> StoragePlacement:
            after = grown_placement(before, first, to)
            if to_take(after, first, to) != taken:
                return before
            noted.append(after)
            return after

        await change_placement(coordinator, change, root=root)
        if noted:
            tell("the new partitions are assigned to them")
            return


async def _take(
    host: Host,
    node: ReplicaId,
    placement: StoragePlacement,
    params: StoreParams,
    partition_ids: Sequence[PartitionId],
) -> None:
    """Have the node make room, and take its part of the new partitions.

    The node asks its coordinator, which may not have heard of the growth yet. Raises
    UnavailableError, RemoteStorageError.
    """
    count = 0
    try:
        async with asyncio.timeout(GROWTH_TAKEN_SECONDS_MAX):
            while True:
                known = replace(
                    params, partition_count=1
                )  # a node accepts any number that it has room for
                address = _admin_address(node, placement)
                async with talk_to_admin_port(host, address, known) as talk:
                    count = await _ask_count(talk)
                    if count >= params.partition_count:
                        if partition_ids:
                            request = PartitionAssignmentRequest(0, (*partition_ids,), True, False)
                            await talk.ask(request, AdminSuccessResponse)
                        return
                await asyncio.sleep(GROWTH_LOOK_SECONDS)
    except TimeoutError:
        raise UnavailableError(
            f"storage node {node} has made room for {count} partitions in"
            f" {GROWTH_TAKEN_SECONDS_MAX:g} s; expected {params.partition_count}"
        ) from None


async def _ask_count(talk: Conversation) -> int:
    return (await talk.ask(PartitionCountRequest(0), PartitionCountResponse)).partition_count


def _admin_address(node: ReplicaId, placement: StoragePlacement) -> Address:
    """Return the address of the node's admin port. Raises ConfigurationError if the cluster does
    not know it."""
    port = placement.admin_ports.get(node)
    if port is None:
        raise ConfigurationError(f"no admin port of storage node {node} is known")
    return Address(Address.parse(node).host, port)


async def wait_until_served(
    host: Host,
    partition_ids: Collection[PartitionId],
    seconds_max: float,
    *,
    root: str = DEFAULT_ROOT,
) -> list[PartitionId]:
    """Wait until each of the partitions takes appends; return those that do not within
    `seconds_max`.

    Raises NoNodeError: there is no cluster. CoordinatorLostError.
    """
    deadline = host.clock.now() + seconds_max
    while True:
        _, membership = await read_membership(
            host.coordinator, ClusterPaths(root).server_descriptors
        )
        servers = {each.address for each in membership.descriptors.values()}
        found = await asyncio.gather(*(_served_by(host, each) for each in sorted(servers)))
        served = {number for numbers in found for number in numbers}
        waiting = sorted(set(partition_ids) - served)
        if not waiting or host.clock.now() >= deadline:
            return waiting
        await asyncio.sleep(GROWTH_SERVED_POLL_SECONDS)


async def _served_by(host: Host, address: Address) -> list[PartitionId]:
    try:
        async with talk_to_server(host, address) as talk:
            health = await ask_health(talk)
    except UnavailableError:
        return []
    return [number for number, is_open in health.items() if is_open]
