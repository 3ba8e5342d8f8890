"""The storage node that a command is for, by either of its two addresses.

A command may address a node before the cluster's metadata names it, and afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import click

from waltz.cli.cluster_list import read_sessions
from waltz.cli.partition_list import listed_partitions
from waltz.cli.storage_questions import admin_address_of
from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.placement_shell import read_placement
from waltz.cluster.storage_placement import StoragePlacement
from waltz.cluster.store_params import StoreParams
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.majority import majority
from waltz.operators.conversation_shell import Conversation, talk_to_admin_port
from waltz.types import Address, PartitionId, ReplicaId


@dataclass(frozen=True, slots=True)
class StorageTarget:
    """`replica_id` and `data` are None if the metadata does not know the node."""

    replica_id: ReplicaId | None
    data: Address | None
    admin: Address

    def __str__(self) -> str:
        return f"storage node {self.replica_id or self.admin}"


def find_target(
    address: Address, admin_ports: Mapping[ReplicaId, int], data_port: int | None = None
) -> StorageTarget:
    """Return the node of that address, which may be the port of servers or that of tools.

    The address of a node that the metadata does not know is taken for its admin port, and
    `data_port` for the other.
    """
    for node in sorted(admin_ports):
        data, admin = Address.parse(node), admin_address_of(node, admin_ports)
        if address in (data, admin):
            return StorageTarget(node, data, admin)
    return StorageTarget(
        None, None if data_port is None else Address(address.host, data_port), address
    )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts from the coordinator that a command needs before it talks to a node."""

    params: StoreParams
    placement: StoragePlacement
    sessions: Mapping[PartitionId, PartitionMetadata]

    def check_partitions(self, partition_ids: tuple[PartitionId, ...]) -> None:
        """Raise ConfigurationError if the cluster lacks one of these partitions."""
        count = self.params.partition_count
        if beyond := [str(each) for each in partition_ids if each >= count]:
            raise ConfigurationError(
                f"there is no partition {', '.join(beyond)}; expected 0 to {count - 1}"
            )


async def read_surroundings(
    host: Host, root: str, partition_ids: tuple[PartitionId, ...]
) -> Surroundings:
    """Return the surroundings. Raises NoNodeError: there is no cluster. ConfigurationError: no such
    partition."""
    params = await read_store_params(host.coordinator, root)
    placement = await read_placement(host.coordinator, root)
    found = Surroundings(params, placement, {})
    found.check_partitions(partition_ids)
    return Surroundings(params, placement, await read_sessions(host, root, partition_ids))


@asynccontextmanager
async def talk_to_storage(
    host: Host, address: Address, around: Surroundings
) -> AsyncIterator[tuple[StorageTarget, Conversation]]:
    """Connect to a node's admin port. Raises UnavailableError: it does not answer there.
    RemoteStorageError: it is of another cluster."""
    target = find_target(address, around.placement.admin_ports)
    async with talk_to_admin_port(host, target.admin, around.params) as talk:
        yield target, talk


def data_address(target: StorageTarget) -> Address:
    """Return the port for servers. Raises click.UsageError: it is not known."""
    if target.data is None:
        raise click.UsageError(
            f"the cluster does not know {target}: give its data port, with the option for the"
            " storage port"
        )
    return target.data


def check_given_up(
    around: Surroundings, target: StorageTarget, partition_ids: tuple[PartitionId, ...]
) -> None:
    """Raise ConfigurationError if the cluster counts on partitions that the node would give up."""
    if target.replica_id is None:
        return
    held = {*around.placement.partitions.get(target.replica_id, ())} & {*partition_ids}
    if held:
        raise ConfigurationError(
            f"partitions {listed_partitions(held)} are assigned to {target}; waltz cluster unassign"
            " first, or give --force"
        )
    if counting := [
        number
        for number in partition_ids
        if number in around.sessions
        and target.replica_id in around.sessions[number].counted_replicas
    ]:
        raise ConfigurationError(
            f"{target} still takes part in the store sessions of partitions"
            f" {listed_partitions(counting)}; wait until servers have opened sessions without it,"
            " or give --force"
        )


def check_spared(
    placement: StoragePlacement,
    target: StorageTarget,
    partition_ids: tuple[PartitionId, ...],
    sessions: Mapping[PartitionId, PartitionMetadata],
    lost: Mapping[PartitionId, Collection[ReplicaId]],
) -> None:
    """Raise ConfigurationError if without the node a partition's replicas have no majority.

    `sessions` are open; `lost`: per partition, the storage nodes that it cannot count on, whatever
    the metadata says.
    """
    for number in partition_ids:
        replicas = placement.holding(number)
        metadata = sessions.get(number)
        if metadata is None or target.replica_id not in metadata.current_replicas:
            continue
        others = [
            node
            for node in replicas
            if node in metadata.current_replicas
            and node not in (target.replica_id, *lost.get(number, ()))
        ]
        if len(others) < majority(len(replicas)):
            raise ConfigurationError(
                f"without {target} {len(others)} of {len(replicas)} replicas of partition {number}"
                " take part in its store session and are whole: no majority, so it would take no"
                " appends. Bring the others back first, or wait until they have caught up (waltz"
                " status), or give --force"
            )
