"""What the commands of `waltz disk` share: how they take a path, show tables and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from waltz.storage.inspection.survey import Target, find_target
from waltz.system.disk import RealDisk

PROGRESS_AFTER_SECONDS = 1.0
TABLE_WIDTH_MAX = 10_000
disk_door = RealDisk()


class WrongCallError(click.ClickException):
    """What was asked for cannot be done; the message names the remedy."""

    exit_code = 2


def json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def path_argument(name: str) -> Callable[[Any], Any]:
    return click.argument("path", metavar=name, type=click.Path(path_type=Path))


def target_at(path: Path) -> Target:
    """Raises ConfigurationError, OSError."""
    return find_target(disk_door, str(path.absolute()))


def human_bytes(count: int) -> str:
    """The number and a unit that makes it short; exact below 1024."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def moment(milliseconds: int) -> str:
    """A time of a file header for people."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms since 1970"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def new_table(*headings: str, left: Sequence[str] = ()) -> Table:
    """A table whose columns are to the right, but those in `left`."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print it as wide as it has to be: a number that is cut short is another number."""
    needed = Console(width=TABLE_WIDTH_MAX).measure(table).maximum
    Console(highlight=False, width=needed).print(table)


@contextmanager
def progress_bar(
    label: str, total: int, shown_as: ProgressColumn | None = None
) -> Iterator[Callable[[int], None]]:
    """Give a function to tell of bytes, or of what `shown_as` counts, that are done; on a terminal
    a bar appears after a second."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    done = shown_as or DownloadColumn()
    columns = (TextColumn(label), BarColumn(), done, TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=total)
    started = time.monotonic()
    is_shown = False

    def advance(count: int) -> None:
        nonlocal is_shown
        bar.advance(task, count)
        if not is_shown and time.monotonic() - started > PROGRESS_AFTER_SECONDS:
            is_shown = True
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


def shown(number: int | None) -> str:
    return "-" if number is None else str(number)
