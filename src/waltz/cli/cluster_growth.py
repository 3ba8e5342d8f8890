"""`waltz cluster add-partitions`: more partitions for a running cluster.

`operators/cluster_growth_shell.py` has the steps; this module asks for them, shows them, and waits
for them.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.cluster_storages import dry_run_option, placement_changes, print_changes
from waltz.cli.output import json_option, print_json
from waltz.cli.partition_list import listed_partitions
from waltz.errors import ConfigurationError, CoordinatorLostError, WaltzError
from waltz.host import Host
from waltz.limits import PARTITIONS_MAX
from waltz.operators.cluster_growth_shell import (
    GrowthPlan,
    add_partitions,
    plan_growth,
    wait_until_served,
)
from waltz.types import PartitionId

SERVED_SECONDS_DEFAULT = 60.0


@click.command("add-partitions")
@cluster_options
@click.option(
    "--to",
    type=click.IntRange(1, PARTITIONS_MAX),
    required=True,
    help="New number of partitions, the old ones included.",
)
@click.option(
    "--despite-earlier-clients",
    is_flag=True,
    help="Even if clients of versions before 5 run: Java ones lose track until restarted.",
)
@click.option(
    *("-t", "--timeout", "seconds"),
    type=click.FloatRange(min=0.0),
    default=SERVED_SECONDS_DEFAULT,
    show_default=True,
    help="Time to wait until servers serve the new partitions, in seconds.",
)
@dry_run_option
@json_option
def grow(
    place: ClusterPlace,
    to: int,
    despite_earlier_clients: bool,
    seconds: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add partitions while everything runs; a cluster never gets fewer.

    Refused while a storage node or a server would not follow. To finish a growth that was cut
    short, give the same number again. Keys that applications map to partitions by their number
    move: read docs/operating/cluster.md first.
    """

    async def plan(host: Host, root: str) -> GrowthPlan:
        return await plan_growth(
            host, to, root=root, despite_earlier_clients=despite_earlier_clients
        )

    planned = place.run(plan)
    if planned.obstacles:
        raise ConfigurationError(
            "\n".join(
                (*planned.obstacles, f"nothing was changed: {planned.counts.cluster} partitions")
            )
        )
    waiting: list[PartitionId] | None = None
    if not dry_run:
        waiting = place.run(lambda host, root: carry_out(host, root, planned, seconds))
    if as_json:
        print_json(growth_json(planned, waiting, dry_run=dry_run))
    else:
        show_growth(planned, waiting, dry_run=dry_run)
    if not dry_run and (waiting is None or waiting):
        sys.exit(1)


async def carry_out(
    host: Host, root: str, planned: GrowthPlan, seconds: float
) -> list[PartitionId] | None:
    """Return the new partitions that are not served in time; None if no server runs.

    Raises ConfigurationError: a step failed; its text says what is so by then, as far as that is
    known: a coordinator that is lost may have taken the step all the same.
    """
    command = f"waltz cluster add-partitions --to {planned.to}"
    try:
        is_dealt_out = await add_partitions(
            host, planned, root=root, tell=lambda text: click.echo(text, err=True)
        )
    except CoordinatorLostError as error:
        raise ConfigurationError(
            f"{error}\nhow far the addition has come is not known: {command} finishes it, or finds"
            " it finished"
        ) from error
    except WaltzError as error:
        raise ConfigurationError(
            f"{error}\nthe addition was cut short, and the partitions that are served have not"
            f" changed: {command} finishes the addition"
        ) from error
    if not is_dealt_out:
        return None
    try:
        return await wait_until_served(host, planned.new, seconds, root=root)
    except WaltzError as error:
        raise ConfigurationError(
            f"{error}\nthe cluster has {planned.to} partitions, and whether all are served is not"
            " known: waltz status says it"
        ) from error


def growth_json(
    planned: GrowthPlan, waiting: list[PartitionId] | None, *, dry_run: bool
) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "partitions_before": planned.counts.cluster,
        "partitions": planned.counts.cluster if dry_run else planned.to,
        "to": planned.to,
        "served": None if dry_run else waiting == [],
        "waiting": None if waiting is None else list(waiting),
        "storages": placement_changes(planned.before, planned.after),
    }


def show_growth(planned: GrowthPlan, waiting: list[PartitionId] | None, *, dry_run: bool) -> None:
    print_changes(planned.before, planned.after)
    if dry_run:
        click.echo(
            f"the cluster would have {planned.to} partitions instead of {planned.counts.cluster};"
            " nothing was changed",
            err=True,
        )
    elif waiting is None:
        click.echo("no server runs: the new partitions are served once one does", err=True)
    elif waiting:
        click.echo(
            f"partitions {listed_partitions(waiting)} are not served yet: waltz status says why",
            err=True,
        )
    else:
        click.echo(f"all {planned.to} partitions are served", err=True)
