"""A run of several workloads."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.results import result, samples, workload
from tests.clusters import RunningCluster
from waltz.bench.benchmark import ProgressShown, opened_targets, report, run_all
from waltz.bench.results import Result, Round
from waltz.errors import ConfigurationError
from waltz.types import parse_cluster


def test_what_happens_is_shown_a_line_each_where_there_is_no_terminal() -> None:
    said = io.StringIO()
    console = Console(file=said)
    with console.status("") as status:
        shown = ProgressShown(console, status)
        shown.start("some")
        shown.begin("round 1 of 2")
        shown.tick(7)
    assert said.getvalue() == "some: round 1 of 2\n"


def test_the_report_has_the_machine_and_all_results() -> None:
    found = json.loads(json.dumps(report([result(Round(1, 1.0, latency=samples(1.0)))], 0.5)))
    assert found["load_before"] == 0.5
    assert found["cores"] >= 1
    assert [each["workload"]["name"] for each in found["results"]] == ["some"]


@pytest.mark.processes
def test_workloads_are_done_in_order_on_the_cluster_that_was_given(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    chosen = [
        workload(
            name=name, partitions=2, window=8, duration_seconds=0.2, warm_up_seconds=0, rounds=1
        )
        for name in ("one", "two")
    ]
    told: list[Result] = []
    address = parse_cluster(cluster.coordinator)
    found = run_all(chosen, tmp_path, told.append, cluster=address)
    assert [each.workload.name for each in found] == ["one", "two"]
    assert told == found
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("values", [{"verb": "idle"}, {"slow_sync_seconds": 0.05}])
def test_a_given_cluster_is_not_slowed_and_not_taken_for_idle(
    tmp_path: Path, values: dict[str, object]
) -> None:
    chosen = [workload(**{"verb": "submit"} | values)]  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs a cluster of its own"):
        run_all(chosen, tmp_path, lambda found: None, cluster=parse_cluster("127.0.0.1:1"))


@pytest.mark.long
@pytest.mark.processes
def test_clusters_are_shared_by_workloads_of_one_shape(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with (
        console.status("") as status,
        opened_targets(None, None, tmp_path, ProgressShown(console, status)) as targets,
    ):
        first = targets.target_for(workload(partitions=1))
        assert targets.target_for(workload("feed", partitions=1, prefill=1)) is first
        fresh = targets.target_for(workload("idle", partitions=1))
        assert fresh.pids.keys().isdisjoint(first.pids)
    assert list(tmp_path.iterdir()) == []
