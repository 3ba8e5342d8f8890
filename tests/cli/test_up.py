"""`waltz up`: starts, starts again, survives kills, stops, and refuses what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import run_waltz, running_cluster, start_cluster, wait_until
from waltz.cli.trial_directory import (
    FILE_NAME,
    ClusterFile,
    ServerPlace,
    StoragePlace,
    plan_cluster,
)
from waltz.cli.up import Supervisor, open_ports, refuse_open_ports
from waltz.errors import ConfigurationError
from waltz.types import Address, ZooKeeperAddress

pytestmark = pytest.mark.processes


def append(coordinator: str, *data: str) -> list[str]:
    done = run_waltz("append", "--cluster", coordinator, "--partition", "0", *data)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "runs_zookeeper", "has_tls", "told"),
    [
        ("127.0.0.1", True, False, []),
        ("10.0.0.1", False, True, []),
        ("10.0.0.1", False, False, ["every process that reaches this machine"]),
        ("10.0.0.1", True, True, ["the ZooKeeper at 10.0.0.1:7100 authenticates no client"]),
        (
            "10.0.0.1",
            True,
            False,
            ["every process that reaches this machine", "the ZooKeeper at 10.0.0.1"],
        ),
    ],
)
def test_what_other_machines_reach_and_believes_everybody_is_told(
    host: str, runs_zookeeper: bool, has_tls: bool, told: list[str]
) -> None:
    """F-15."""
    at = Address(host, 7100)
    cluster = ClusterFile(
        "c", "key", 1, ZooKeeperAddress((at,), "/waltz") if runs_zookeeper else at,
        (StoragePlace("s", Address(host, 7102), Address(host, 7103)),),
        (ServerPlace("v", Address(host, 7101)),), runs_zookeeper, has_tls,
    )  # fmt: skip
    lines = open_ports(cluster)
    assert len(lines) == len(told)
    assert all(line.startswith(start) for line, start in zip(lines, told, strict=True))
    refuse_open_ports(cluster, is_open=True)
    if told:
        with pytest.raises(ConfigurationError, match=r"give --open-to-anyone"):
            refuse_open_ports(cluster, is_open=False)
    else:
        refuse_open_ports(cluster, is_open=False)


def test_a_process_that_is_started_again_too_early_does_not_make_the_cluster_ready(
    tmp_path: Path,
) -> None:
    plan = plan_cluster(
        name="test", cluster_key="key", host="127.0.0.1", port=0, servers=1, partitions=1
    )
    supervisor = Supervisor(tmp_path, plan, None, console_at=Address("127.0.0.1", 7180))
    for keeper in (supervisor._console_keeper, supervisor._keeper):
        keeper._on_restart()
        assert json.loads((tmp_path / FILE_NAME).read_text())["ready"] is False
    supervisor.note(ready=True)
    supervisor._console_keeper._on_restart()
    assert json.loads((tmp_path / FILE_NAME).read_text())["ready"] is True


def test_a_second_start_goes_on_where_the_first_was(tmp_path: Path) -> None:
    """ST-06: also an orderly stop is followed by a recovery, and nothing is lost by it."""
    with running_cluster(tmp_path / "cluster", "--partitions", "1") as cluster:
        assert append(cluster.coordinator, "a", "b") == ["0", "1"]
        pids = [process["pid"] for process in cluster.state["processes"]]
        address = cluster.coordinator
    assert not any(is_alive(pid) for pid in pids)
    with running_cluster(tmp_path / "cluster") as cluster:
        assert cluster.coordinator == address
        assert append(cluster.coordinator, "c") == ["2"]


def test_every_process_may_be_killed_and_nothing_is_lost(tmp_path: Path) -> None:
    """PM-04, SN-09: what was acknowledged is there after each kind of process was killed."""
    with running_cluster(tmp_path / "cluster", "--partitions", "1") as cluster:
        expected = []
        for name in ("storage-2", "server-1", "storage-1", "storage-3"):
            expected += append(cluster.coordinator, name)
            cluster.kill(name)
            expected += append(cluster.coordinator, f"after {name}")
            cluster.wait_until_restarted(name)
        assert expected == [str(number) for number in range(8)]
        tailed = run_waltz(
            *("tail", "--cluster", cluster.coordinator, "--partition", "0"),
            *("--from", "earliest", "--no-follow"),
        )
        assert [line.split("\t")[0] for line in tailed.stdout.splitlines()] == expected


@pytest.mark.long
def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "cluster", "--partitions", "1")
    pids = [process["pid"] for process in cluster.state["processes"]]
    cluster.process.kill()
    cluster.process.communicate()
    wait_until(lambda: not any(is_alive(pid) for pid in pids), "a process lives on")


def test_it_ends_in_order_with_its_standard_input_where_that_is_wanted(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as log:
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "waltz.cli.main", "up", "--end-with-stdin"),
                *("--directory", str(tmp_path / "cluster"), "--port", "0"),
            ],
            stdin=subprocess.PIPE,
            stderr=log,
        )
    wait_until(lambda: "is up" in said.read_text(), "waltz up is not ready")
    assert running.stdin is not None
    running.stdin.close()
    assert running.wait(60) == 0
    assert said.read_text().endswith("stopping\nstopped\n")


def test_a_second_start_on_a_running_directory_is_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", "--partitions", "1") as cluster:
        done = run_waltz("up", "--directory", str(cluster.directory))
        assert done.returncode == 1
        assert "another `waltz up` runs on it" in done.stderr
        assert append(cluster.coordinator, "a") == ["0"]


def test_other_numbers_than_at_creation_are_refused(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", "--partitions", "1"):
        pass
    done = run_waltz("up", "--directory", str(tmp_path / "cluster"), "--partitions", "2")
    assert done.returncode == 1
    assert "has 1 partitions, not 2: leave --partitions out" in done.stderr
    assert "waltz cluster add-partitions --to 2 adds some" in done.stderr


def test_a_foreign_directory_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = run_waltz("up", "--directory", str(tmp_path))
    assert done.returncode == 1
    assert "thesis.txt" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_storage_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """SN-03: the keys are in the message, and the directory stays as it is."""
    for name in ("one", "two"):
        with running_cluster(tmp_path / name, "--partitions", "1"):
            pass
    (tmp_path / "two" / "storage-1").rename(tmp_path / "aside")
    (tmp_path / "one" / "storage-1").rename(tmp_path / "two" / "storage-1")
    before = (tmp_path / "two" / "storage-1" / "waltz-storage.ctl").read_bytes()
    done = run_waltz("up", "--directory", str(tmp_path / "two"))
    assert done.returncode == 1
    assert "storage-1 did not start" in done.stderr
    assert (tmp_path / "two" / "storage-1" / "waltz-storage.ctl").read_bytes() == before
