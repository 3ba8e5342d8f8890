"""`waltz cluster`: the places of its commands, and one line about each."""

from __future__ import annotations

from typing import Final

import click

from waltz.cli.lazy_group import CommandPlace, LazyGroup

PLACES: Final = {
    "create": CommandPlace(
        "waltz.cli.cluster_metadata",
        "create",
        "Create a cluster, and print its key.",
    ),
    "delete": CommandPlace("waltz.cli.cluster_metadata", "delete", "Delete a cluster's metadata."),
    "show-cluster-key": CommandPlace(
        "waltz.cli.cluster_metadata",
        "show_cluster_key",
        "Print the key that every storage directory of the cluster carries.",
    ),
    "status": CommandPlace(
        "waltz.cli.status", "status", "Show servers, storage nodes, partitions, their marks."
    ),
    "list": CommandPlace(
        "waltz.cli.cluster_list",
        "list_cluster",
        "Print the cluster's metadata: storage nodes, groups, servers, partitions.",
    ),
    "add-storage": CommandPlace(
        "waltz.cli.cluster_storages", "add_storage", "Add a storage node, without partitions yet."
    ),
    "remove-storage": CommandPlace(
        "waltz.cli.cluster_storages",
        "remove_storage",
        "Take a storage node that holds no partitions out of the cluster.",
    ),
    "assign": CommandPlace(
        "waltz.cli.cluster_storages",
        "assign",
        "Let a storage node hold partitions; servers fill it at once.",
    ),
    "unassign": CommandPlace(
        "waltz.cli.cluster_storages", "unassign", "Let a storage node hold fewer partitions."
    ),
    "exchange": CommandPlace(
        "waltz.cli.cluster_storages",
        "exchange",
        "Replace a storage node by another of its group.",
    ),
    "auto-assign": CommandPlace(
        "waltz.cli.cluster_storages",
        "auto_assign",
        "Distribute all partitions over the storage nodes of a group.",
    ),
    "add-partitions": CommandPlace(
        "waltz.cli.cluster_growth", "grow", "Add partitions while everything runs."
    ),
    "check-connectivity": CommandPlace(
        "waltz.cli.cluster_verify",
        "check_connectivity",
        "Ask every server which storage nodes it reaches.",
    ),
    "verify": CommandPlace(
        "waltz.cli.cluster_verify",
        "verify",
        "Ask the coordinator, every server and every storage node.",
    ),
}


@click.group(cls=LazyGroup, places=PLACES)
def cluster() -> None:
    """Make clusters, place replicas on storage nodes, and check that all is well."""
