"""`waltz migrate`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "check": CommandPlace(
        "waltz.cli.migration.migrate_check",
        "check",
        "Look at a cluster of Java Waltz, and print the plan of its migration.",
    ),
    "convert-config": CommandPlace(
        "waltz.cli.migration.migrate_convert",
        "convert_config",
        "Print a configuration file of Java Waltz as one of this program.",
    ),
    "convert-tls": CommandPlace(
        "waltz.cli.migration.migrate_convert",
        "convert_tls",
        "Write the Java key stores that a file names as PEM files.",
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def migrate() -> None:
    """From a cluster of Java Waltz to this program, step by step, and back.

    docs/operating/migrating.md goes through it.
    """
