"""Plans of restores, by value."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.restore.memory_archive import (
    KEY,
    NEW_KEY,
    RESTORE_ID,
    STORAGES,
    MemoryArchive,
    make_archive,
)
from waltz.errors import ConfigurationError, RemoteProtocolError
from waltz.restore.archived_cluster import archived_cluster
from waltz.restore.points import AtMarks, Latest, Point, places
from waltz.restore.restore_plan import (
    RestorePlan,
    StorageWish,
    make_plan,
)
from waltz.types import PartitionId, ReplicaId, TransactionId


def plan(
    archive: MemoryArchive,
    point: Point | None = None,
    *,
    same_key: bool = False,
    storages: tuple[StorageWish, ...] | None = None,
    restore_id: UUID = RESTORE_ID,
) -> RestorePlan:
    archived = archived_cluster(archive)
    return make_plan(
        archived,
        places(archive, point or Latest(), archived.partition_count),
        archive="file:///archive",
        point="--latest" if point is None else repr(point),
        same_key=same_key,
        storages=storages,
        name=None,
        restore_id=restore_id,
        new_key=NEW_KEY,
        wall_milliseconds=1000,
    )


def test_a_clone_has_a_key_of_its_own_and_a_disaster_recovery_the_old_one() -> None:
    archive = make_archive([10, 0])
    assert plan(archive).cluster_key == NEW_KEY
    assert plan(archive, same_key=True).cluster_key == KEY
    assert plan(archive).archived_key == KEY


def test_sessions_begin_far_above_all_that_servers_of_the_former_cluster_can_have_opened() -> None:
    archive = make_archive([10, 3])
    del archive.coordinator_nodes["store/partition/1"]
    assert plan(archive).sessions == {0: 1_000_012, 1: 999_999}


def test_without_other_storage_nodes_those_of_the_archived_cluster_are_planned() -> None:
    found = plan(make_archive([10, 3]))
    assert found.storages == tuple(
        StorageWish(each, 7202, group, (PartitionId(0), PartitionId(1)))
        for group, each in enumerate(STORAGES, 1)
    )
    assert found.storage(STORAGES[1]).group == 2
    with pytest.raises(ConfigurationError, match=r"no storage node x:1; it has s1\.example:7201"):
        found.storage(ReplicaId("x:1"))


def test_a_partition_on_no_storage_node_is_refused() -> None:
    one = (StorageWish(STORAGES[0], 7202, 1, (PartitionId(0),)),)
    with pytest.raises(ConfigurationError, match="no storage node holds partition 1"):
        plan(make_archive([10, 3]), storages=one)


def test_a_storage_node_that_the_archive_describes_in_part_is_refused() -> None:
    archive = make_archive([10])
    archive.coordinator_nodes["store/group"] = archive.coordinator_nodes["store/connection"]
    archived = archived_cluster(archive)
    incomplete = replace(archived, groups={})
    with pytest.raises(ConfigurationError, match="no admin port or no group"):
        make_plan(
            incomplete, places(archive, Latest(), 1), archive="a", point="p", same_key=False,
            storages=None, name=None, restore_id=RESTORE_ID, new_key=NEW_KEY, wall_milliseconds=1,
        )  # fmt: skip


def test_a_plan_is_kept_and_read_again_as_it_was() -> None:
    some = (
        StorageWish(STORAGES[0], 7202, 1, (PartitionId(0), PartitionId(1))),
        StorageWish(STORAGES[1], 7204, 2, (PartitionId(1),)),
    )
    found = plan(make_archive([10, 3]), storages=some, same_key=True)
    assert RestorePlan.decode(found.encode()) == found
    for wrong in (b"", b"[]", b'{"format":2}', found.encode()[:-9], b'{"format":1,"lasts":3}'):
        with pytest.raises(RemoteProtocolError, match="node of a restore is"):
            RestorePlan.decode(wrong)


def test_a_plan_that_no_coordinator_would_keep_is_refused() -> None:
    found = plan(make_archive([1]))
    many = {PartitionId(p): TransactionId(10**12) for p in range(100_000)}
    with pytest.raises(ConfigurationError, match="expected at most 1048576"):
        replace(found, lasts=many).encode()


def test_the_same_restore_is_known_again_and_another_one_is_told_apart() -> None:
    archive = make_archive([10, 3])
    begun = plan(archive)
    assert begun.difference(plan(archive, restore_id=UUID(int=5))) is None
    marks = AtMarks({PartitionId(0): TransactionId(4), PartitionId(1): TransactionId(2)})
    assert "its point is {0: 9, 1: 2}, not {0: 4, 1: 2}" in str(
        begun.difference(plan(archive, marks))
    )
    assert begun.difference(plan(make_archive([12, 3]))) is None, "the archive has grown since"
    assert "its key is a new one, not that of the archived cluster" in str(
        begun.difference(plan(archive, same_key=True))
    )
    one = (StorageWish(STORAGES[0], 7202, 1, (PartitionId(0), PartitionId(1))),)
    assert "its storage nodes is" in str(begun.difference(plan(archive, storages=one)))
