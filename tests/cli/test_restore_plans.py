"""`waltz restore plan`: it says what would be written and lost, and changes nothing."""

from __future__ import annotations

from pathlib import Path

from tests.clusters import run_tool
from tests.restore.memory_archive import KEY, make_archive
from tests.restore.stored_archive import store
from tests.storage.independent_reader import read_files
from waltz.types import PartitionId, TransactionId


def test_the_plan_shows_each_partition_each_storage_node_and_what_is_left_out(
    tmp_path: Path,
) -> None:
    memory = make_archive([700, 20])
    memory.coordinator_nodes["notes/spark-q-0"] = b"{}"
    url = store(memory, tmp_path)
    before = read_files(tmp_path)
    said = run_tool("restore", "plan", url, "--marks", "0=1,1=19")
    assert said.code == 0
    assert "cluster payments of 2 partitions, a new cluster key" in said.out
    rows = [line.split()[:4] for line in said.out.splitlines()]
    assert ["0", "1", "699", "698"] in rows
    assert ["1", "19", "19", "0"] in rows
    for number in (1, 2, 3):
        assert f"storage node s{number}.example:7201: 2 partitions" in said.out
    assert "consumer orders: its mark 3 of partition 0 is beyond the point" in said.out
    assert "note spark-q-0: refuses every batch" in said.out
    assert "698 archived transactions lie beyond the point" in said.out
    assert "how much that is, this command cannot know" in said.out
    assert read_files(tmp_path) == before


def test_a_plan_by_time_shows_what_is_unsure(tmp_path: Path) -> None:
    memory = make_archive([10])
    memory.times = {PartitionId(0): [(TransactionId(4), 1000), (TransactionId(8), 9000)]}
    url = store(memory, tmp_path, now=10_000)
    said = run_tool("restore", "plan", url, "--at", "1970-01-01T00:00:02Z")
    assert ["0", "4", "9", "5"] in [line.split()[:4] for line in said.out.splitlines()]
    assert [line.split()[-1] for line in said.out.splitlines() if line.startswith("        0")] == [
        "8"
    ]
    assert "may have been durable" in said.out
    assert "the times are those of the archiver's clock" in said.out, "no other one notes them"


def test_other_storage_nodes_take_all_partitions(tmp_path: Path) -> None:
    url = store(make_archive([10, 2]), tmp_path)
    found = run_tool(
        "restore", "plan", url, "--same-key", "-s", "a:1/2", "-s", "b:1/2=/data", "--json"
    ).json
    assert [(each["storage"], each["partitions"]) for each in found["storages"]] == [
        ("a:1", [0, 1]),
        ("b:1", [0, 1]),
    ]
    assert found["archived_cluster_key"] == str(KEY)
    assert found["same_key"] is True
    assert found["partitions"][0]["session_id"] == 1_000_012
