"""`waltz cluster create`, `delete` and `show-cluster-key`: the metadata that makes a cluster."""

from __future__ import annotations

import sys
from uuid import UUID, uuid4

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import ADDRESS
from waltz.cli.output import json_option, print_json
from waltz.cluster.cluster_shell import (
    StorageEntry,
    create_cluster,
    read_cluster_params,
    read_store_params,
)
from waltz.cluster.removal_shell import remove_cluster
from waltz.cluster.store_params import StoreParams
from waltz.errors import NodeExistsError
from waltz.host import Host
from waltz.limits import PARTITIONS_MAX
from waltz.types import Address


@click.command()
@cluster_options
@click.option("-n", "--name", required=True, help="The cluster's name; `delete` asks for it.")
@click.option(
    "-p",
    "--partitions",
    "partition_count",
    type=click.IntRange(1, PARTITIONS_MAX),
    required=True,
    help="Number of partitions; it can only grow.",
)
@click.option(
    "--storage",
    "storages",
    type=ADDRESS,
    multiple=True,
    help="A storage node, of a group of its own, that is to hold all partitions; may be repeated.",
)
@click.option(
    "--admin-port", type=click.IntRange(1, 65535), help="Admin port of these storage nodes."
)
@click.option("--if-absent", is_flag=True, help="End well if a cluster of this name is there.")
@json_option
def create(
    place: ClusterPlace,
    name: str,
    partition_count: int,
    storages: tuple[Address, ...],
    admin_port: int | None,
    if_absent: bool,
    as_json: bool,
) -> None:
    """Create a cluster, and print its key. Storage nodes can be added later."""
    if storages and admin_port is None:
        raise click.UsageError("the admin port of the storage nodes is missing: give --admin-port")
    if len(set(storages)) != len(storages):
        raise click.UsageError("a storage node is named twice: give each --storage once")
    entries = [StorageEntry(each, Address(each.host, admin_port or 0)) for each in storages]

    async def work(host: Host, root: str) -> tuple[bool, StoreParams]:
        try:
            await create_cluster(
                host.coordinator,
                name=name,
                partition_count=partition_count,
                cluster_key=uuid4(),
                storages=entries,
                root=root,
            )
            created = True
        except NodeExistsError:
            if not if_absent:
                raise
            created = False
        params = await read_cluster_params(host.coordinator, root)
        if params.name != name:
            raise NodeExistsError(f"there is a cluster at {root}, and its name is {params.name}")
        return created, await read_store_params(host.coordinator, root)

    created, store = place.run(work)
    if as_json:
        print_json(
            {
                "name": name,
                "root": place.root,
                "partition_count": store.partition_count,
                "cluster_key": str(store.cluster_key),
                "created": created,
            }
        )
    elif created:
        click.echo(f"created cluster {name} of {partition_count} partitions at {place.root}")
        click.echo(f"cluster key {store.cluster_key}")
        nodes_next = "" if storages else "waltz cluster add-storage, auto-assign; then "
        click.echo(f"next: {nodes_next}start the nodes", err=True)
    else:
        click.echo(f"cluster {name} is there, with {store.partition_count} partitions; unchanged")


@click.command()
@cluster_options
@click.option("-n", "--name", help="The cluster's name; asked for on a terminal.")
@click.option(
    "-f", "--force", is_flag=True, help="Whatever the cluster's name, and even if its servers run."
)
def delete(place: ClusterPlace, name: str | None, force: bool) -> None:
    """Delete a cluster's metadata. Its storage nodes' files stay, and belong to no cluster then."""
    if name is None and not force:
        if not sys.stdin.isatty():
            raise click.UsageError("the cluster's name is missing: give --name, or --force")
        name = click.prompt(
            f"This deletes the cluster at {place.root} of {place.coordinator}.\n"
            "Type its name to continue",
            err=True,
        )

    async def work(host: Host, root: str) -> str:
        params = await remove_cluster(host.coordinator, name=None if force else name, root=root)
        return params.name

    click.echo(f"deleted cluster {place.run(work)} at {place.root}")


@click.command("show-cluster-key")
@cluster_options
@json_option
def show_cluster_key(place: ClusterPlace, as_json: bool) -> None:
    """Print the key that every storage directory of the cluster carries."""

    async def work(host: Host, root: str) -> tuple[str, UUID]:
        params = await read_cluster_params(host.coordinator, root)
        return params.name, (await read_store_params(host.coordinator, root)).cluster_key

    name, key = place.run(work)
    if as_json:
        print_json({"name": name, "root": place.root, "cluster_key": str(key)})
    else:
        click.echo(key)
