"""`waltz append` and `waltz tail` against a running cluster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import waltz
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


def test_each_line_is_appended_byte_by_byte(cluster: RunningCluster) -> None:
    """Only a line feed ends a line, and nobody asks which text it is."""
    where = ("--cluster", cluster.coordinator, "--partition", "0")
    lines = [b"a\rb\r", b"\xff\x00", b"", b"end"]
    command = [sys.executable, "-m", "waltz.cli.main", "append", *where]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *others = map(int, done.stdout.split())
    assert len(others) == 3
    argument = subprocess.run([*command, b"\xfe"], capture_output=True, check=False)
    assert int(argument.stdout) == first + 4, argument.stderr
    with waltz.open_reader(cluster.coordinator) as log:
        found = [data for run in log.read(0, first, first + 5) for data in run.data]
    assert found == [*lines, b"\xfe"]


def test_an_output_that_nobody_reads_ends_it_with_a_failure(cluster: RunningCluster) -> None:
    """The lines that are left are not appended."""
    where = ("--cluster", cluster.coordinator, "--partition", "0")
    running = subprocess.Popen(
        [sys.executable, "-m", "waltz.cli.main", "append", *where, "one", "two"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    said = running.stderr.read().decode()
    running.stderr.close()
    assert running.wait() == 1
    assert said.startswith("waltz: nobody reads the output: transaction ")
    last = run_waltz("tail", *where, "-n", "1", "--no-follow").stdout
    assert last.endswith("\tone\n")
    assert f"transaction {last.split()[0]} is appended" in said


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
