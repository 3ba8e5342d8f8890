"""A storage node of a real cluster that has lost its control file: its own words lead out of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.clusters import RunningCluster, run_tool, running_cluster, wait_until

pytestmark = pytest.mark.processes

NAME = "storage-2"


def is_well(cluster: RunningCluster) -> bool:
    """Whether all three replicas take part, hold every commit and take appends."""
    return run_tool("cluster", "verify", "--cluster", cluster.coordinator).code == 0


def said(cluster: RunningCluster, pattern: str) -> re.Match[str]:
    """Return what the node's log says, once it does."""
    log = cluster.directory / "logs" / f"{NAME}.log"
    found: list[re.Match[str]] = []

    def is_there() -> bool:
        found[:] = re.finditer(pattern, log.read_text())
        return bool(found)

    wait_until(is_there, f"the node does not say {pattern!r}:\n{log.read_text()}")
    return found[-1]


@pytest.mark.long
def test_what_the_node_says_of_a_lost_control_file_makes_it_a_voter_again(tmp_path: Path) -> None:
    """F-19: cut, it is restored by itself; gone, by what the node says; and with its node file gone
    as well, the node is filled up, as it says. Each step is done to the letter."""
    with running_cluster(tmp_path / "cluster", "--partitions", "2") as cluster:
        where = ("--cluster", cluster.coordinator, "--partition", "0")
        lines = "".join(f"transaction {number}\n" for number in range(300))
        assert run_tool("append", *where, stdin=lines).out.count("\n") == 300
        node = cluster.directory / NAME
        control = node / "waltz-storage.ctl"

        with control.open("r+b") as file:
            file.truncate(40)
        cluster.kill(NAME)
        said(cluster, "with 40 bytes left; restored from waltz-storage.node")
        wait_until(lambda: is_well(cluster), "the node is not a voter")

        control.unlink()
        cluster.kill(NAME)
        command = said(cluster, r"put it back, or make an empty one with `([^`]+)`")[1]
        subprocess.run(command.split(), check=True)
        said(cluster, "with 0 bytes left; restored from waltz-storage.node")
        wait_until(lambda: is_well(cluster), "the node is not a voter")

        control.write_bytes(b"")
        (node / "waltz-storage.node").unlink()
        cluster.kill(NAME)
        said(cluster, "move the directory to another place, make an empty one of its name")
        node.rename(tmp_path / "another place")
        node.mkdir()
        wait_until(lambda: is_well(cluster), "the node is not filled up")
        assert run_tool("append", *where, "more").out.split() == ["300"]
        assert (tmp_path / "another place" / "0").is_dir(), "nothing was deleted"
