"""`waltz admin storage list` (TL-20)."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from tests.cli.operated_cluster import OperatedCluster
from tests.cli.storage_nodes import run_nodes
from waltz.cli.admin_list import _holdings, show_holdings
from waltz.cli.storage_target import Surroundings
from waltz.cluster.storage_placement import StoragePlacement
from waltz.cluster.store_params import StoreParams
from waltz.storage.storage_node_shell import StorageNode
from waltz.system.real_host import real_host

pytestmark = pytest.mark.processes


def test_every_node_s_partitions_are_shown(operated: OperatedCluster) -> None:
    """TL-20: without -s all nodes; either address names one."""
    found = operated.done("admin storage", "list", "--json").json
    nodes = [operated.storages[name] for name in ("s1", "s2", "s3")]
    assert [each["storage"] for each in found] == sorted(place.address for place in nodes)
    for each in found:
        assert each["trouble"] is None
        for number, partition in enumerate(each["partitions"]):
            assert partition["partition_id"] == number
            assert partition["assigned"] is partition["taken"] is partition["available"] is True
            assert partition["session_id"] >= 0
            assert partition["low_water_mark"] >= partition["local_low_water_mark"] >= -1
    for address in (nodes[0].address, nodes[0].admin):
        (one,) = operated.done("admin storage", "list", "-s", address, "--json").json
        assert one["storage"] == nodes[0].address
    row = operated.done("admin storage", "list", "-s", nodes[1].address).out.splitlines()[1]
    assert row.split()[:2] == [nodes[1].address, "0"]


def test_a_node_that_does_not_answer_is_a_failure(operated: OperatedCluster) -> None:
    """TL-20"""
    said = operated.tool("admin storage", "list", "-s", "127.0.0.1:1")
    assert said.code == 1
    assert "storage node 127.0.0.1:1 does not answer: no connection" in said.err
    as_json = operated.tool("admin storage", "list", "-s", "127.0.0.1:1", "--json")
    assert as_json.code == 1
    assert "no connection to 127.0.0.1:1" in as_json.json[0]["trouble"]


def test_a_node_that_refuses_is_not_said_to_be_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node of another cluster answers, and says no."""

    async def story(node: StorageNode) -> None:
        other = StoreParams(UUID(int=1), 3)
        around = Surroundings(other, StoragePlacement(3, {}, {}, {}), {})
        show_holdings([await _holdings(real_host(None), node.admin_address, around)])
        said = capsys.readouterr().err
        assert said.startswith(f"storage node {node.admin_address} refuses: "), said
        assert "cluster keys differ" in said

    run_nodes(tmp_path, 1, story)


def test_what_is_assigned_and_not_taken_is_seen(operated: OperatedCluster) -> None:
    """TL-20, TL-55"""
    place = operated.add_storage("s4", 3)
    operated.start_storage("s4")
    operated.done("cluster", "assign", "-s", place.address, "-p", "1")
    (found,) = operated.done("admin storage", "list", "-s", place.address, "--json").json
    (partition,) = found["partitions"]
    assert (partition["assigned"], partition["taken"]) == (True, False)
    assert partition["session_id"] is partition["available"] is None
    verified = operated.tool("cluster", "verify")
    assert verified.code == 1
    assert f"storage node {place.address} has not taken them" in verified.out
    operated.done("cluster", "unassign", "-s", place.address, "-p", "1", "--shrink-group")
    operated.wait_until_verified("the assignment is not taken back")
    operated.done("cluster", "remove-storage", "-s", place.address)
    operated.end("s4")
