"""`waltz admin storage`: what storage nodes have taken, and whether servers may use it.

A node serves a partition if two things are true: the cluster's metadata assigns it, and the node
has taken it. These commands are about the second.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.nodes import ADDRESS
from waltz.cli.open_sessions import read_open_sessions
from waltz.cli.output import json_option, print_json
from waltz.cli.partition_list import listed_partitions, partitions_option
from waltz.cli.storage_questions import ask_session, ask_storage, talk_to_data_port
from waltz.cli.storage_target import (
    StorageTarget,
    check_given_up,
    check_spared,
    data_address,
    find_target,
    read_surroundings,
    talk_to_storage,
)
from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.placement_shell import read_placement
from waltz.host import Host
from waltz.types import Address, PartitionId, TransactionId
from waltz.wire.admin_protocol import (
    AdminSuccessResponse,
    PartitionAccessRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
)
from waltz.wire.storage_protocol import MaxTransactionIdRequest, MaxTransactionIdResponse

storage_option = click.option(
    "-s",
    "--storage",
    type=ADDRESS,
    required=True,
    help="Data port or admin port of the storage node.",
)


@click.command("add-partition")
@cluster_options
@storage_option
@partitions_option
@json_option
def add_partition(
    place: ClusterPlace, storage: Address, partition_ids: tuple[PartitionId, ...], as_json: bool
) -> None:
    """Let a node take partitions, together with earlier files of theirs if it still has them."""
    target = _assign(place, storage, partition_ids, assigned=True)
    _tell(target, partition_ids, "has taken", as_json=as_json)


@click.command("remove-partition")
@cluster_options
@storage_option
@partitions_option
@click.option(
    "-d", "--delete-storage-files", is_flag=True, help="Also delete the partition's files."
)
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help="Even if the cluster counts on the partition's records here; ask no question.",
)
@json_option
def remove_partition(
    place: ClusterPlace,
    storage: Address,
    partition_ids: tuple[PartitionId, ...],
    delete_storage_files: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Let a node give partitions up: it forgets their sessions and marks."""
    if delete_storage_files and not force:
        _confirm(
            f"This deletes the records of partitions {listed_partitions(partition_ids)} on"
            f" {storage}.",
            str(storage),
        )
    target = _assign(
        place,
        storage,
        partition_ids,
        assigned=False,
        delete_files=delete_storage_files,
        force=force,
    )
    _tell(target, partition_ids, "has given up", as_json=as_json)


