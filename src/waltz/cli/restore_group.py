"""`waltz restore`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "plan": CommandPlace(
        "waltz.cli.restore_plans",
        "plan",
        "Show what a restore would write, and what would be lost; change nothing.",
    ),
    "cluster": CommandPlace(
        "waltz.cli.restore_cluster",
        "cluster",
        "Make a cluster from an archive: its coordinator's nodes, and directories here.",
    ),
    "storage": CommandPlace(
        "waltz.cli.restore_cluster",
        "storage",
        "Fill one storage node's empty directory, for a restore that was begun.",
    ),
    "partition": CommandPlace(
        "waltz.cli.restore_partition",
        "partition",
        "Replace one partition of a living cluster, whose nodes of that partition are stopped.",
    ),
    "drill": CommandPlace(
        "waltz.cli.restore_drill",
        "drill",
        "Restore an archive on this machine, start it, check it, and remove it.",
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def restore() -> None:
    """Make a cluster, or a storage directory, from an archive of the log."""
