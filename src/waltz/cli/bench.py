"""`waltz bench`: measures a cluster and this machine with workloads from a file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from waltz.cli.nodes import CLUSTER
from waltz.cli.tls_options import tls_options
from waltz.types import ClusterAddress, TlsSettings
from waltz.wire.client_protocol import CLIENT_CODEC

if TYPE_CHECKING:
    from waltz.bench.results import Result
    from waltz.bench.workload import Workload

DEFAULT = ("one-at-a-time", "submit-locks", "commit-to-apply", "feed-callbacks")


def list_workloads(workloads: Sequence[Workload], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({each.name: each.about for each in workloads}, indent=2))
        return
    width = max(len(each.name) for each in workloads)
    for each in workloads:
        click.echo(f"{each.name:<{width}}  {each.about or each.verb}".rstrip())


@click.command()
@click.argument("names", nargs=-1)
@click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Workloads of your own, YAML; default: those that come with the program.",
)
@click.option("--list", "only_list", is_flag=True, help="List the workloads, run none.")
@click.option("--cluster", type=CLUSTER, help="A running cluster; default: one is started.")
@tls_options
@click.option("--with-tls", is_flag=True, help="Start a cluster that speaks TLS.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path(),
    help="Directory for calibration and clusters; default: here.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), help="Length of each round, for all workloads."
)
@click.option("--rounds", type=click.IntRange(min=1), help="Number of rounds, for all workloads.")
@click.option(
    "--protocol",
    type=click.IntRange(0, CLIENT_CODEC.versions[-1]),
    help="The latest version of the client protocol that clients offer, for all; 4 and below are"
    " those of Java clients.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot", type=click.Path(path_type=Path), help="File to which to write the latencies, as SVG."
)
def bench(
    names: tuple[str, ...],
    path: Path | None,
    only_list: bool,
    cluster: ClusterAddress | None,
    tls: TlsSettings,
    with_tls: bool,
    directory: Path,
    seconds: float | None,
    rounds: int | None,
    protocol: int | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure workloads: NAMES, or patterns like 'original-*'; all of a --file by default.

    Latency counts from the time at which a transaction was due. Every figure is also given as a
    multiple of what this machine alone does in the same run.
    """
    if cluster is not None and with_tls:
        raise click.UsageError(
            "--with-tls is for a cluster that this command starts; for a running one give --tls-ca"
        )
    # Imported late: a server's process imports these commands, too, and never uses the benchmark.
    from waltz.bench.benchmark import report, run_all
    from waltz.bench.plot import write_plot
    from waltz.bench.workload import READY_MADE, choose, read_workloads

    workloads = read_workloads(path or READY_MADE)
    if only_list:
        list_workloads(choose(workloads, names or ("*",)), as_json=as_json)
        return
    chosen = [
        each.short(seconds or each.duration_seconds, rounds or each.rounds)
        for each in choose(workloads, names or (DEFAULT if path is None else ("*",)))
    ]
    if protocol is not None:
        chosen = [replace(each, protocol=protocol) for each in chosen]
    if with_tls:
        chosen = [replace(each, tls=True) for each in chosen]
    load = os.getloadavg()[0]

    def show(result: Result) -> None:
        if not as_json:
            for line in [*result.calibration.lines(), *result.lines()]:
                click.echo(line)

    results = run_all(chosen, directory.absolute(), show, cluster=cluster, tls=tls)
    if as_json:
        click.echo(json.dumps(report(results, load), indent=2))
    if plot is not None:
        write_plot(results, plot)
