"""`waltz locks`: questions about the appends that were refused for their locks.

Owns where its commands are, and one line about each.
"""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "top": CommandPlace("waltz.cli.locks", "top", "Show the locks with the most refusals."),
    "refusals": CommandPlace("waltz.cli.locks", "refusals", "Show refused appends, newest first."),
}


@click.group(cls=LazyGroup, places=PLACES)
def locks() -> None:
    """Show which locks refuse appends, and which appends were refused.

    The server of a partition remembers the newest refusals since it has opened the partition.
    """
