"""The storage nodes of a restored cluster, as options name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from waltz.errors import ConfigurationError
from waltz.restore.restore_plan import StorageWish
from waltz.types import Address, PartitionId, ReplicaId


@dataclass(frozen=True, slots=True)
class StoragePlaces:
    """A storage node's two ports, and its directory if that is on this machine."""

    address: Address
    admin_port: int
    directory: Path | None


class StorageType(click.ParamType[StoragePlaces]):
    """An option of the form host:port/adminPort or host:port/adminPort=directory."""

    name = "host:port/admin[=directory]"
    help = (
        "A storage node of the restored cluster, with its port for tools, and its empty directory"
        " if that is to be filled here; repeat it. Default: the archived cluster's."
    )

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> StoragePlaces:
        place, has_directory, directory = value.partition("=")
        address, _, admin = place.rpartition("/")
        try:
            found = Address.parse(address)
            port = Address.parse(f"{'x'}:{admin}").port
        except ConfigurationError as error:
            self.fail(f"{error}; expected host:port/adminPort=directory", param, ctx)
        return StoragePlaces(found, port, Path(directory).absolute() if has_directory else None)


STORAGES: Final = StorageType()


class DirectoryType(click.ParamType[tuple[Address, Path]]):
    """An option of the form host:port=directory."""

    name = "host:port=directory"
    help = "A storage node that is stopped, and its directory on this machine; repeat it."

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Address, Path]:
        address, _, directory = value.partition("=")
        try:
            found = Address.parse(address)
        except ConfigurationError as error:
            self.fail(f"{error}; expected host:port=directory", param, ctx)
        if not directory:
            self.fail(f"{value!r} names no directory; expected host:port=directory", param, ctx)
        return found, Path(directory).absolute()


DIRECTORIES: Final = DirectoryType()


def storages_of(places: Sequence[StoragePlaces], partition_count: int) -> tuple[StorageWish, ...]:
    """Return the storage nodes, each a group of its own that holds all partitions. Raises
    click.UsageError: one is named twice."""
    if len({each.address for each in places}) < len(places):
        raise click.UsageError("a storage node is named twice")
    every = tuple(map(PartitionId, range(partition_count)))
    return tuple(
        StorageWish(ReplicaId(str(each.address)), each.admin_port, group, every)
        for group, each in enumerate(places, 1)
    )
