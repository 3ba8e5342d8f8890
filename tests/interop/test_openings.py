"""Our processes on what the Java original left behind: its tree in a ZooKeeper, its storage
directories, under its addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.golden import golden_tree
from tests.interop.original_machine import WRITTEN
from tests.network.links import refusal
from tests.storage.independent_reader import parse_directory, read_files
from tests.wire.golden import DIRECTORY

pytestmark = pytest.mark.processes

AFTER_CLIENTS = DIRECTORY / "storage-after-clients"


TREE = "4-after-clients"
"""Of the moment of the directory: under a later one it counts as rolled back, and does not vote."""


def test_our_processes_take_over_a_cluster_of_the_original(tmp_path: Path) -> None:
    """SD-01, CM-02, CM-05, PM-01: the log is read as it was, goes on, and stays readable for it."""
    if (reason := refusal()) is not None:
        pytest.skip(reason)
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    done = subprocess.run(
        [
            *("unshare", *user, "--net", "--mount", sys.executable, "-m"),
            *("tests.interop.original_machine", str(tmp_path), TREE),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    original = parse_directory(read_files(AFTER_CLIENTS))
    for partition in 0, 1:
        before = [record.data.hex() for record in original.records(partition)]
        assert found["log"][str(partition)] == [*before, WRITTEN.hex()]
        assert found["generation"][str(partition)] > generation_before(partition)
    for number in 1, 2, 3:
        ours = parse_directory(read_files(tmp_path / f"storage-{number}"))
        assert ours.control.cluster_key == original.control.cluster_key
        for partition in 0, 1:
            records = ours.records(partition)
            assert records[:-1] == original.records(partition)
            assert records[-1].data == WRITTEN


def generation_before(partition: int) -> int:
    data = golden_tree(TREE)[f"/waltz_cluster/store/partition/{partition}"].data
    assert data is not None
    return int.from_bytes(data[1:5], "big")
