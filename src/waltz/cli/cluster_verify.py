"""`waltz cluster verify` and `check-connectivity`: ask every node, judge the answers, end with 1 on
a fault."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click

from waltz.cli.cluster_list import read_metadata
from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.cluster_verification import CHECKS, ClusterVerdict, Facts, verdict
from waltz.cli.exit_codes import exit_code
from waltz.cli.output import json_option, new_table, print_json, print_table
from waltz.cli.partition_list import PARTITIONS, listed_partitions
from waltz.cli.server_answers import ask_everything, ask_servers
from waltz.cli.storage_questions import ask_storage
from waltz.cluster.store_params import StoreParams
from waltz.errors import ConfigurationError
from waltz.host import Host
from waltz.types import PartitionId

ANSWER_SECONDS_DEFAULT = 10.0

timeout_option = click.option(
    *("-t", "--timeout", "seconds"),
    type=click.FloatRange(min=0.1),
    default=ANSWER_SECONDS_DEFAULT,
    show_default=True,
    help="Time limit per question, in seconds.",
)


async def gather_facts(host: Host, root: str, seconds: float) -> Facts:
    """Ask the coordinator, then all servers and storage nodes at once. Raises NoNodeError: there is
    no cluster. CoordinatorLostError."""
    metadata = await read_metadata(host, root)
    params = StoreParams(metadata.cluster_key, metadata.partition_count)
    descriptors = metadata.membership.descriptors
    owned = metadata.membership.assignment.servers
    asked_servers = asyncio.gather(
        *[
            ask_everything(host, each.address, seconds, sorted(owned.get(server_id, {})))
            for server_id, each in descriptors.items()
        ]
    )
    nodes = metadata.replicas()
    ports = metadata.placement.admin_ports
    asked_storages = asyncio.gather(
        *[ask_storage(host, node, ports, params, seconds=seconds) for node in nodes]
    )
    servers = dict(zip(descriptors, await asked_servers, strict=True))
    storages = dict(zip(nodes, await asked_storages, strict=True))
    return Facts(metadata, servers, storages)


@click.command()
@cluster_options
@click.option(
    "-p", "--partition", "partition_ids", type=PARTITIONS, help="Judge only these partitions."
)
@timeout_option
@json_option
def verify(
    place: ClusterPlace,
    partition_ids: tuple[PartitionId, ...] | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Ask the coordinator, every server and every storage node, and compare what they say.

    Ends with 0 if all is well, with 1 if anything is not, and with 3 if nothing is known to be
    wrong but not everything could be asked: Java servers do not say which replicas take part.
    """

    async def work(host: Host, root: str) -> Facts:
        return await gather_facts(host, root, seconds)

    facts = place.run(work)
    if beyond := {*(partition_ids or ())} - {*facts.partition_ids}:
        raise ConfigurationError(
            f"there is no partition {listed_partitions(beyond)}; expected 0 to"
            f" {facts.metadata.partition_count - 1}"
        )
    found = verdict(facts, partition_ids)
    if as_json:
        print_json(verdict_json(found))
    else:
        show_verdict(found)
    if (code := exit_code(found.is_well)) != 0:
        sys.exit(code)


def verdict_json(found: ClusterVerdict) -> dict[str, Any]:
    failed, unconfirmed = {*found.failed_partitions}, {*found.unconfirmed_partitions}
    return {
        "passed": found.is_well,
        "checks": [
            {
                "check": name,
                "passed": {"passed": True, "FAILED": False}.get(found.result(name)),
                "unknown": [
                    {"text": fault.text, "partitions": list(fault.partition_ids)}
                    for fault in found.unknown(name)
                ],
                "faults": [
                    {"text": fault.text, "partitions": list(fault.partition_ids)}
                    for fault in found.failed(name)
                ],
            }
            for name in CHECKS
        ],
        "partitions": {
            str(number): False if number in failed else None if number in unconfirmed else True
            for number in found.partition_ids
        },
    }


def show_verdict(found: ClusterVerdict) -> None:
    table = new_table("check", "result", "meaning", left=("check", "result", "meaning"))
    for name, check in CHECKS.items():
        meaning = (check.__doc__ or "").rpartition(" (")[0]
        table.add_row(name, found.result(name), meaning)
    print_table(table)
    for fault in found.faults:
        plural = "" if len(fault.partition_ids) == 1 else "s"
        numbers = f" partition{plural} {listed_partitions(fault.partition_ids)}:"
        name = fault.check if fault.is_known else f"{fault.check} (unknown)"
        click.echo(f"{name}:{numbers if fault.partition_ids else ''} {fault.text}")
    failed, unconfirmed = found.failed_partitions, found.unconfirmed_partitions
    passed = {*found.partition_ids} - {*failed, *unconfirmed}
    click.echo(f"partitions passed: {listed_partitions(passed)}")
    click.echo(f"partitions failed: {listed_partitions(failed)}")
    if unconfirmed:
        click.echo(f"partitions unknown: {listed_partitions(unconfirmed)}")


@click.command("check-connectivity")
@cluster_options
@timeout_option
@json_option
def check_connectivity(place: ClusterPlace, seconds: float, as_json: bool) -> None:
    """Ask every server which storage nodes it reaches; end with 1 unless it reaches all of them."""
    found = place.run(lambda host, root: ask_servers(host, root, seconds))
    if as_json:
        print_json(
            {
                str(address): {"answers": answers.trouble is None, "trouble": answers.trouble}
                | {"reaches": answers.reaches}
                for address, answers in found.items()
            }
        )
    else:
        for address, answers in found.items():
            if answers.reaches is None:
                click.echo(f"server {address}: UNREACHABLE: {answers.trouble}")
                continue
            for node, is_reached in sorted(answers.reaches.items()):
                click.echo(f"server {address}: storage node {node}: {str(is_reached).lower()}")
    if not found:
        raise ConfigurationError("no server of the cluster is running")
    if not all(each.reaches is not None and all(each.reaches.values()) for each in found.values()):
        sys.exit(1)
