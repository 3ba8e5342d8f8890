"""`waltz admin`: what one storage node or one server is told to do, and asked."""

from __future__ import annotations

import click

from waltz.cli.admin_list import list_storages
from waltz.cli.admin_recovery import recover_partition
from waltz.cli.admin_server import add_preferred_partition, remove_preferred_partition
from waltz.cli.admin_storage import (
    access,
    add_partition,
    availability,
    max_transaction_id,
    remove_partition,
    validate,
)
from waltz.cli.admin_sync import sync_partitions


@click.group()
def admin() -> None:
    """Tell a running storage node or server what to do, or ask it."""


@admin.group("storage")
def admin_storage() -> None:
    """Storage nodes: their partitions, whether servers may use them, offline recovery."""


@admin.group("server")
def admin_server() -> None:
    """Servers: the partitions that they would like to have."""


for command in (
    list_storages,
    add_partition,
    remove_partition,
    availability,
    access,
    recover_partition,
    sync_partitions,
    validate,
    max_transaction_id,
):
    admin_storage.add_command(command)

for command in (add_preferred_partition, remove_preferred_partition):
    admin_server.add_command(command)
