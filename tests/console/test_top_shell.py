"""`waltz top` against a running cluster, and none."""

from __future__ import annotations

import json

import pytest

from tests.clusters import RunningCluster, run_waltz, wait_until

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_one_picture_is_printed_for_people_and_for_programs(cluster: RunningCluster) -> None:
    def is_well() -> bool:
        done = run_waltz("top", "--cluster", cluster.coordinator, "--json")
        assert done.returncode == 0, done.stderr
        return bool(json.loads(done.stdout)["health"] == "well")

    wait_until(is_well, "the cluster does not become well")
    name = f"{cluster.state['storages'][0]['address']}=the-first"
    text = run_waltz("top", "--cluster", cluster.coordinator, "--once", "--name", name).stdout
    assert "All 2 partitions take appends on all their replicas." in text
    assert "the-first" in text


def test_a_cluster_that_does_not_answer_is_unknown() -> None:
    done = run_waltz("top", "--cluster", "127.0.0.1:9", "--json")
    found = json.loads(done.stdout)
    assert (found["health"], found["partitions"]) == ("unknown", [])
    assert found["headline"].startswith("Nothing is known of this cluster")


def test_a_name_without_an_address_is_wrong() -> None:
    done = run_waltz("top", "--cluster", "127.0.0.1:9", "--name", "x")
    assert done.returncode == 2
    assert "expected ADDRESS=NAME" in done.stderr
