"""`waltz cluster add-storage` to `auto-assign`: what is changed, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.clusters import run_waltz
from tests.zookeepers import tree_at

pytestmark = pytest.mark.processes

NODES = ("a:6000", "b:6000", "c:6000")


@pytest.fixture
def placed(blank: OperatedCluster) -> Iterator[OperatedCluster]:
    """Seven partitions, and three nodes of group 1 that nobody has started."""
    blank.done("cluster", "create", "-n", "placed", "-p", "7")
    for node in NODES:
        blank.done("cluster", "add-storage", "-s", node, "-a", "6001", "-g", "1")
    yield blank
    blank.done("cluster", "delete", "-n", "placed")


def held(cluster: OperatedCluster) -> dict[str, list[int]]:
    storages: list[dict[str, Any]] = cluster.done("cluster", "list", "--json").json["storages"]
    return {each["replica_id"]: each["partitions"] for each in storages}


def refused(cluster: OperatedCluster, said: str, command: str, *arguments: str) -> None:
    """Nothing may have changed."""
    before = tree_at(cluster.coordinator, cluster.root)["/store/assignment"]
    done = cluster.tool("cluster", command, *arguments)
    assert (done.code, done.out) == (1, ""), done
    assert said in done.err
    assert tree_at(cluster.coordinator, cluster.root)["/store/assignment"] == before


def test_nodes_come_and_go(placed: OperatedCluster) -> None:
    """CM-19, CM-20, TL-06, TL-07"""
    assert held(placed) == {node: [] for node in NODES}
    refused(
        placed, "a:6000 is one of the cluster already",
        *("add-storage", "-s", "a:6000", "-a", "6001", "-g", "1"),
    )  # fmt: skip
    for address in ("a", "a:b", "a:0", ":6000"):
        done = placed.tool("cluster", "add-storage", "-s", address, "-a", "6001", "-g", "1")
        assert (done.code, "--storage" in done.err) == (2, True), address
    done = placed.tool("cluster", "add-storage", "-s", "d:6000", "-a", "6000", "-g", "1")
    assert (done.code, "are the same port" in done.err) == (2, True)
    placed.done("cluster", "assign", "-s", "b:6000", "-p", "3")
    refused(placed, "holds partitions 3; unassign them first", "remove-storage", "-s", "b:6000")
    refused(placed, "there is no storage node d:6000", "remove-storage", "-s", "d:6000")
    placed.done("cluster", "remove-storage", "-s", "c:6000")
    assert held(placed) == {"a:6000": [], "b:6000": [3]}


def test_partitions_are_assigned_and_unassigned(placed: OperatedCluster) -> None:
    """CM-21, CM-22, TL-08, TL-09"""
    said = placed.done("cluster", "assign", "-s", "a:6000", "-p", "0-2,5", "--json")
    assert said.json["storages"] == [
        {"replica_id": "a:6000", "group": 1, "before": [], "after": [0, 1, 2, 5]}
    ]
    assert "waltz admin storage sync-partitions" in said.err
    refused(placed, "holds partitions 2 already", "assign", "-s", "a:6000", "-p", "2,3")
    refused(placed, "there is no partition 7", "assign", "-s", "a:6000", "-p", "6-7")
    refused(placed, "there is no storage node d:6000", "assign", "-s", "d:6000", "-p", "1")
    refused(placed, "does not hold partitions 4", "unassign", "-s", "a:6000", "-p", "4")
    refused(placed, "has the only copy of partition 0", "unassign", "-s", "a:6000", "-p", "0")
    refused(
        placed, "has the only copy of partition 0",
        *("unassign", "-s", "a:6000", "-p", "0", "--force", "--shrink-group"),
    )  # fmt: skip
    placed.done("cluster", "assign", "-s", "b:6000", "-p", "0")
    placed.done("cluster", "unassign", "-s", "a:6000", "-p", "0")
    assert held(placed)["a:6000"] == [1, 2, 5]


def test_the_last_copy_of_a_group_goes_only_when_the_group_is_to_shrink(
    placed: OperatedCluster,
) -> None:
    """CM-22"""
    placed.done("cluster", "add-storage", "-s", "d:6000", "-a", "6001", "-g", "2")
    for node in ("a:6000", "d:6000"):
        placed.done("cluster", "assign", "-s", node, "-p", "0")
    refused(
        placed, "the last copy of partition 0 in group 1; assign it to another node of the group"
        " first, or give --shrink-group", *("unassign", "-s", "a:6000", "-p", "0"),
    )  # fmt: skip
    placed.done("cluster", "unassign", "-s", "a:6000", "-p", "0", "--shrink-group")
    assert held(placed)["d:6000"] == [0]


def test_a_group_is_dealt_all_partitions_once(placed: OperatedCluster) -> None:
    """CM-23, TL-10, UA-123: seven partitions on three nodes are 3/2/2."""
    before = tree_at(placed.coordinator, placed.root)
    shown = placed.done("cluster", "auto-assign", "-g", "1", "--dry-run", "--json").json
    assert shown["dry_run"] is True
    assert tree_at(placed.coordinator, placed.root) == before
    done = placed.done("cluster", "auto-assign", "-g", "1", "--json").json
    assert done == shown | {"dry_run": False}
    assert held(placed) == {"a:6000": [0, 3, 6], "b:6000": [1, 4], "c:6000": [2, 5]}
    refused(placed, "group 1 has partitions assigned already", "auto-assign", "-g", "1")
    refused(placed, "group 9 has no storage nodes", "auto-assign", "-g", "9")


def test_one_node_takes_the_place_of_another(placed: OperatedCluster) -> None:
    """ST-40"""
    placed.done("cluster", "assign", "-s", "a:6000", "-p", "0-6")
    said = placed.done("cluster", "exchange", "-s", "a:6000", "--with", "b:6000")
    assert "keep a:6000 running until waltz cluster verify passes" in said.err
    assert held(placed) == {"a:6000": [], "b:6000": [*range(7)], "c:6000": []}


def test_two_tools_at_once_come_one_after_the_other(placed: OperatedCluster) -> None:
    """CM-24"""
    where = ("-c", str(placed.directory / "tool.yml"))

    def assign(number: int) -> int:
        done = run_waltz("cluster", "assign", *where, "-s", "a:6000", "-p", str(number))
        return done.returncode

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(assign, range(3))) == [0, 0, 0]
    assert held(placed)["a:6000"] == [0, 1, 2]


def test_what_a_running_cluster_counts_on_is_not_taken_from_it(operated: OperatedCluster) -> None:
    """CM-20, CM-22: with s3 gone, s1 is needed for a majority of what would be left."""
    first, third = operated.storages["s1"].address, operated.storages["s3"].address
    refused(
        operated, "still takes part in the store sessions of partitions 0-1",
        *("remove-storage", "-s", first),
    )  # fmt: skip
    operated.kill("s3")
    operated.append(0, "so that the server notices")
    operated.wait_until_lost("s3")
    where = ("unassign", "-s", first, "-p", "0", "--shrink-group")
    refused(operated, f"no majority. Bring back {third}", *where)
    forced = operated.done("cluster", *where, "--force", "--dry-run")
    assert "nothing was changed" in forced.err
    operated.start_storage("s3")
    operated.wait_until_verified("s3 is not back")
