"""`waltz admin`: commands to one running storage node or server, and questions to it.

Owns where its commands are, and one line about each.
"""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

STORAGE_PLACES: Final = {
    "list": CommandPlace(
        "waltz.cli.admin_list",
        "list_storages",
        "Show what storage nodes have taken: session, marks.",
    ),
    "add-partition": CommandPlace(
        "waltz.cli.admin_storage", "add_partition", "Let a node take partitions."
    ),
    "remove-partition": CommandPlace(
        "waltz.cli.admin_storage", "remove_partition", "Let a node give partitions up."
    ),
    "availability": CommandPlace(
        "waltz.cli.admin_storage", "availability", "Let servers use partitions of a node, or not."
    ),
    "access": CommandPlace(
        "waltz.cli.admin_storage",
        "access",
        "Let servers read partitions of a node, append to them, both, or neither.",
    ),
    "recover-partition": CommandPlace(
        "waltz.cli.admin_recovery",
        "recover_partition",
        "Copy a partition from another node to one that servers may not use.",
    ),
    "sync-partitions": CommandPlace(
        "waltz.cli.admin_sync",
        "sync_partitions",
        "Let every storage node take what the cluster's metadata assigns to it.",
    ),
    "validate": CommandPlace(
        "waltz.cli.admin_storage",
        "validate",
        "Check that every storage node answers on both of its ports.",
    ),
    "max-transaction-id": CommandPlace(
        "waltz.cli.admin_storage",
        "max_transaction_id",
        "Print the last transaction that a node has stored.",
    ),
}

SERVER_PLACES: Final = {
    "add-preferred-partition": CommandPlace(
        "waltz.cli.admin_server",
        "add_preferred_partition",
        "Let a server prefer partitions, now and after a restart.",
    ),
    "remove-preferred-partition": CommandPlace(
        "waltz.cli.admin_server",
        "remove_preferred_partition",
        "Let a server prefer partitions no longer.",
    ),
}


@click.group()
def admin() -> None:
    """Tell a running storage node or server what to do, or ask it."""


@admin.group("storage", cls=LazyGroup, places=STORAGE_PLACES)
def admin_storage() -> None:
    """Storage nodes: their partitions, whether servers may use them, offline recovery."""


@admin.group("server", cls=LazyGroup, places=SERVER_PLACES)
def admin_server() -> None:
    """Servers: the partitions that they would like to have."""
