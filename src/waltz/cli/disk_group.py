"""`waltz disk`: look at a storage directory, with its node running or not.

Nothing here changes a byte, takes a lock or recovers anything. Exit codes: 0 fine, 1 damage was
found, 2 called wrongly.
"""

from __future__ import annotations

from typing import Any, Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup
from waltz.errors import ConfigurationError, NotFoundError

PLACES: Final = {
    "inspect": CommandPlace(
        "waltz.cli.disk_state",
        "inspect_directory",
        "Show which cluster and node a storage directory belongs to, and its partitions.",
    ),
    "control-file": CommandPlace(
        "waltz.cli.disk_state",
        "control_file",
        "Show the control file: what was promised for each partition.",
    ),
    "verify": CommandPlace(
        "waltz.cli.disk_state",
        "verify_path",
        "Check a storage directory, a partition directory or a segment file.",
    ),
    "statistic": CommandPlace(
        "waltz.cli.disk_content",
        "statistic",
        "Show the number of records, and the sizes of their data.",
    ),
    "dump": CommandPlace(
        "waltz.cli.disk_content",
        "dump",
        "Print the records of a partition or a segment, one a line.",
    ),
    "checksum": CommandPlace(
        "waltz.cli.disk_content",
        "checksum",
        "Print a digest of each partition's records, to compare replicas.",
    ),
}


class WrongCallError(click.ClickException):
    """The command cannot do what was asked for; the message names the remedy."""

    exit_code = 2


class DiskGroup(LazyGroup):
    """Ends with 2 if a path is not what the command needs."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ConfigurationError, NotFoundError) as error:
            raise WrongCallError(str(error)) from error
        except OSError as error:
            name = error.filename or "a file"  # an error while reading does not say which
            raise WrongCallError(f"cannot read {name}: {error.strerror}") from error


@click.group(cls=DiskGroup, places=PLACES)
def disk() -> None:
    """Look at a storage node's files: nothing is changed, the node may be running."""
