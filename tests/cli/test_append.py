"""`waltz append` and `waltz tail` against a running cluster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.clusters import RunningCluster, run_waltz

pytestmark = pytest.mark.processes


def test_what_is_appended_is_tailed(cluster: RunningCluster) -> None:
    """PM-04, PM-17: dense IDs from 0, headers kept."""
    where = ("--cluster", cluster.coordinator, "--partition", "0")
    done = run_waltz("append", *where, "--header", "-7", "eins", "zwei", "drei")
    assert done.stdout.split() == ["0", "1", "2"], done.stderr
    lines = run_waltz("append", *where, "--write-lock", "account:5", input="vier\nfünf\n")
    assert lines.stdout.split() == ["3", "4"], lines.stderr
    tailed = run_waltz("tail", *where, "--from", "earliest", "--no-follow")
    assert tailed.stdout.splitlines() == [
        "0\t-7\teins",
        "1\t-7\tzwei",
        "2\t-7\tdrei",
        "3\t0\tvier",
        "4\t0\tfünf",
    ]
    two = run_waltz("tail", *where, "--from", "3", "--no-follow", "--json")
    assert [json.loads(line)["transaction_id"] for line in two.stdout.splitlines()] == [3, 4]


def test_a_tail_follows_what_comes_later(cluster: RunningCluster) -> None:
    where = ("--cluster", cluster.coordinator, "--partition", "1")
    tail = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", "tail", *where, "--from", "earliest"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run_waltz("append", *where, "later").returncode == 0
        assert tail.stdout is not None
        assert tail.stdout.readline() == "0\t0\tlater\n"
    finally:
        tail.kill()
        tail.communicate()


@pytest.mark.parametrize("partition", ["2", "99"])
def test_a_partition_out_of_range_is_an_error_and_no_hang(
    cluster: RunningCluster, partition: str
) -> None:
    """PM-06."""
    where = ("--cluster", cluster.coordinator, "--partition", partition)
    for arguments in (("append", *where, "data"), ("tail", *where, "--no-follow")):
        done = run_waltz(*arguments)
        assert done.returncode == 1
        assert partition in done.stderr
        assert "Traceback" not in done.stderr


def test_without_a_cluster_it_says_where_it_looked(tmp_path: str) -> None:
    done = run_waltz("tail", "--partition", "0", cwd=tmp_path, env={"PATH": ""})
    assert done.returncode == 1
    assert "WALTZ_CLUSTER" in done.stderr
