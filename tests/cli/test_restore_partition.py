"""One partition of a cluster of processes is lost on a majority of its nodes, and restored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.cli.test_restore_cluster import NODES, blank
from tests.clusters import Said, run_tool
from tests.restore.stored_archive import archive_of, nodes_of_coordinator, store

__all__ = ["blank"]


def restore(cluster: OperatedCluster, url: str, *options: str | Path) -> Said:
    return run_tool(
        *("restore", "partition", url, "-p", "1", "--coordinator", cluster.coordinator), *options
    )


def here(cluster: OperatedCluster, *names: str) -> list[str]:
    places = [cluster.storages[name] for name in names]
    return [word for each in places for word in ("-s", f"{each.address}={each.directory}")]


@pytest.mark.processes
def test_a_partition_that_a_majority_has_lost_continues_from_the_archive(
    blank: OperatedCluster, tmp_path: Path
) -> None:
    blank.done("cluster", "create", "--name", "pay", "--partitions", "2")
    for group, name in enumerate(NODES):
        blank.add_storage(name, group)
        blank.done("cluster", "auto-assign", "-g", str(group))
        blank.start_storage(name)
    blank.done("admin storage", "sync-partitions")
    blank.start_server("v1")
    blank.append(0, *(f"other {number}" for number in range(9)))
    assert blank.append(1, *(f"before {number}" for number in range(40)))[-1] == 39
    blank.wait_until_verified("before the archive is made")
    nodes = nodes_of_coordinator(blank.coordinator, blank.root)
    archived = tmp_path / "archived"
    shutil.copytree(blank.storages["s1"].directory, archived)
    url = store(archive_of(archived, nodes), tmp_path / "archive")
    assert blank.append(1, "after the archive") == [40]

    whole = restore(blank, url, *here(blank, *NODES))
    assert (whole.code, "3 of 3 replicas of partition 1 answer" in whole.err) == (1, True)
    planned = restore(blank, url, "--plan", "--json", "--abandon-suffix")
    assert planned.code == 0, planned.err
    assert planned.json["last_transaction_id"] == 39
    assert all(each["holds"] for each in planned.json["replicas"].values())

    for name in NODES:
        blank.kill(name)
    for name in ("s1", "s2"):
        shutil.rmtree(blank.storages[name].directory / "1")
    refused = restore(blank, url, *here(blank, "s3", "s1", "s2"))
    assert refused.code == 1
    assert "transactions 40 to 40 may have been committed" in refused.err
    # That command has begun: no server opens the partition any more, until the restore has ended.
    blank.start_storage("s3")
    running = restore(blank, url, *here(blank, *NODES), "--abandon-suffix")
    assert (running.code, "another process works in" in running.err) == (1, True), running.err
    blank.kill("s3")
    # The server runs all the time.
    by_hand = run_tool(
        *("restore", "storage", url, "--partition", "1", "--coordinator", blank.coordinator),
        *("-s", blank.storages["s1"].address, "--directory", blank.storages["s1"].directory),
        "--json",
    )
    assert by_hand.code == 0, by_hand.err
    assert by_hand.json["last_transaction_id"] == 39
    done = restore(blank, url, *here(blank, *NODES), "--abandon-suffix", "--json")
    assert done.code == 0, done.err
    aside = done.json["directories"][blank.storages["s3"].address]
    assert aside["set_aside_to_transaction_id"] == 40
    assert Path(aside["set_aside"]).is_dir()
    for name in NODES:
        blank.start_storage(name)
    blank.wait_until_verified("after the restore")
    assert blank.tail(1) == [f"before {number}" for number in range(40)]
    assert blank.tail(0) == [f"other {number}" for number in range(9)]
    assert blank.append(1, "continued") == [40]
    assert blank.append(0, "continued") == [9]
    for name in NODES:
        said = run_tool("disk", "verify", blank.storages[name].directory)
        assert said.code == 0, said.out
    late = restore(blank, url)
    assert (late.code, "a majority is there" in late.err) == (1, True)
    none = run_tool(
        *("restore", "storage", url, "--partition", "1", "--coordinator", blank.coordinator),
        *("-s", blank.storages["s1"].address, "--directory", blank.storages["s1"].directory),
    )
    assert (none.code, "no restore of partition 1 was begun" in none.err) == (1, True)


def test_a_partition_and_a_place_are_named() -> None:
    said = run_tool("restore", "partition", "file:///x", "--coordinator", "a:1")
    assert (said.code, "--partition" in said.err) == (2, True)
    said = run_tool("restore", "partition", "file:///x", "-p", "0")
    assert (said.code, "give the cluster's place" in said.err) == (2, True)
