"""`waltz admin storage`: partitions of a node are taken, given up, closed and opened."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.clusters import Said

pytestmark = pytest.mark.processes


def test_a_node_takes_a_partition_and_gives_it_up(operated: OperatedCluster) -> None:
    """TL-21, TL-22, SN-20: before the cluster knows the node, by its admin port."""
    place = operated.place_storage("free")
    operated.start_storage("free")
    where = ("-s", place.admin, "-p", "0-1")
    said = operated.done("admin storage", "add-partition", *where)
    assert said.out == f"storage node {place.admin} has taken partitions 0-1\n"
    operated.done("admin storage", "add-partition", *where)
    assert (place.directory / "1").is_dir()
    operated.done("admin storage", "remove-partition", "-s", place.admin, "-p", "0")
    assert list((place.directory / "0").glob("*.seg")), "its files stay"
    again = operated.tool("admin storage", "remove-partition", "-s", place.admin, "-p", "0")
    assert again.code == 1
    assert "Partition:0 is not assigned" in again.err
    unasked = operated.tool("admin storage", "remove-partition", "-s", place.admin, "-p", "1", "-d")
    assert unasked.code == 2
    assert "There is no terminal to ask on: give --force" in unasked.err
    assert list((place.directory / "1").glob("*.seg"))
    operated.done("admin storage", "remove-partition", "-s", place.admin, "-p", "1", "-d", "-f")
    assert not list((place.directory / "1").glob("*.seg"))
    operated.end("free")


def test_what_the_cluster_counts_on_is_not_given_up(operated: OperatedCluster) -> None:
    """TL-22"""
    first = operated.storages["s1"].address
    said = operated.tool("admin storage", "remove-partition", "-s", first, "-p", "0-1")
    assert said.code == 1
    assert f"partitions 0-1 are assigned to storage node {first}" in said.err
    operated.done("cluster", "verify")


def test_a_partition_is_closed_to_servers_and_opened(operated: OperatedCluster) -> None:
    """TL-23, SN-17"""
    first, second = (operated.storages[name].address for name in ("s1", "s2"))
    operated.done("admin storage", "availability", "-s", first, "-p", "0", "-o", "FALSE")
    (found,) = operated.done("admin storage", "list", "-s", first, "--json").json
    assert [each["available"] for each in found["partitions"]] == [False, True]
    operated.append(0, "so that the server notices")
    operated.wait_until_left("s1", 0)
    verified = operated.tool("cluster", "verify", "--json")
    assert verified.code == 1
    assert verified.json["partitions"] == {"0": False, "1": True}
    spared = operated.tool("admin storage", "availability", "-s", second, "-p", "0", "-o", "false")
    assert spared.code == 1
    assert "1 of 3 replicas of partition 0 take part" in spared.err
    operated.done("admin storage", "availability", "-s", first, "-p", "0", "-o", "true")
    operated.wait_until_verified("the partition is not opened again")
    for text in ("maybe", "1", "yes"):
        wrong = operated.tool("admin storage", "availability", "-s", first, "-p", "0", "-o", text)
        assert (wrong.code, "is not one of 'true', 'false'" in wrong.err) == (2, True)


def test_reads_and_writes_of_a_partition_are_switched_apart(operated: OperatedCluster) -> None:
    """SN-17, F-40: and what that does to appends is what status says."""
    first, second = (operated.storages[name].address for name in ("s1", "s2"))

    def switch(node: str, *, reads: str, writes: str) -> Said:
        switches = ("--reads", reads, "--writes", writes)
        return operated.tool("admin storage", "access", "-s", node, "-p", "0", *switches)

    def status() -> tuple[Any, list[str]]:
        found = operated.tool("cluster", "status", "--json").json
        (told,) = [each["problems"] for each in found["storages"] if each["replica_id"] == first]
        return found["partitions"][0], told

    said = switch(first, reads="off", writes="on")
    assert (
        said.out
        == f"storage node {first} has reads off and writes on for servers of partitions 0\n"
    )
    partition, told = status()
    assert told == ["partition 0: an administrator has closed it to reads of servers"]
    assert (partition["replicas_current"], partition["writable"]) == (3, True)
    assert operated.append(0, "taken by all three")

    assert switch(first, reads="on", writes="off").code == 0
    partition, told = status()
    assert told == ["partition 0: an administrator has closed it to writes of servers"]
    assert (partition["replicas_current"], partition["writable"]) == (2, True)
    (closed,) = [each for each in partition["replica_states"] if each["replica_id"] == first]
    assert closed["takes_appends"] is False
    assert operated.append(0, "taken by two")
    spared = switch(second, reads="on", writes="off")
    assert spared.code == 1
    assert "1 of 3 replicas of partition 0 take part" in spared.err

    assert switch(first, reads="on", writes="on").code == 0
    operated.wait_until_verified("the partition is not opened again")


def test_every_node_is_asked_whether_it_answers(operated: OperatedCluster) -> None:
    """TL-26"""
    nodes = sorted(operated.storages[name].address for name in ("s1", "s2", "s3"))
    assert operated.done("admin storage", "validate").out == "".join(
        f"storage node {node}: answers\n" for node in nodes
    )
    operated.done("cluster", "add-storage", "-s", "127.0.0.1:1", "-a", "2", "-g", "9")
    said = operated.tool("admin storage", "validate", "--json")
    assert said.code == 1
    (silent,) = [each for each in said.json if not each["answers"]]
    assert silent["storage"] == "127.0.0.1:1"
    assert [text.split(": ")[0] for text in silent["troubles"]] == [
        "no connection to 127.0.0.1:1",
        "no connection to 127.0.0.1:2",
    ]
    operated.done("cluster", "remove-storage", "-s", "127.0.0.1:1")


def test_the_last_transaction_of_a_node_is_printed(operated: OperatedCluster) -> None:
    """TL-27"""
    last = operated.append(1, "one", "two")[-1]
    operated.end("v1")  # so that no replica lags behind and no session begins meanwhile
    found = []
    for name in ("s1", "s2", "s3"):
        where = ("-s", operated.storages[name].address, "-p", "1")
        found.append(int(operated.done("admin storage", "max-transaction-id", *where).out))
    assert sorted(found)[1:] == [last, last], "a majority has it"
    first = operated.storages["s1"]
    offline = operated.tool(
        "admin storage", "max-transaction-id", "-s", first.address, "-p", "1", "--offline"
    )
    assert offline.code == 1
    assert "offline recovery of partition 1 is disabled while it is available" in offline.err
    beyond = operated.tool("admin storage", "max-transaction-id", "-s", first.admin, "-p", "2")
    assert beyond.code == 1
    assert "there is no partition 2; expected 0 to 1" in beyond.err
    unknown = operated.tool("admin storage", "max-transaction-id", "-s", "127.0.0.1:1", "-p", "1")
    assert unknown.code == 1
    assert "no connection to 127.0.0.1:1" in unknown.err
    operated.start_server("v1")