def _confirm(what: str, expected: str) -> None:
    """Have the user type `expected`. Raises click.UsageError: there is no terminal, or the text
    differs."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what} There is no terminal to ask on: give --force")
    if click.prompt(f"{what}\nType {expected} to continue", err=True) != expected:
        raise click.UsageError("not confirmed; nothing was done")


def _assign(
    place: ClusterPlace,
    storage: Address,
    partition_ids: tuple[PartitionId, ...],
    *,
    assigned: bool,
    delete_files: bool = False,
    force: bool = False,
) -> StorageTarget:
    async def work(host: Host, root: str) -> StorageTarget:
        around = await read_surroundings(host, root, partition_ids)
        async with talk_to_storage(host, storage, around) as (target, talk):
            if not assigned and not force:
                check_given_up(around, target, partition_ids)
            request = PartitionAssignmentRequest(0, partition_ids, assigned, delete_files)
            await talk.ask(request, AdminSuccessResponse)
            return target

    return place.run(work)


@click.command()
@cluster_options
@storage_option
@partitions_option
@click.option(
    *("-o", "--online"),
    type=click.Choice(["true", "false"], case_sensitive=False),
    required=True,
    help="Whether servers may use the partition.",
)
@click.option("-f", "--force", is_flag=True, help="Even if the partition then takes no appends.")
@json_option
def availability(
    place: ClusterPlace,
    storage: Address,
    partition_ids: tuple[PartitionId, ...],
    online: str,
    force: bool,
    as_json: bool,
) -> None:
    """Let servers use partitions of a node, or not; offline recovery needs that they do not."""
    is_online = online.lower() == "true"

    async def work(host: Host, root: str) -> StorageTarget:
        around = await read_surroundings(host, root, partition_ids)
        async with talk_to_storage(host, storage, around) as (target, talk):
            if not is_online and not force:
                check = partial(check_spared, around.placement, target, partition_ids)
                await read_open_sessions(host, root, partition_ids, check)
            request = PartitionAvailableRequest(0, partition_ids, is_online)
            await talk.ask(request, AdminSuccessResponse)
            return target

    target = place.run(work)
    verb = "lets servers use" if is_online else "lets no server use"
    _tell(target, partition_ids, verb, as_json=as_json)


@click.command()
@cluster_options
@storage_option
@partitions_option
@click.option(
    "--reads",
    type=click.Choice(["on", "off"]),
    required=True,
    help="Whether servers may read the partition.",
)
@click.option(
    "--writes",
    type=click.Choice(["on", "off"]),
    required=True,
    help="Whether servers may append to the partition.",
)
@click.option("-f", "--force", is_flag=True, help="Even if the partition then takes no appends.")
@json_option
def access(
    place: ClusterPlace,
    storage: Address,
    partition_ids: tuple[PartitionId, ...],
    reads: str,
    writes: str,
    force: bool,
    as_json: bool,
) -> None:
    """Let servers read partitions of a node, append to them, both, or neither.

    A replica without reads takes part in everything and is never read from. A replica without
    writes takes no part in a store session: to servers it is away, but tools can read it. A node of
    the Java original knows only both or neither: availability.
    """
    is_readable, is_writable = reads == "on", writes == "on"

    async def work(host: Host, root: str) -> StorageTarget:
        around = await read_surroundings(host, root, partition_ids)
        async with talk_to_storage(host, storage, around) as (target, talk):
            if not is_writable and not force:
                check = partial(check_spared, around.placement, target, partition_ids)
                await read_open_sessions(host, root, partition_ids, check)
            request = PartitionAccessRequest(0, partition_ids, is_readable, is_writable)
            await talk.ask(request, AdminSuccessResponse)
            return target

    target = place.run(work)
    verb = f"has reads {reads} and writes {writes} for servers of"
    _tell(target, partition_ids, verb, as_json=as_json)


def _tell(
    target: StorageTarget, partition_ids: tuple[PartitionId, ...], verb: str, *, as_json: bool
) -> None:
    if as_json:
        name = str(target.replica_id or target.admin)
        print_json({"storage": name, "done": verb, "partitions": list(partition_ids)})
    else:
        click.echo(f"{target} {verb} partitions {listed_partitions(partition_ids)}")


@click.command()
@cluster_options
@json_option
def validate(place: ClusterPlace, as_json: bool) -> None:
    """Check that every storage node answers on both of its ports; end with 1 if one does not."""

    async def work(host: Host, root: str) -> Mapping[str, Sequence[str]]:
        params = await read_store_params(host.coordinator, root)
        placement = await read_placement(host.coordinator, root)
        nodes = sorted(placement.partitions)
        found = await asyncio.gather(
            *[ask_storage(host, node, placement.admin_ports, params) for node in nodes]
        )
        return {
            node: [each for each in (report.trouble, report.admin_trouble) if each is not None]
            for node, report in zip(nodes, found, strict=True)
        }

    found = place.run(work)
    if as_json:
        print_json(
            [
                {"storage": node, "answers": not troubles, "troubles": list(troubles)}
                for node, troubles in found.items()
            ]
        )
    else:
        for node, troubles in found.items():
            click.echo(f"storage node {node}: {'; '.join(troubles) or 'answers'}")
    if any(found.values()):
        sys.exit(1)


@click.command("max-transaction-id")
@cluster_options
@storage_option
@click.option(
    *("-sp", "--storage-port"),
    type=click.IntRange(1, 65535),
    help="Data port; only for a node that the cluster does not know.",
)
@click.option("-p", "--partition", "partition_id", type=click.IntRange(min=0), required=True)
@click.option(
    "-o", "--offline", is_flag=True, help="Ask about a partition that is not available to servers."
)
@json_option
def max_transaction_id(
    place: ClusterPlace,
    storage: Address,
    storage_port: int | None,
    partition_id: int,
    offline: bool,
    as_json: bool,
) -> None:
    """Print the last transaction that a node has stored, committed or not; -1 for none."""
    number = PartitionId(partition_id)

    async def work(host: Host, root: str) -> TransactionId:
        around = await read_surroundings(host, root, (number,))
        async with talk_to_storage(host, storage, around) as (_, talk):
            session = await ask_session(talk, number)
        data = data_address(find_target(storage, around.placement.admin_ports, storage_port))
        async with talk_to_data_port(host, data, around.params) as talk:
            request = MaxTransactionIdRequest(session.session_id, 0, number, offline)
            return (await talk.ask(request, MaxTransactionIdResponse)).transaction_id

    found = place.run(work)
    if as_json:
        print_json({"partition_id": partition_id, "transaction_id": found})
    else:
        click.echo(found)
