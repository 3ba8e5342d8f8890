"""`waltz cluster add-storage` and the other commands that change a cluster's storage nodes and what
they hold.

`cluster/storage_placement.py` decides what is refused, except for what only the partitions'
sessions know: whether the remaining replicas suffice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import click

from waltz.cli.cluster_list import read_sessions
from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import ADDRESS
from waltz.cli.open_sessions import OpenSessions, read_open_sessions
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.partition_list import PARTITIONS, listed_partitions, partitions_option
from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.cluster.placement_shell import (
    change_placement,
    forget_storage_directory,
    read_placement,
)
from waltz.cluster.storage_placement import (
    StoragePlacement,
    add_storage_node,
    assign_replicas,
    check_majority,
    remove_storage_node,
    replace_replicas,
    unassign_replicas,
)
from waltz.cluster.storage_placement import auto_assign as deal_out
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.types import Address, PartitionId, ReplicaId

Change: TypeAlias = Callable[[StoragePlacement], StoragePlacement]

FORCE_REMEDY = "; --force does it nevertheless"
HINT_TO_TAKE = (
    "the storage node has to take these partitions, too: waltz admin storage sync-partitions"
)


def storage_option(*names: str, text: str) -> Callable[[Any], Any]:
    return click.option(*names, type=ADDRESS, required=True, help=text)


def dry_run_option(command: Any) -> Any:
    return click.option("--dry-run", is_flag=True, help="Show the result, and change nothing.")(
        command
    )


def force_option(text: str) -> Callable[[Any], Any]:
    return click.option("-f", "--force", is_flag=True, help=text)


storage = storage_option("-s", "--storage", text="Address of the storage node, as servers know it.")


def change_cluster(
    place: ClusterPlace,
    change: Change,
    *,
    dry_run: bool,
    as_json: bool,
    leaving: ReplicaId | None = None,
) -> None:
    """Make the change, or only compute it, and show the differences; `leaving` is a node that the
    change takes out of the cluster."""
    seen: list[StoragePlacement] = []

    def noted(placement: StoragePlacement) -> StoragePlacement:
        seen[:] = [placement]
        return change(placement)

    async def work(host: Host, root: str) -> StoragePlacement:
        if dry_run:
            return noted(await read_placement(host.coordinator, root))
        after = await change_placement(host.coordinator, noted, root=root)
        if leaving is not None:
            await forget_storage_directory(host.coordinator, leaving, root=root)
        return after

    after = place.run(work)
    show_change(seen[0], after, dry_run=dry_run, as_json=as_json)


def show_change(
    before: StoragePlacement, after: StoragePlacement, *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"dry_run": dry_run, "storages": placement_changes(before, after)})
        return
    print_changes(before, after)
    if dry_run:
        click.echo("nothing was changed", err=True)


def placement_changes(before: StoragePlacement, after: StoragePlacement) -> list[dict[str, Any]]:
    """Return, for JSON, what each changed node held before and holds after."""
    return [
        {
            "replica_id": node,
            "group": after.groups.get(node, before.groups.get(node)),
            "before": _held(before, node),
            "after": _held(after, node),
        }
        for node in _changed(before, after)
    ]


def _changed(before: StoragePlacement, after: StoragePlacement) -> list[ReplicaId]:
    nodes = sorted({*before.partitions, *after.partitions})
    return [node for node in nodes if before.partitions.get(node) != after.partitions.get(node)]


def print_changes(before: StoragePlacement, after: StoragePlacement) -> None:
    """Print the same as a table."""
    table = new_table("storage node", "group", "before", "after", left=("before", "after"))
    table.columns[0].justify = "left"
    for node in _changed(before, after):
        table.add_row(
            node,
            str(after.groups.get(node, before.groups.get(node))),
            _shown(_held(before, node)),
            _shown(_held(after, node)),
        )
    print_table(table)


def _held(placement: StoragePlacement, node: ReplicaId) -> list[int] | None:
    """Return the node's partitions; None if there is no such node."""
    held = placement.partitions.get(node)
    return None if held is None else list(held)


def _shown(held: Sequence[int] | None) -> str:
    return "-" if held is None else listed_partitions(held)


def read_all_sessions(
    place: ClusterPlace, numbers: Sequence[PartitionId] | None = None
) -> Mapping[PartitionId, PartitionMetadata]:
    """Return the present sessions of the partitions `numbers`, None for all."""

    async def work(host: Host, root: str) -> Mapping[PartitionId, PartitionMetadata]:
        count = (await read_placement(host.coordinator, root)).partition_count
        wanted = range(count) if numbers is None else numbers
        return await read_sessions(host, root, tuple(map(PartitionId, wanted)))

    return place.run(work)


