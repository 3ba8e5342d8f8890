"""`waltz status`, `append`, `outcome`: a look at a cluster and a hand on its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import waltz
from waltz.cli.cluster_place import ClusterPlace, LogPlace, cluster_options, log_options
from waltz.cli.exit_codes import exit_code
from waltz.cli.nodes import run_loop
from waltz.cli.overview import ClusterOverview, read_overview
from waltz.cli.replica_standing import counted
from waltz.types import ClientId, Generation


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
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]cluster {overview.name}[/]  key {overview.cluster_key}\n")
    nodes = Table("storage node", "reachable", box=None, pad_edge=False)
    for storage in overview.storages:
        nodes.add_row(storage.replica_id, "yes" if storage.reachable else "[red]no[/]")
    console.print(nodes)
    for storage in overview.storages:
        for problem in storage.problems:
            console.print(f"[red]storage node {storage.replica_id}[/] {escape(problem)}")
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
            partition.server or "[red]none[/]",
        )
    console.print(partitions)
    for server in overview.servers:
        for problem in (*server.problems, *server.unknown):
            console.print(f"[red]server {server.address}[/] {escape(problem)}")
    for partition in overview.partitions:
        number = partition.partition_id
        if partition.problem is not None:
            is_known = partition.writable is False
            said = "takes no appends" if is_known else "takes appends or not, nobody can say"
            console.print(f"[red]partition {number} {said}:[/] {escape(partition.problem)}")
        for replica in partition.replica_states:
            if partition.replicas_current is not None and not replica.is_current:
                text = escape(f"{replica.replica_id} {replica.text}")
                console.print(f"[red]partition {number}: replica[/] {text}")


def parse_lock(text: str) -> waltz.PartitionLocalLock:
    name, separator, number = text.rpartition(":")
    try:
        return waltz.PartitionLocalLock(name, int(number if separator else ""))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a lock; expected name:number") from None


@click.command()
@log_options
@click.option("--partition", type=click.IntRange(min=0), required=True)
@click.option("--header", type=click.IntRange(-(2**31), 2**31 - 1), default=0, show_default=True)
@click.option("--write-lock", "write_locks", multiple=True, help="name:number; may be repeated.")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds for each transaction; 0: no limit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per transaction.")
@click.argument("data", nargs=-1)
def append(
    place: LogPlace,
    partition: int,
    header: int,
    write_locks: tuple[str, ...],
    timeout_seconds: float,
    as_json: bool,
    data: tuple[str, ...],
) -> None:
    """Append each DATA argument, or each line of standard input, and print its transaction ID."""
    locks = [parse_lock(text) for text in write_locks]
    with waltz.open_client(place.cluster, waltz.NoCallbacks(), tls=place.tls) as client:
        for line in with_progress(data) if data else stdin_lines():
            transaction_id = client.append(
                partition,
                line.encode(),
                header=header,
                write_locks=locks,
                timeout_seconds=timeout_seconds or None,
            )
            if as_json:
                click.echo(json.dumps({"partition": partition, "transaction_id": transaction_id}))
            else:
                click.echo(transaction_id)


class RequestIdType(click.ParamType):  # type: ignore[type-arg]
    """Client ID, generation, partition and sequence number, as errors print them."""

    name = "request ID"

    def convert(
        self, value: str, parameter: click.Parameter | None, context: click.Context | None
    ) -> waltz.RequestId:
        try:
            client, generation, partition, number = map(int, value.split(":"))
        except ValueError:
            self.fail(f"{value!r}; expected client:generation:partition:number", parameter, context)
        return waltz.RequestId(
            ClientId(client), Generation(generation), waltz.PartitionId(partition), number
        )


@click.command()
@log_options
@click.option(
    "--after", type=click.IntRange(min=-1), default=-1, show_default=True, help="Look behind it."
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0.001),
    default=60.0,
    show_default=True,
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.argument("request_id", type=RequestIdType())
def outcome(
    place: LogPlace,
    after: int,
    timeout_seconds: float,
    as_json: bool,
    request_id: waltz.RequestId,
) -> None:
    """Say what became of the append with that REQUEST_ID: its transaction ID, or that it is not in
    the log and never will be."""
    with waltz.open_client(place.cluster, waltz.NoCallbacks(), tls=place.tls) as client:
        found = client.outcome(request_id, after, timeout_seconds=timeout_seconds)
    if as_json:
        click.echo(json.dumps({"partition": request_id.partition_id, "transaction_id": found}))
    else:
        click.echo("not in the log, and never will be" if found is None else found)


def stdin_lines() -> Iterator[str]:
    for line in sys.stdin:
        yield line.rstrip("\n")


def with_progress(items: tuple[str, ...]) -> Iterable[str]:
    """Show a bar on a terminal if there is much to do."""
    if len(items) < 100 or not sys.stderr.isatty():
        return items
    columns = (TextColumn("append"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def tracked() -> Iterator[str]:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield from progress.track(items)

    return tracked()
