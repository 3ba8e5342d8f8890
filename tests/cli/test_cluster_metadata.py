"""`waltz cluster create`, `delete` and `show-cluster-key`, in a real ZooKeeper."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from uuid import UUID

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.cluster.golden import golden_tree
from tests.clusters import run_tool
from tests.zookeepers import tree_at
from waltz.cluster.replica_assignments import (
    ConnectionMetadata,
    GroupDescriptor,
    ReplicaAssignments,
)
from waltz.cluster.store_params import StoreParams
from waltz.host import Node
from waltz.types import Address, ZooKeeperAddress

pytestmark = pytest.mark.processes

GOLDEN_ROOT = "/waltz_cluster"
READERS = {
    "/store/assignment": ReplicaAssignments.decode,
    "/store/group": GroupDescriptor.decode,
    "/store/connection": ConnectionMetadata.decode,
}
"""Maps whose order in the bytes has no meaning."""


def check_as_original(found: dict[str, Node], name: str) -> UUID:
    """Compare every node, with its versions, to a dump of the original; return the cluster key."""
    golden = {path.removeprefix(GOLDEN_ROOT): node for path, node in golden_tree(name).items()}
    assert found.keys() == golden.keys()
    for path, expected in golden.items():
        node = found[path]
        assert (node.version, node.child_version) == (expected.version, expected.child_version)
        if path in READERS:
            assert node.data is not None
            assert expected.data is not None
            assert len(node.data) == len(expected.data)
            assert READERS[path](node.data) == READERS[path](expected.data)
        elif path != "/store":
            assert node.data == expected.data, path
    params, expected_params = (
        StoreParams.decode(tree["/store"].data or b"") for tree in (found, golden)
    )
    assert params.partition_count == expected_params.partition_count
    return params.cluster_key


def test_what_the_commands_write_is_what_the_original_writes(blank: OperatedCluster) -> None:
    """CM-02, CM-03, CM-19, CM-21: each node's data, version and child version."""
    where = ("--zookeeper", f"{blank.zookeeper}{GOLDEN_ROOT}")
    coordinator = str(ZooKeeperAddress((Address.parse(blank.zookeeper),), GOLDEN_ROOT))
    said = run_tool("cluster", "create", *where, "-n", "golden", "-p", "2")
    assert said.code == 0, said.err
    key = check_as_original(tree_at(coordinator, GOLDEN_ROOT), "1-created")
    assert key.version == 4
    assert f"cluster key {key}\n" in said.out
    for number in (1, 2, 3):
        port = 47300 + 10 * number
        added = run_tool(
            *("cluster", "add-storage", *where, "-s", f"vm:{port}"),
            *("-a", str(port + 1), "-g", str(number)),
        )
        assert added.code == 0, added.err
    for number in (1, 2, 3):
        node = f"vm:{47300 + 10 * number}"
        said = run_tool("cluster", "assign", *where, "-s", node, "-p", "0,1")
        assert said.code == 0, said.err
    assert check_as_original(tree_at(coordinator, GOLDEN_ROOT), "2-storages-assigned") == key
    assert run_tool("cluster", "delete", *where, "-n", "golden").code == 0


def test_a_cluster_is_created_once_and_its_key_is_shown(blank: OperatedCluster) -> None:
    """CM-03, CM-06, TL-02, TL-05"""
    options = ("--name", "one", "--partitions", "3")
    created = blank.done("cluster", "create", *options, "--json").json
    assert created | {"cluster_key": ""} == {
        "name": "one", "root": blank.root, "partition_count": 3, "cluster_key": "", "created": True
    }  # fmt: skip
    again = blank.tool("cluster", "create", *options)
    assert (again.code, again.out) == (1, "")
    assert "there is a cluster at" in again.err
    shown = blank.done("cluster", "show-cluster-key")
    assert shown.out == f"{created['cluster_key']}\n"
    as_json = blank.done("cluster", "show-cluster-key", "--json").json
    assert as_json["cluster_key"] == created["cluster_key"]
    blank.done("cluster", "delete", "--name", "one")
    gone = blank.tool("cluster", "show-cluster-key")
    assert (gone.code, gone.out) == (1, "")
    assert f"there is no cluster at {blank.root}" in gone.err


