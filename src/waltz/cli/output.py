"""The output of commands: JSON, tables, and a bar on a terminal.

Rich is imported by the functions that need it: a command that prints JSON, or a number, does not
pay for it.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn
    from rich.table import Table

PROGRESS_AFTER_SECONDS = 1.0
TABLE_WIDTH_MAX = 10_000


def json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def new_table(*headings: str, left: Sequence[str] = ()) -> Table:
    """Return a table whose columns are right-aligned, except those in `left`."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    return table


def print_table(table: Table) -> None:
    """Print the table as wide as it needs to be: a truncated number is a wrong number.

    Text in a cell is printed as it is: to rich, the host of [fd00::1]:7201 is a style, and :a: in
    an address a picture.
    """
    needed = output_console(markup=False, width=TABLE_WIDTH_MAX).measure(table).maximum
    output_console(markup=False, width=needed).print(table)


def output_console(**options: Any) -> Console:
    """Return a console for standard output. Raises BrokenPipeError while it prints: nobody reads
    it; rich by itself would end the command with 1."""
    from rich.console import Console

    class OutputConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return OutputConsole(highlight=False, emoji=False, **options)


@contextmanager
def progress_bar(
    label: str, total: int, shown_as: ProgressColumn | None = None
) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts bytes done, or the units of `shown_as`; on a terminal a bar
    appears after a second."""
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

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
