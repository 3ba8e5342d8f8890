"""`waltz policy`: questions about a policy file, without a cluster.

Owns where its commands are, and one line about each.
"""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "check": CommandPlace(
        "waltz.cli.policy_file", "check", "Read a policy file, and name the first fault."
    ),
    "diff": CommandPlace(
        "waltz.cli.policy_file", "diff", "Show what another policy would grant and take away."
    ),
    "who-can": CommandPlace(
        "waltz.cli.policy_file", "who_can", "Show the principals that have a verb."
    ),
    "test": CommandPlace(
        "waltz.cli.policy_file", "run_cases", "Ask a policy the cases in its file."
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def policy() -> None:
    """Check who may do what, by a policy file; no cluster is asked."""
