"""`waltz status` against a running cluster."""

from __future__ import annotations

import json

import pytest

from tests.clusters import RunningCluster, run_waltz, wait_until

pytestmark = pytest.mark.processes


def test_a_healthy_cluster_is_shown_whole(cluster: RunningCluster) -> None:
    def is_whole() -> bool:
        done = run_waltz("status", "--cluster", cluster.coordinator, "--json")
        overview = json.loads(done.stdout)
        whole = all(partition["replicas_current"] == 3 for partition in overview["partitions"])
        assert overview["healthy"] is (done.returncode == 0)
        return whole and bool(overview["healthy"])

    wait_until(is_whole, "the cluster does not become whole")
    overview = json.loads(run_waltz("status", "--cluster", cluster.coordinator, "--json").stdout)
    assert overview["cluster_key"] == cluster.state["cluster_key"]
    assert [storage["reachable"] for storage in overview["storages"]] == [True] * 3
    assert [partition["writable"] for partition in overview["partitions"]] == [True, True]
    assert [partition["partition_id"] for partition in overview["partitions"]] == [0, 1]
    assert {partition["server"] for partition in overview["partitions"]} == {
        cluster.state["servers"][0]["address"]
    }


def test_people_get_a_table(cluster: RunningCluster) -> None:
    done = run_waltz("status", "--cluster", cluster.coordinator)
    assert cluster.state["cluster_key"] in done.stdout
    assert "3 of 3" in done.stdout
    assert "writable" in done.stdout
    assert "takes no appends" not in done.stdout
