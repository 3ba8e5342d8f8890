"""`waltz migrate check`: its options, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from waltz.cli.exit_codes import exit_code
from waltz.cli.output import json_option, print_json

FILES = click.Path(path_type=Path)

ANSWER_SECONDS: Final = 10.0
"""The time limit of a question, if nobody says otherwise."""


@click.command()
@click.option(*("-c", "--cli-config-path"), "tools", type=FILES, help="The file of Java's tools.")
@click.option("--server", "servers", multiple=True, type=FILES, help="A Java server's file.")
@click.option(
    "--storage", "storages", multiple=True, type=FILES, help="A Java storage node's file."
)
@click.option(
    "--directory",
    "directories",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A storage directory, besides those that the files name and that are on this machine.",
)
@click.option("--records", "with_records", is_flag=True, help="Read all records of directories.")
@click.option("--offline", is_flag=True, help="Ask neither ZooKeeper nor any process.")
@click.option(
    *("-t", "--timeout", "seconds"),
    type=click.FloatRange(min=0.1),
    default=ANSWER_SECONDS,
    show_default=True,
    help="Time limit per question, in seconds.",
)
@json_option
def check(
    tools: Path | None,
    servers: Sequence[Path],
    storages: Sequence[Path],
    directories: Sequence[Path],
    *,
    with_records: bool,
    offline: bool,
    seconds: float,
    as_json: bool,
) -> None:
    """Look at a cluster of Java Waltz, and print the plan of its migration.

    Reads the original's files, key stores and storage directories, asks ZooKeeper and every
    process, and prints what is in the way, what will differ, and the steps with the way back of
    each. A step is ready only if every partition has all its replicas. Nothing is changed. Ends
    with 0 if nothing is in the way, with 1 if something is, and with 3 if nothing is known to be
    and something could not be found out.
    """
    from waltz.cli.migration.original_files import Role
    from waltz.cli.migration.site_check import ask_cluster, checkup, shown

    named = [
        *((each, Role.SERVER) for each in servers),
        *((each, Role.STORAGE) for each in storages),
    ]
    if tools is not None:
        named.insert(0, (tools, Role.TOOLS))
    if not named and not directories:
        raise click.UsageError("nothing to look at: give -c, --server, --storage or --directory")
    ask = None if offline else lambda file: ask_cluster(file, seconds)
    found = checkup(named, directories, ask, with_records=with_records)
    if as_json:
        print_json(found.to_json())
    else:
        for line in shown(found):
            click.echo(line)
    if (code := exit_code(found.is_well)) != 0:
        sys.exit(code)
