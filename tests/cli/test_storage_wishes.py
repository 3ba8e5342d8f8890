"""Storage nodes of a restored cluster, as options name them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from waltz.cli.storage_wishes import STORAGES, StoragePlaces, storages_of
from waltz.restore.restore_plan import StorageWish
from waltz.types import Address, PartitionId, ReplicaId


def test_a_node_is_named_by_both_ports_and_its_directory_if_it_is_here() -> None:
    assert STORAGES.convert("s1:7201/7202", None, None) == StoragePlaces(
        Address("s1", 7201), 7202, None
    )
    assert STORAGES.convert("[::1]:7201/7202=/data/a=b", None, None) == StoragePlaces(
        Address("::1", 7201), 7202, Path("/data/a=b")
    )
    for wrong in ("s1:7201", "s1/7202", "s1:7201/0", "s1:7201/x=/data", "7201/7202", ""):
        with pytest.raises(click.BadParameter, match="expected host:port/adminPort=directory"):
            STORAGES.convert(wrong, None, None)


def test_each_node_is_a_group_of_its_own_with_all_partitions() -> None:
    one = StoragePlaces(Address("s1", 1), 2, None)
    two = StoragePlaces(Address("s2", 1), 3, None)
    every = (PartitionId(0), PartitionId(1))
    assert storages_of([one, two], 2) == (
        StorageWish(ReplicaId("s1:1"), 2, 1, every),
        StorageWish(ReplicaId("s2:1"), 3, 2, every),
    )
    with pytest.raises(click.UsageError, match="named twice"):
        storages_of([one, one], 2)