@click.command("add-storage")
@cluster_options
@storage
@click.option(
    *("-a", "--admin-port", "--storage-admin-port"),
    type=click.IntRange(1, 65535),
    required=True,
    help="Admin port of the storage node.",
)
@click.option(
    "-g", "--group", type=int, required=True, help="A group holds one copy of all partitions."
)
@dry_run_option
@json_option
def add_storage(
    place: ClusterPlace, storage: Address, admin_port: int, group: int, dry_run: bool, as_json: bool
) -> None:
    """Add a storage node, without partitions yet."""
    if admin_port == storage.port:
        raise click.UsageError(f"{storage} and its admin port are the same port")
    change = partial(add_storage_node, address=storage, group=group, admin_port=admin_port)
    change_cluster(place, change, dry_run=dry_run, as_json=as_json)


@click.command("remove-storage")
@cluster_options
@storage
@force_option("Even if store sessions still count on the node.")
@dry_run_option
@json_option
def remove_storage(
    place: ClusterPlace, storage: Address, force: bool, dry_run: bool, as_json: bool
) -> None:
    """Take a storage node that holds no partitions out of the cluster."""
    node = ReplicaId(str(storage))
    if not force:
        check_left(node, read_all_sessions(place))
    change = partial(remove_storage_node, node=node)
    change_cluster(place, change, dry_run=dry_run, as_json=as_json, leaving=node)


def check_left(node: ReplicaId, sessions: Mapping[PartitionId, PartitionMetadata]) -> None:
    """Check that no store session counts on the node. Raises ConfigurationError: a change of
    replicas that it leaves by has not ended."""
    if counting := [
        partition_id
        for partition_id, metadata in sessions.items()
        if node in metadata.counted_replicas
    ]:
        raise ConfigurationError(
            f"storage node {node} still takes part in the store sessions of partitions"
            f" {listed_partitions(counting)}: unassign them, and wait until servers have opened"
            f" sessions without it{FORCE_REMEDY}"
        )


@click.command()
@cluster_options
@storage
@partitions_option
@dry_run_option
@json_option
def assign(
    place: ClusterPlace,
    storage: Address,
    partition_ids: tuple[PartitionId, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let a storage node hold partitions; servers fill it at once."""
    node = ReplicaId(str(storage))
    change = partial(assign_replicas, node=node, partition_ids=partition_ids)
    change_cluster(place, change, dry_run=dry_run, as_json=as_json)
    if not dry_run:
        click.echo(HINT_TO_TAKE, err=True)


@click.command()
@cluster_options
@storage
@partitions_option
@click.option("--shrink-group", is_flag=True, help="Even if it is the last copy in its group.")
@force_option("Even if the other replicas are too few for the partition to take appends.")
@dry_run_option
@json_option
def unassign(
    place: ClusterPlace,
    storage: Address,
    partition_ids: tuple[PartitionId, ...],
    shrink_group: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let a storage node hold fewer partitions. The only copy of a partition is never taken
    away."""
    node = ReplicaId(str(storage))
    found = OpenSessions({}, {})
    if not force:
        found = place.run(lambda host, root: read_open_sessions(host, root, partition_ids))

    def change(placement: StoragePlacement) -> StoragePlacement:
        after = unassign_replicas(placement, node, partition_ids, shrinks_group=True)
        try:
            unassign_replicas(placement, node, partition_ids, shrinks_group=shrink_group)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}, or give --shrink-group") from error
        try:
            for partition_id in partition_ids:
                known = found.sessions.get(partition_id)
                check_majority(after, partition_id, known, found.lost.get(partition_id, ()))
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}{FORCE_REMEDY}") from error
        return after

    change_cluster(place, change, dry_run=dry_run, as_json=as_json)


@click.command()
@cluster_options
@storage_option("-s", "--storage", text="Storage node that gives up its partitions.")
@storage_option("-w", "--with", "joining", text="Storage node that takes these partitions.")
@click.option("-p", "--partition", "partition_ids", type=PARTITIONS, help="Only these partitions.")
@dry_run_option
@json_option
def exchange(
    place: ClusterPlace,
    storage: Address,
    joining: Address,
    partition_ids: tuple[PartitionId, ...] | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replace a storage node by another of its group, in one change: for all its partitions, or for
    those that are named."""
    leaving = ReplicaId(str(storage))
    change = partial(
        replace_replicas,
        leaving=leaving,
        joining=ReplicaId(str(joining)),
        partition_ids=partition_ids,
    )
    change_cluster(place, change, dry_run=dry_run, as_json=as_json)
    if not dry_run:
        click.echo(HINT_TO_TAKE, err=True)
        click.echo(f"keep {leaving} running until waltz cluster verify passes", err=True)


@click.command("auto-assign")
@cluster_options
@click.option(
    "-g", "--group", type=int, required=True, help="Group whose nodes share all partitions."
)
@dry_run_option
@json_option
def auto_assign(place: ClusterPlace, group: int, dry_run: bool, as_json: bool) -> None:
    """Distribute all partitions over the storage nodes of a group that has none yet."""
    change_cluster(place, partial(deal_out, group=group), dry_run=dry_run, as_json=as_json)
    if not dry_run:
        click.echo(HINT_TO_TAKE, err=True)
