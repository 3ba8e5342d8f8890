"""`waltz admin storage sync-partitions`: nodes take what the cluster's metadata assigns to them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.output import json_option, print_json
from waltz.cli.partition_list import listed_partitions
from waltz.cli.storage_questions import ask_usable
from waltz.cli.storage_target import (
    Surroundings,
    check_given_up,
    read_surroundings,
    talk_to_storage,
)
from waltz.cluster.cluster_shell import read_store_params
from waltz.errors import ConfigurationError, RemoteStorageError, UnavailableError
from waltz.host import Host
from waltz.types import Address, PartitionId, ReplicaId
from waltz.wire.admin_protocol import AdminSuccessResponse, PartitionAssignmentRequest


@dataclass(frozen=True, slots=True)
class SyncDifference:
    """The partitions that a node should have taken and had not, and the reverse; `trouble` is set
    if it stopped answering."""

    node: ReplicaId
    trouble: str | None
    missing: tuple[PartitionId, ...] = ()
    surplus: tuple[PartitionId, ...] = ()
    given_up: bool = False


@click.command("sync-partitions")
@cluster_options
@click.option(
    "-f",
    "--force",
    is_flag=True,
    help="Also give up partitions that are not assigned; their files stay.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@json_option
def sync_partitions(place: ClusterPlace, force: bool, dry_run: bool, as_json: bool) -> None:
    """Let every storage node take what the cluster's metadata assigns to it.

    What a node has taken beyond that is given up only with --force. Ends with 1 if a node does not
    answer, or something is left.
    """

    async def work(host: Host, root: str) -> list[SyncDifference]:
        numbers = tuple(
            map(
                PartitionId,
                range((await read_store_params(host.coordinator, root)).partition_count),
            )
        )
        around = await read_surroundings(host, root, numbers)
        nodes = sorted(around.placement.partitions)
        return list(
            await asyncio.gather(
                *[_sync(host, node, around, force=force, dry_run=dry_run) for node in nodes]
            )
        )

    found = place.run(work)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "storages": [
                    {
                        "storage": each.node,
                        "trouble": each.trouble,
                        "taken": list(each.missing),
                        "surplus": list(each.surplus),
                        "given_up": each.given_up,
                    }
                    for each in found
                ],
            }
        )
    else:
        show_differences(found, dry_run=dry_run)
    if any(each.trouble or (each.surplus and not each.given_up and not dry_run) for each in found):
        sys.exit(1)


async def _sync(
    host: Host, node: ReplicaId, around: Surroundings, *, force: bool, dry_run: bool
) -> SyncDifference:
    held = {*around.placement.partitions[node]}
    found = SyncDifference(node, None)
    try:
        async with talk_to_storage(host, Address.parse(node), around) as (target, talk):
            taken = (await ask_usable(talk)).keys()
            surplus = tuple(sorted(taken - held))
            found = replace(found, surplus=surplus)
            if missing := tuple(sorted(held - taken)):
                if not dry_run:
                    request = PartitionAssignmentRequest(0, missing, True, False)
                    await talk.ask(request, AdminSuccessResponse)
                found = replace(found, missing=missing)
            if surplus and force and not dry_run:
                check_given_up(around, target, surplus)
                request = PartitionAssignmentRequest(0, surplus, False, False)
                await talk.ask(request, AdminSuccessResponse)
                found = replace(found, given_up=True)
    except (UnavailableError, RemoteStorageError, ConfigurationError) as error:
        return replace(found, trouble=str(error))
    return found


def show_differences(found: Sequence[SyncDifference], *, dry_run: bool) -> None:
    for each in found:
        said = []
        if each.trouble is not None:
            said.append(f"failed: {each.trouble}")
        if each.missing:
            verb = "would take" if dry_run else "has taken"
            said.append(f"{verb} partitions {listed_partitions(each.missing)}")
        if each.surplus:
            verb = "has given up" if each.given_up else "has, though they are not assigned to it,"
            said.append(f"{verb} partitions {listed_partitions(each.surplus)}")
        click.echo(f"storage node {each.node}: {'; '.join(said) or 'nothing to do'}")
    if any(each.surplus and not each.given_up for each in found):
        click.echo("--force lets nodes give up what is not assigned to them", err=True)
