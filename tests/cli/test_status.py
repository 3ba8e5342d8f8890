"""`waltz status` against a running cluster."""

from __future__ import annotations

import pytest

from tests.clusters import RunningCluster, run_tool, wait_until
from waltz.cli.overview import (
    ClusterOverview,
    PartitionOverview,
    ServerOverview,
    StorageOverview,
)
from waltz.cli.status import show_overview

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


def test_addresses_of_ipv6_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    node, server = "[fd00:a:b::1]:7201", "[fd00:a:b::2]:7300"
    state = PartitionOverview(0, server, 1, 1, 5, 0, 1, False, "why", ())
    show_overview(
        ClusterOverview(
            "prod [eu]",
            "key",
            (StorageOverview(node, False, ("[Errno 5]",)),),
            (ServerOverview(server, None, ("late",), ()),),
            (state,),
        )
    )
    said = capsys.readouterr().out
    assert said.startswith("cluster prod [eu]")
    assert (said.count(node), said.count(server)) == (2, 2)
    assert "[Errno 5]" in said
