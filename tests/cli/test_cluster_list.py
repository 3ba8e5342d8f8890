"""`waltz cluster list`: what the coordinator has (TL-04)."""

from __future__ import annotations

import pytest

from tests.cli.operated_cluster import OperatedCluster

pytestmark = pytest.mark.processes


def test_everything_that_the_coordinator_has_is_listed(operated: OperatedCluster) -> None:
    """TL-04, CM-07, CM-16, CM-17, CM-18"""
    found = operated.done("cluster", "list", "--json").json
    key = operated.done("cluster", "show-cluster-key").out.strip()
    assert (found["name"], found["root"]) == ("operated", operated.root)
    assert (found["cluster_key"], found["partition_count"]) == (key, 2)
    assert found["storages"] == sorted(
        (
            {
                "replica_id": place.address,
                "group": group,
                "admin_port": int(place.admin.rpartition(":")[2]),
                "partitions": [0, 1],
            }
            for group, place in enumerate(operated.storages.values())
            if place.name in ("s1", "s2", "s3")
        ),
        key=lambda each: str(each["replica_id"]),
    )
    (server,) = found["servers"]
    assert server["address"] == operated.servers["v1"]
    assert found["assignment"]["consistent"] is True
    assert set(found["assignment"]["servers"][str(server["server_id"])]) == {"0", "1"}
    for number, partition in enumerate(found["partitions"]):
        assert partition["partition_id"] == number
        assert partition["generation"] >= 1
        assert len(partition["replicas"]) == 3
        for replica in partition["replicas"]:
            assert replica["session_id"] == partition["session_id"]
            assert replica["closing_high_water_mark"] is None


def test_people_get_tables(operated: OperatedCluster) -> None:
    lines = operated.done("cluster", "list").out.splitlines()
    assert lines[0] == f"cluster operated at {operated.root}, 2 partitions"
    for place in ("s1", "s2", "s3"):
        row = next(line for line in lines if line.startswith(operated.storages[place].address))
        assert row.split()[3] == "0-1"
    assert any(operated.servers["v1"] in line for line in lines)


def test_a_cluster_that_nothing_has_happened_to_is_listed(blank: OperatedCluster) -> None:
    blank.done("cluster", "create", "-n", "new", "-p", "2")
    found = blank.done("cluster", "list", "--json").json
    assert found["storages"] == found["servers"] == found["partitions"] == []
    assert blank.done("cluster", "list").code == 0
    blank.done("cluster", "delete", "-n", "new")
