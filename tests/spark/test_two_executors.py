"""Executors that share nothing with the driver but the network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import waltz
from tests.clusters import ROOT, running_cluster
from tests.spark.killed_driver import COPY

ROWS = 200
SECONDS_MAX = 300.0


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
def test_two_executors_read_write_and_follow_the_log(tmp_path: Path) -> None:
    """PS-01, PS-05, PS-07: by tasks of both, each row once."""
    with running_cluster(tmp_path / "data", "--partitions", "4") as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            written = [
                (partition, client.append(partition, data.encode()), data)
                for number in range(ROWS)
                for partition, data in [(number % 2, f"row {number}")]
            ]
        program = subprocess.run(
            [
                *(sys.executable, "-m", "tests.spark.two_executors"),
                *("local-cluster[2,1,1024]", cluster.coordinator, str(tmp_path)),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert program.returncode == 0, program.stderr
        found = json.loads(program.stdout.splitlines()[-1])
        with waltz.open_reader(cluster.coordinator) as log:
            copies = [
                (partition - 2, data.decode())
                for partition in (2, 3)
                for columns in log.read(partition, 0, log.high_water_mark(partition) + 1)
                for data in columns.data
            ]
    assert found["executors"] == 2
    assert found["rows_of_tasks"] == ROWS
    assert [tuple(row) for row in found["read"]] == sorted(written)
    assert found["followed"] == found["read"]
    assert found["batches"] >= ROWS // 40
    assert sorted(copies) == sorted((partition, COPY + data) for partition, _, data in written)
