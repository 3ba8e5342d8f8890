"""`waltz certs`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "init": CommandPlace("waltz.cli.certs", "init", "Make a CA in a new directory."),
    "issue": CommandPlace("waltz.cli.certs", "issue", "Issue a certificate, with a new key."),
    "renew": CommandPlace(
        "waltz.cli.certs", "renew", "Replace a certificate by one that is valid from now on."
    ),
    "show": CommandPlace("waltz.cli.certs", "show", "Show what the CA has issued, until when."),
}


@click.group(cls=LazyGroup, places=PLACES)
def certs() -> None:
    """Keep a small CA for one cluster: make it, issue, renew and show certificates.

    docs/operating/tls.md goes through it.
    """
