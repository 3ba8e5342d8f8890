"""`waltz status`, `waltz append`, `waltz tail`: a look at a cluster and a hand on its log."""

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
    if not separator or not number.lstrip("-").isdigit():
        raise click.BadParameter(f"{text!r} is not a lock; expected name:number")
    return waltz.PartitionLocalLock(name, int(number))


@click.command()
@log_options
@click.option("--partition", type=click.IntRange(min=0), required=True)
@click.option("--header", type=click.IntRange(-(2**31), 2**31 - 1), default=0, show_default=True)
@click.option("--write-lock", "write_locks", multiple=True, help="name:number; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per transaction.")
@click.argument("data", nargs=-1)
def append(
    place: LogPlace,
    partition: int,
    header: int,
    write_locks: tuple[str, ...],
    as_json: bool,
    data: tuple[str, ...],
) -> None:
    """Append each DATA argument, or each line of standard input, and print its transaction ID."""
    locks = [parse_lock(text) for text in write_locks]
    with waltz.open_client(place.cluster, waltz.NoCallbacks(), tls=place.tls) as client:
        for line in with_progress(data) if data else stdin_lines():
            transaction_id = client.append(
                partition, line.encode(), header=header, write_locks=locks
            )
            if as_json:
                click.echo(json.dumps({"partition": partition, "transaction_id": transaction_id}))
            else:
                click.echo(transaction_id)


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


@click.command()
@log_options
@click.option("--partition", type=click.IntRange(min=0), required=True)
@click.option(
    "--from", "start", default="latest", show_default=True, help="earliest, latest or an ID."
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Wait for more.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per transaction.")
def tail(
    place: LogPlace,
    partition: int,
    start: str,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the transactions of a partition, one a line: ID, header, data."""
    with waltz.open_reader(place.cluster, tls=place.tls) as reader:
        if start == "earliest":
            first = 0
        elif start == "latest":
            first = reader.high_water_mark(partition) + 1
        elif start.isdigit():
            first = int(start)
        else:
            raise click.BadParameter(f"--from {start!r}: expected earliest, latest or an ID")
        if follow:
            runs = reader.follow(partition, first)
        else:
            runs = reader.read(partition, first, reader.high_water_mark(partition) + 1)
        for run in runs:
            for index, data in enumerate(run.data):
                transaction_id = run.first_transaction_id + index
                print_transaction(
                    partition, transaction_id, int(run.headers[index]), data, as_json=as_json
                )
            sys.stdout.flush()


def print_transaction(
    partition: int, transaction_id: int, header: int, data: bytes, *, as_json: bool
) -> None:
    text = data.decode(errors="backslashreplace")
    if as_json:
        value = {
            "partition": partition,
            "transaction_id": transaction_id,
            "header": header,
            "data": text,
        }
        print(json.dumps(value))
    else:
        print(f"{transaction_id}\t{header}\t{text}")
