"""`waltz archive`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "run": CommandPlace(
        "waltz.cli.archive_run", "run_archiver", "Archive the log until stopped, or once."
    ),
    "status": CommandPlace(
        "waltz.cli.archive_state", "archive_status", "Show what is archived, and how far behind."
    ),
    "cut": CommandPlace(
        "waltz.cli.archive_cuts", "take_named_cut", "Take a cut of all partitions, by name."
    ),
    "cuts": CommandPlace("waltz.cli.archive_cuts", "list_cuts", "List the cuts, with their marks."),
    "verify": CommandPlace(
        "waltz.cli.archive_checks", "verify_archive", "Check an archive, and compare it."
    ),
    "repair": CommandPlace(
        "waltz.cli.archive_checks", "repair_archive", "Write lost or damaged objects anew."
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def archive() -> None:
    """Keep the log in a directory or a bucket: archive, look at, check and repair.

    FILE is YAML: archive.target (file:///directory or s3://bucket/prefix), the cluster's
    coordinator, and if need be archive.every, archive.partitions and others; all of them are in
    docs/operating/archive-configuration.md. Credentials of a bucket come from the environment.
    """
