"""`waltz cluster list`: everything that the coordinator stores of a cluster, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.partition_list import listed_partitions
from waltz.cluster.cluster_shell import (
    read_cluster_params,
    read_membership,
    read_partition_metadata,
    read_store_params,
)
from waltz.cluster.partition_growth import PartitionCounts
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.paths import ClusterPaths
from waltz.cluster.placement_shell import read_placement
from waltz.cluster.server_assignment import MembershipRead
from waltz.cluster.storage_placement import StoragePlacement
from waltz.errors import NoNodeError
from waltz.host import Host
from waltz.types import PartitionId, ReplicaId


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """A cluster's metadata in the coordinator; `partitions` lacks those that never had a store
    session."""

    name: str
    root: str
    cluster_key: UUID
    partition_count: int
    placement: StoragePlacement
    membership: MembershipRead
    partitions: Mapping[PartitionId, PartitionMetadata]

    @property
    def counts(self) -> PartitionCounts:
        """Return `partition_count`, and whether partitions are being added."""
        assigned = self.membership.assignment.partition_count
        return PartitionCounts(self.partition_count, self.placement.partition_count, assigned)

    def replicas(self) -> list[ReplicaId]:
        """Return all storage nodes, by name."""
        return sorted(self.placement.partitions)

    def to_json(self) -> dict[str, Any]:
        assignment = self.membership.assignment
        return {
            "name": self.name,
            "root": self.root,
            "cluster_key": str(self.cluster_key),
            "partition_count": self.partition_count,
            "partitions_being_added_to": self.counts.store if self.counts.is_half_added else None,
            "storages": [
                {
                    "replica_id": node,
                    "group": self.placement.groups.get(node),
                    "admin_port": self.placement.admin_ports.get(node),
                    "partitions": list(self.placement.partitions[node]),
                }
                for node in self.replicas()
            ],
            "servers": [
                {
                    "server_id": server_id,
                    "address": str(descriptor.address),
                    "preferred_partitions": list(descriptor.preferred_partitions),
                }
                for server_id, descriptor in sorted(self.membership.descriptors.items())
            ],
            "assignment": {
                "consistent": self.membership.is_consistent,
                "servers": {
                    str(server_id): {str(number): held[number] for number in sorted(held)}
                    for server_id, held in sorted(assignment.servers.items())
                },
            },
            "partitions": [
                {
                    "partition_id": partition_id,
                    "generation": metadata.generation,
                    "session_id": metadata.session_id,
                    "replicas": [
                        {
                            "replica_id": replica_id,
                            "session_id": state.session_id,
                            "closing_high_water_mark": state.closing_high_water_mark,
                        }
                        for replica_id, state in sorted(metadata.replica_states.items())
                    ],
                }
                for partition_id, metadata in sorted(self.partitions.items())
            ],
        }


async def read_metadata(host: Host, root: str) -> ClusterMetadata:
    """Return the cluster's metadata. Raises NoNodeError: there is no cluster.
    CoordinatorLostError."""
    coordinator = host.coordinator
    params = await read_cluster_params(coordinator, root)
    store_params = await read_store_params(coordinator, root)
    placement = await read_placement(coordinator, root)
    _, membership = await read_membership(coordinator, ClusterPaths(root).server_descriptors)
    partitions = await read_sessions(host, root, range(params.partition_count))
    return ClusterMetadata(
        params.name,
        root,
        store_params.cluster_key,
        params.partition_count,
        placement,
        membership,
        partitions,
    )


async def read_sessions(
    host: Host, root: str, numbers: range | tuple[PartitionId, ...]
) -> dict[PartitionId, PartitionMetadata]:
    """Return the metadata of these partitions, without those that never had a store session."""
    found = {}
    for number in map(PartitionId, numbers):
        try:
            found[number] = await read_partition_metadata(host.coordinator, number, root)
        except NoNodeError:
            continue
    return found


@click.command("list")
@cluster_options
@json_option
def list_cluster(place: ClusterPlace, as_json: bool) -> None:
    """Print the cluster's metadata: storage nodes, groups, servers, partitions, sessions."""
    found = place.run(read_metadata)
    if as_json:
        print_json(found.to_json())
    else:
        show_metadata(found)


def show_metadata(found: ClusterMetadata) -> None:
    click.echo(f"cluster {found.name} at {found.root}, {found.partition_count} partitions")
    click.echo(f"cluster key {found.cluster_key}\n")
    if found.counts.is_half_added:
        click.echo(
            f"partitions are being added, {found.counts.store} in all; if no command is doing it:"
            f" waltz cluster add-partitions --to {found.counts.store}\n"
        )
    storages = new_table("storage node", "group", "admin port", "partitions", left=("partitions",))
    storages.columns[0].justify = "left"
    for node in found.replicas():
        storages.add_row(
            node,
            _shown(found.placement.groups.get(node)),
            _shown(found.placement.admin_ports.get(node)),
            listed_partitions(found.placement.partitions[node]),
        )
    print_table(storages)
    click.echo()
    servers = new_table(
        "server", "address", "prefers", "partitions", left=("address", "partitions")
    )
    assigned = found.membership.assignment.servers
    for server_id in sorted({*found.membership.descriptors, *assigned}):
        descriptor = found.membership.descriptors.get(server_id)
        servers.add_row(
            str(server_id),
            str(descriptor.address) if descriptor else "not running",
            listed_partitions(descriptor.preferred_partitions) if descriptor else "-",
            listed_partitions(assigned.get(server_id, ())),
        )
    print_table(servers)
    if not found.membership.is_consistent:
        click.echo("the assignment of partitions to servers is out of date")
    click.echo()
    partitions = new_table("partition", "generation", "session", "replicas", left=("replicas",))
    for partition_id, metadata in sorted(found.partitions.items()):
        states = [
            f"{replica_id} {state.session_id}"
            + (
                ""
                if state.closing_high_water_mark is None
                else f" closed at {state.closing_high_water_mark}"
            )
            for replica_id, state in sorted(metadata.replica_states.items())
        ]
        partitions.add_row(
            str(partition_id),
            str(metadata.generation),
            str(metadata.session_id),
            ", ".join(states),
        )
    print_table(partitions)


def _shown(value: int | None) -> str:
    return "unknown" if value is None else str(value)
