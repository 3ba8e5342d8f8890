"""The cluster that an archive's copy of the coordinator describes."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.restore.memory_archive import (
    KEY,
    NEW_KEY,
    OLD_DIRECTORY,
    STORAGES,
    coordinator_nodes,
    make_archive,
)
from waltz.cluster.log_history import LogHistory, encode_histories
from waltz.errors import ConfigurationError
from waltz.restore.archived_cluster import archived_cluster
from waltz.types import PartitionId, TransactionId


def test_the_copy_is_read_with_and_without_a_slash_before_the_paths() -> None:
    archive = make_archive([10, 3])
    found = archived_cluster(archive)
    assert (found.name, found.cluster_key, found.partition_count) == ("payments", KEY, 2)
    assert (found.client_counter, found.server_counter) == (41, 7)
    assert found.generations == {0: 5, 1: 5}, "the assignment is ahead of the metadata"
    assert {p: each.session_id for p, each in found.metadata.items()} == {0: 12, 1: 12}
    assert tuple(found.placement.partitions) == STORAGES
    assert found.directories == (OLD_DIRECTORY,)
    assert found.consumers.keys() == {"orders"}
    assert found.preferences.keys() == {"w1.example:7301"}
    archive.coordinator_nodes = {f"/{p}": data for p, data in archive.coordinator_nodes.items()}
    assert archived_cluster(archive) == found


def test_a_copy_made_before_any_partition_opened_is_enough() -> None:
    archive = make_archive([0])
    for path in ("serverDescriptors", "store/partition/0"):
        del archive.coordinator_nodes[path]
    found = archived_cluster(archive)
    assert found.metadata == {}
    assert found.generations == {0: -1}


def test_earlier_histories_are_read() -> None:
    archive = make_archive([5])
    history = LogHistory(UUID(int=1), 77, {PartitionId(0): TransactionId(3)}, (UUID(int=2),))
    archive.coordinator_nodes["history"] = encode_histories((history,))
    assert archived_cluster(archive).histories == (history,)


@pytest.mark.parametrize("path", ["", "store", "ids/client", "ids/server", "store/assignment"])
def test_a_copy_that_lacks_a_needed_node_is_refused(path: str) -> None:
    archive = make_archive([5])
    del archive.coordinator_nodes[path]
    with pytest.raises(ConfigurationError, match=f"no data of node /{path}"):
        archived_cluster(archive)


def test_a_copy_of_another_cluster_or_with_more_partitions_is_refused() -> None:
    archive = make_archive([5])
    archive.coordinator_nodes = coordinator_nodes(1, key=NEW_KEY)
    with pytest.raises(ConfigurationError, match=f"the archive is of cluster {KEY}"):
        archived_cluster(archive)
    two = make_archive([5, 1])
    two.coordinator_nodes = coordinator_nodes(1)
    with pytest.raises(ConfigurationError, match="the archive has partition 1, its copy"):
        archived_cluster(two)
    archive.coordinator_nodes = {**coordinator_nodes(1), "storageDirectories/s": b"\xff"}
    with pytest.raises(ConfigurationError, match="expected a UUID"):
        archived_cluster(archive)
