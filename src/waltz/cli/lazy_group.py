"""A group of commands, each of which is imported only when it is called or completed.

Importing what a command works with takes about 0.4 s of processor time. A group that imported all
of its commands would pay that for each `--help`, each wrong option, and each press of TAB.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

NOBODY_READS: Final = 141
"""The exit code of a command whose output was closed, as behind `head`: that of a program that
SIGPIPE ends. It is no verdict on anything."""


class CommandPlace(NamedTuple):
    """The module and the name of a command, and the line that its group's `--help` shows of it."""

    module: str
    name: str
    short_help: str


class LazyGroup(click.Group):
    """A group whose commands are imported one at a time."""

    def __init__(self, *arguments: Any, places: Mapping[str, CommandPlace], **options: Any) -> None:
        """`places` names every command, in the order of `--help`."""
        super().__init__(*arguments, **options)
        self._places = places

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises SystemExit with `NOBODY_READS`: nobody reads its output any
        more."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # click would end with 1, by which a command that judges says that something is wrong.
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except BrokenPipeError:  # what is left would be a complaint at the very end
                    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            raise SystemExit(NOBODY_READS) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._places.get(cmd_name)
        if place is None:
            return None
        command: click.Command = getattr(import_module(place.module), place.name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the names of commands without importing them."""
        return [
            CompletionItem(name, help=place.short_help)
            for name, place in self._places.items()
            if name.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in self._places.items()])
