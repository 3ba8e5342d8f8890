"""`waltz admin server`: the partitions that a running server prefers."""

from __future__ import annotations

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import ADDRESS
from waltz.cli.output import json_option, print_json
from waltz.cli.partition_list import listed_partitions, partitions_option
from waltz.cluster.cluster_shell import read_cluster_params
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.operators.questions_shell import NOBODY, talk_to_server
from waltz.types import Address, PartitionId
from waltz.wire.client_protocol import (
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
)

server_option = click.option(
    "-s", "--server", type=ADDRESS, required=True, help="Address of the server, as clients know it."
)


@click.command("add-preferred-partition")
@cluster_options
@server_option
@partitions_option
@json_option
def add_preferred_partition(
    place: ClusterPlace, server: Address, partition_ids: tuple[PartitionId, ...], as_json: bool
) -> None:
    """Let a server prefer partitions, now and after a restart; they move to it unless another
    server claims them with a lower ID."""
    change_preference(place, server, partition_ids, add=True, as_json=as_json)


@click.command("remove-preferred-partition")
@cluster_options
@server_option
@partitions_option
@json_option
def remove_preferred_partition(
    place: ClusterPlace, server: Address, partition_ids: tuple[PartitionId, ...], as_json: bool
) -> None:
    """Let a server prefer partitions no longer; they move only if that makes the shares even."""
    change_preference(place, server, partition_ids, add=False, as_json=as_json)


def change_preference(
    place: ClusterPlace,
    server: Address,
    partition_ids: tuple[PartitionId, ...],
    *,
    add: bool,
    as_json: bool,
) -> None:
    """Add or remove preferred partitions. Raises ConfigurationError: no such partition,
    or the server does not confirm the change. UnavailableError: it does not answer."""

    async def work(host: Host, root: str) -> bool:
        params = await read_cluster_params(host.coordinator, root)
        if beyond := [each for each in partition_ids if each >= params.partition_count]:
            raise ConfigurationError(
                f"there is no partition {listed_partitions(beyond)}; expected 0 to"
                f" {params.partition_count - 1}"
            )
        async with talk_to_server(host, server) as talk:
            if add:
                question = AddPreferredPartitionRequest(NOBODY, partition_ids)
                return (await talk.ask(question, AddPreferredPartitionResponse)).result
            removal = RemovePreferredPartitionRequest(NOBODY, partition_ids)
            return (await talk.ask(removal, RemovePreferredPartitionResponse)).result

    if not place.run(work):
        raise ConfigurationError(
            f"server {server} does not confirm the change, which may or may not be stored: repeat"
            " the command; that server's log says why, at preferred_partitions_unchanged"
        )
    if as_json:
        print_json({"server": str(server), "added" if add else "removed": list(partition_ids)})
    else:
        verb = "prefers" if add else "no longer prefers"
        click.echo(f"server {server} {verb} partitions {listed_partitions(partition_ids)}")
