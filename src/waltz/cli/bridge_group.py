"""`waltz bridge`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "http": CommandPlace(
        "waltz.cli.bridge_http",
        "bridge_to_http",
        "Post the transactions of a cluster to a webhook.",
    ),
    "status": CommandPlace(
        "waltz.cli.bridge_place", "bridge_status", "Show how far a bridge is, and what it lacks."
    ),
    "skip": CommandPlace(
        "waltz.cli.bridge_place", "skip_range", "Leave out transactions at which a partition waits."
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def bridge() -> None:
    """Post the transactions of a cluster to a webhook, at least once and in order.

    FILE is YAML: bridge.cluster, bridge.url, bridge.secretFile, bridge.progress, and if need be
    others; all of them are in docs/operating/bridge-configuration.md.
    """
