"""Node paths, against the tree that the original made (CM-02, CM-05)."""

from __future__ import annotations

import pytest

from tests.cluster.golden import golden_tree
from waltz.cluster.paths import ClusterPaths
from waltz.errors import LocalProtocolError
from waltz.types import Address, PartitionId, ReplicaId


def test_the_paths_are_those_of_the_original() -> None:
    paths = ClusterPaths("/waltz_cluster")
    found = {
        paths.root,
        paths.server_descriptors,
        f"{paths.server_node_prefix}0000000000",
        paths.ids,
        paths.client_id_counter,
        paths.server_id_counter,
        paths.store,
        paths.partitions,
        paths.partition_metadata(PartitionId(0)),
        paths.partition_metadata(PartitionId(1)),
        paths.group_descriptor,
        paths.replica_assignments,
        paths.connection_metadata,
    }
    assert found == golden_tree("4-after-clients").keys()


def test_directories_are_kept_where_the_original_never_looks() -> None:
    """CX-03"""
    paths = ClusterPaths("/waltz_cluster")
    path = paths.storage_directory(ReplicaId("[::1]:7000"))
    assert path == "/waltz_cluster/storageDirectories/[::1]:7000"
    ClusterPaths(path)
    assert paths.storage_directories not in golden_tree("4-after-clients")


def test_a_root_may_lie_deeper() -> None:
    assert ClusterPaths("/a/b").client_id_counter == "/a/b/ids/client"


def test_a_root_that_is_no_path_is_refused() -> None:
    with pytest.raises(LocalProtocolError):
        ClusterPaths("waltz")


def test_preferences_are_kept_where_the_original_never_looks() -> None:
    """CX-14"""
    paths = ClusterPaths("/waltz_cluster")
    path = paths.server_preference(Address("host", 7000))
    assert path == "/waltz_cluster/serverPreferences/host:7000"
    assert paths.server_preferences not in golden_tree("4-after-clients")


def test_notes_are_kept_where_the_original_never_looks() -> None:
    paths = ClusterPaths("/waltz_cluster")
    assert paths.note("a") == "/waltz_cluster/notes/a"
    assert paths.notes not in golden_tree("4-after-clients")


def test_the_policy_is_kept_where_the_original_never_looks() -> None:
    paths = ClusterPaths("/waltz_cluster")
    assert paths.policy == "/waltz_cluster/policy"
    assert paths.policy not in golden_tree("4-after-clients")
