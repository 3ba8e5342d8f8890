"""`waltz outbox`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "run": CommandPlace(
        "waltz.cli.outbox_run", "run_relay", "Relay the rows of an outbox to the log."
    ),
    "ddl": CommandPlace(
        "waltz.cli.outbox_rows", "print_ddl", "Print the statements that create an outbox."
    ),
    "status": CommandPlace(
        "waltz.cli.outbox_rows",
        "outbox_status",
        "Show who holds the outbox, what is claimed and what waits.",
    ),
    "parked": CommandPlace(
        "waltz.cli.outbox_rows",
        "list_parked_rows",
        "List the rows that were parked, with the reasons.",
    ),
    "retry": CommandPlace(
        "waltz.cli.outbox_rows", "retry_row", "Put a parked row back into the outbox."
    ),
    "drop": CommandPlace("waltz.cli.outbox_rows", "drop_row", "Delete a parked row for good."),
}


@click.group(cls=LazyGroup, places=PLACES)
def outbox() -> None:
    """Relay rows that an application commits in its database to the log, each once.

    FILE is YAML: outbox.cluster, outbox.database (or the environment variable WALTZ_DATABASE), and
    if need be outbox.table and others; all of them are in docs/operating/outbox-configuration.md.
    """
