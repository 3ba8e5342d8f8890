"""`waltz audit`: the audit log of a process, read from its files.

Owns where its commands are, and one line about each.
"""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "verify": CommandPlace(
        "waltz.cli.audit_reading", "verify", "Find lines of an audit log that were changed."
    ),
    "show": CommandPlace("waltz.cli.audit_reading", "show", "Print the entries of an audit log."),
}


@click.group(cls=LazyGroup, places=PLACES)
def audit() -> None:
    """Check and show the audit log of a process; no cluster is asked."""
