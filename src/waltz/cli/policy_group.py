"""`waltz policy`: questions about a policy file, and the policy that a coordinator keeps.

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
    "token": CommandPlace("waltz.cli.policy_token", "token", "Make a bearer token for NAME."),
    "apply": CommandPlace("waltz.cli.policy_stored", "apply", "Store a policy in the coordinator."),
    "show": CommandPlace(
        "waltz.cli.policy_stored", "show", "Print the policy that the coordinator keeps."
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def policy() -> None:
    """Check who may do what by a policy file, and store it in the coordinator."""
