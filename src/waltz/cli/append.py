"""`waltz append`: transactions from arguments or standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

import click

import waltz
from waltz.cli.cluster_place import LogPlace, log_options


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
    help="Time limit per transaction, in seconds; 0: none.",
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
    """Append each DATA argument, or each line of standard input, and print its transaction ID.

    A line ends with a line feed, and its other bytes are appended as they are.
    """
    locks = [parse_lock(text) for text in write_locks]
    with waltz.open_client(place.cluster, waltz.NoCallbacks(), tls=place.tls) as client:
        given = (each.encode(errors="surrogateescape") for each in with_progress(data))
        for line in given if data else stdin_lines():
            transaction_id = client.append(
                partition,
                line,
                header=header,
                write_locks=locks,
                timeout_seconds=timeout_seconds or None,
            )
            told = {"partition": partition, "transaction_id": transaction_id}
            _tell(json.dumps(told) if as_json else str(transaction_id), transaction_id)


def _tell(line: str, transaction_id: int) -> None:
    """Print a line; end with 1, and the reason, if nobody reads it: what follows is not appended,
    which is more than that it is not shown."""
    try:
        click.echo(line)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is buffered
        sys.exit(
            f"waltz: nobody reads the output: transaction {transaction_id} is appended, and nothing"
            " after it"
        )


def stdin_lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n")


def with_progress(items: tuple[str, ...]) -> Iterable[str]:
    """Show a bar on a terminal if there is much to do."""
    if len(items) < 100 or not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("append"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())

    def tracked() -> Iterator[str]:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            yield from progress.track(items)

    return tracked()