def test_a_cluster_is_created_with_its_storage_nodes_by_one_command_that_may_be_repeated(
    blank: OperatedCluster,
) -> None:
    """CM-03"""
    nodes = ("--storage", "storage-1:7201", "--storage", "storage-2:7201")
    options = ("--name", "whole", "--partitions", "3", *nodes, "--admin-port", "7202")
    created = blank.done("cluster", "create", *options, "--if-absent", "--json").json
    listed = blank.done("cluster", "list", "--json").json
    found = {each["replica_id"]: (each["admin_port"], each["group"]) for each in listed["storages"]}
    assert found == {"storage-1:7201": (7202, 1), "storage-2:7201": (7202, 2)}
    assert all(each["partitions"] == [0, 1, 2] for each in listed["storages"])

    again = blank.done("cluster", "create", *options, "--if-absent", "--json").json
    assert again == created | {"created": False}
    text = blank.done("cluster", "create", *options, "--if-absent").out
    assert text == "cluster whole is there, with 3 partitions; unchanged\n"
    other = blank.tool("cluster", "create", "-n", "other", "-p", "3", "--if-absent")
    assert (other.code, other.out) == (1, "")
    assert "its name is whole" in other.err
    assert blank.tool("cluster", "create", *options).code == 1
    blank.done("cluster", "delete", "-n", "whole")


def test_storage_nodes_of_a_new_cluster_are_named_once_and_with_their_admin_port() -> None:
    create = ("cluster", "create", "--zookeeper", "localhost:1/x", "-n", "wrong", "-p", "1")
    said = run_tool(*create, "--storage", "s1:7201")
    assert (said.code, "give --admin-port" in said.err) == (2, True)
    twice = ("--storage", "s1:7201", "--storage", "s1:7201", "--admin-port", "7202")
    said = run_tool(*create, *twice)
    assert (said.code, "give each --storage once" in said.err) == (2, True)


def test_two_clusters_in_one_zookeeper_do_not_meet(blank: OperatedCluster) -> None:
    """CM-05"""
    inner = ("--zookeeper", f"{blank.zookeeper}{blank.root}-2")
    blank.done("cluster", "create", "-n", "first", "-p", "1")
    assert run_tool("cluster", "create", *inner, "-n", "second", "-p", "2").code == 0
    assert blank.done("cluster", "list", "--json").json["name"] == "first"
    blank.done("cluster", "delete", "-n", "first")
    second = run_tool("cluster", "list", *inner, "--json").json
    assert (second["name"], second["partition_count"]) == ("second", 2)
    assert run_tool("cluster", "delete", *inner, "-n", "second").code == 0


def test_a_cluster_is_deleted_by_its_name_or_by_force(blank: OperatedCluster) -> None:
    """CM-04, TL-03"""
    blank.done("cluster", "create", "-n", "named", "-p", "1")
    unnamed = blank.tool("cluster", "delete")
    assert unnamed.code == 2
    assert "the cluster's name is missing" in unnamed.err
    wrong = blank.tool("cluster", "delete", "-n", "other")
    assert wrong.code == 1
    assert "is called 'named', not 'other'" in wrong.err
    blank.done("cluster", "list")
    assert "deleted cluster named" in blank.done("cluster", "delete", "--force").out
    missing = blank.tool("cluster", "delete", "--force")
    assert missing.code == 1
    assert "there is no cluster at" in missing.err


@pytest.mark.parametrize(("typed", "code"), [("typed", 0), ("other", 1)])
def test_on_a_terminal_the_name_is_asked_for(blank: OperatedCluster, typed: str, code: int) -> None:
    """CM-04"""
    blank.done("cluster", "create", "-n", "typed", "-p", "1")
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    done = subprocess.run(
        [
            *(sys.executable, "-m", "waltz.cli.main", "cluster", "delete"),
            *("-c", str(blank.directory / "tool.yml")),
        ],
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert "Type its name to continue" in done.stderr
    assert done.returncode == code, done.stderr
    if code:
        blank.done("cluster", "delete", "-n", "typed")


def test_a_running_cluster_is_not_deleted(operated: OperatedCluster) -> None:
    """CM-04"""
    said = operated.tool("cluster", "delete", "-n", "operated")
    assert said.code == 1
    assert "servers of cluster 'operated' are running" in said.err
    operated.done("cluster", "verify")
