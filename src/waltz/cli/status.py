"""`waltz status`: a look at a cluster."""

from __future__ import annotations

import json
import sys

import click

from waltz.cli.cluster_place import ClusterPlace, cluster_options
from waltz.cli.exit_codes import exit_code
from waltz.cli.nodes import run_loop
from waltz.cli.overview import ClusterOverview, read_overview
from waltz.cli.replica_standing import counted


@click.command()
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(place: ClusterPlace, as_json: bool) -> None:
    """Show servers, storage nodes, partitions, their marks, and which replicas take part.

    Servers and storage nodes are asked for it; what nobody could say is shown as unknown. Ends with
    0 if all is well, with 1 if anything is not, and with 3 if nothing is known to be wrong but not
    everything could be asked.
    """
    overview = run_loop(read_overview(place))
    if as_json:
        click.echo(json.dumps(overview.to_json(), indent=2))
    else:
        show_overview(overview)
    if (code := exit_code(overview.is_healthy)) != 0:
        sys.exit(code)


def show_overview(overview: ClusterOverview) -> None:
    from rich.markup import escape
    from rich.table import Table

    from waltz.cli.output import output_console  # nothing needs it before there is an answer

    console = output_console(soft_wrap=True)
    console.print(f"[bold]cluster {escape(overview.name)}[/]  key {overview.cluster_key}\n")
    nodes = Table("storage node", "reachable", box=None, pad_edge=False)
    for storage in overview.storages:
        nodes.add_row(escape(storage.replica_id), "yes" if storage.reachable else "[red]no[/]")
    console.print(nodes)
    for storage in overview.storages:
        for problem in storage.problems:
            console.print(f"[red]storage node {escape(storage.replica_id)}[/] {escape(problem)}")
    console.print()
    partitions = Table(box=None, pad_edge=False)
    for heading in ("partition", "generation", "session", "mark", "replicas"):
        partitions.add_column(heading, justify="right", no_wrap=True)
    partitions.add_column("writable", no_wrap=True)
    partitions.add_column("server", no_wrap=True)
    writable = {True: "yes", False: "[red]no[/]", None: "[red]unknown[/]"}
    for partition in overview.partitions:
        mark = partition.high_water_mark
        partitions.add_row(
            str(partition.partition_id),
            str(partition.generation),
            str(partition.session_id),
            "[red]unknown[/]" if mark is None else str(mark),
            counted(partition.replica_states, is_asked=partition.replicas_current is not None),
            writable[partition.writable],
            escape(partition.server) if partition.server else "[red]none[/]",
        )
    console.print(partitions)
    for server in overview.servers:
        for problem in (*server.problems, *server.unknown):
            console.print(f"[red]server {escape(server.address)}[/] {escape(problem)}")
    for partition in overview.partitions:
        number = partition.partition_id
        if partition.problem is not None:
            is_known = partition.writable is False
            said = "takes no appends" if is_known else "may or may not take appends"
            console.print(f"[red]partition {number} {said}:[/] {escape(partition.problem)}")
        for replica in partition.replica_states:
            if partition.replicas_current is not None and not replica.is_current:
                text = escape(f"{replica.replica_id} {replica.text}")
                console.print(f"[red]partition {number}: replica[/] {text}")
