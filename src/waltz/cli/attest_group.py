"""`waltz attest`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "keygen": CommandPlace("waltz.cli.attest", "keygen", "Make a key, to sign or to witness with."),
    "run": CommandPlace("waltz.cli.attest", "run", "Sign what is archived, and have it cosigned."),
    "check": CommandPlace(
        "waltz.cli.attest_check", "check", "Compare archive and log with what was attested."
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def attest() -> None:
    """Sign what is archived, so that others can check what is in the log, and what was.

    docs/operating/proofs.md tells what is proven and what is not.
    """
