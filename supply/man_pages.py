"""Man pages of `waltz` and each of its commands, made from what `--help` shows.

    python -m supply.man_pages DIRECTORY

click-man does not fit: it looks for commands in the attribute `commands`, which groups that import
their commands one at a time leave empty. The date of a page is that of SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from inspect import cleandoc
from pathlib import Path

import click

from waltz.cli.commands import waltz
from waltz.cli.nodes import installed_version


def commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield a command and all those below it, each with its context."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


def escaped(text: str) -> str:
    """Return a text in which no character is an instruction of roff."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("\b", "")
    return re.sub(r"^([.'])", r"\\&\1", plain, flags=re.MULTILINE)


def page(command: click.Command, context: click.Context, made: datetime) -> str:
    """Return the page of one command."""
    name = context.command_path.replace(" ", "-")
    lines = [
        f'.TH "{escaped(name.upper())}" "1" "{made:%Y\\-%m\\-%d}" "{installed_version()}" "waltz"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(command.get_short_help_str(200))}",
        ".SH SYNOPSIS",
        f".B {escaped(context.command_path)}",
        escaped(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *(f"{escaped(each)}\n.PP" for each in cleandoc(command.help or "").split("\n\n")),
        ".SH OPTIONS",
    ]
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None:
            lines += [".TP", f".B {escaped(record[0])}", escaped(record[1]) or "\\&"]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for below in command.list_commands(context):
            lines.append(f".BR {escaped(f'{name}-{below}')} (1)\n.br")
    return "\n".join(lines) + "\n"


def write_pages(directory: Path, made: datetime) -> list[Path]:
    """Write the pages and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    # Its settings have the names of the help option, which click keeps from a command's first use.
    top = click.Context(waltz, info_name="waltz", **waltz.context_settings)
    for command, context in commands(waltz, top):
        path = directory / f"{context.command_path.replace(' ', '-')}.1"
        path.write_text(page(command, context, made))
        written.append(path)
    return written


if __name__ == "__main__":
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    write_pages(Path(sys.argv[1]), datetime.fromtimestamp(epoch, UTC))
