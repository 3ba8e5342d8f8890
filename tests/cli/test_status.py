"""`waltz status` against a running cluster."""

from __future__ import annotations

import pytest

from tests.clusters import RunningCluster, run_tool, wait_until

pytestmark = pytest.mark.processes


def test_a_healthy_cluster_is_shown_whole(cluster: RunningCluster) -> None:
    def is_whole() -> bool:
        done = run_tool("status", "--cluster", cluster.coordinator, "--json")
        overview = done.json
        whole = all(partition["replicas_current"] == 3 for partition in overview["partitions"])
        assert overview["healthy"] is (done.code == 0)
        return whole and bool(overview["healthy"])

    wait_until(is_whole, "the cluster does not become whole")
    overview = run_tool("status", "--cluster", cluster.coordinator, "--json").json
    assert overview["cluster_key"] == cluster.state["cluster_key"]
    assert [storage["reachable"] for storage in overview["storages"]] == [True] * 3
    assert [partition["writable"] for partition in overview["partitions"]] == [True, True]
    assert [partition["partition_id"] for partition in overview["partitions"]] == [0, 1]
    assert {partition["server"] for partition in overview["partitions"]} == {
        cluster.state["servers"][0]["address"]
    }


def test_people_get_a_table(cluster: RunningCluster) -> None:
    done = run_tool("status", "--cluster", cluster.coordinator)
    assert cluster.state["cluster_key"] in done.out
    assert "3 of 3" in done.out
    assert "writable" in done.out
    assert "takes no appends" not in done.out
