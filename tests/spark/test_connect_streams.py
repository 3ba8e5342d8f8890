"""Streams of Spark Connect follow a log into sinks, and resume from their checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import waltz
from tests.clusters import ROOT, RunningCluster, wait_until
from tests.spark.connect_streams import SINKS
from tests.spark.test_front_doors import SECONDS_MAX, connect_port, environment
from waltz.types import PartitionId, TransactionId

TRANSACTIONS = 16
"""Eight batches of each sink."""

pytestmark = [pytest.mark.spark, pytest.mark.processes]

Rows = list[tuple[int, bytes]]
"""IDs and data of transactions."""


@contextmanager
def streaming(
    running: RunningCluster, directory: Path, remote: str
) -> Iterator[subprocess.Popen[str]]:
    """Yield the program; kill whatever it has started when the block ends."""
    program = subprocess.Popen(
        (sys.executable, "-m", "tests.spark.connect_streams", running.coordinator, str(directory)),
        cwd=ROOT,
        env=environment(SPARK_REMOTE=remote),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield program
    finally:
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        program.wait()
        assert program.stdout is not None
        program.stdout.close()


def committed(directory: Path) -> dict[str, int]:
    """Return how many batches each sink's checkpoint says are done."""
    return {
        sink: sum(
            each.name.isdigit() for each in (directory / f"{sink}.checkpoint/commits").glob("*")
        )
        for sink in SINKS
    }


def logged(running: RunningCluster, partition: int, first: int = 0) -> Rows:
    with waltz.open_reader(running.coordinator) as log:
        place = PartitionId(partition)
        end = log.high_water_mark(place) + 1
        return [
            (columns.first_transaction_id + index, bytes(data))
            for columns in log.read(place, TransactionId(first), TransactionId(end))
            for index, data in enumerate(columns.data)
        ]


def rows_of(files: list[Path]) -> Rows:
    found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    return sorted((row["transaction_id"], row["data"]) for row in found)


def sunk(directory: Path) -> list[Path]:
    """Return the files that Spark's file sink has committed; a killed task leaves others."""
    logs = [each for each in (directory / "files/_spark_metadata").iterdir() if each.name[0] != "."]
    lines = [line for each in logs for line in each.read_text().splitlines() if line[0] == "{"]
    names = {Path(json.loads(line)["path"]).name for line in lines}  # some are listed twice
    return [directory / "files" / each for each in sorted(names)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_streams_of_spark_connect_resume_where_they_were_killed(
    running: RunningCluster, tmp_path: Path
) -> None:
    """F-18."""
    with waltz.open_client(running.coordinator, waltz.NoCallbacks()) as client:
        for number in range(TRANSACTIONS):
            client.append(0, b"a streamed row %d" % number)
    first_copy = len(logged(running, 1))
    with connect_port():
        with streaming(running, tmp_path, "local[1]") as killed:
            wait_until(lambda: all(committed(tmp_path).values()), "a stream commits no batch", 300)
            assert killed.poll() is None, "the streams have ended before they were killed"
        done = committed(tmp_path)
        with streaming(running, tmp_path, "local[1]") as resumed:
            text, _ = resumed.communicate(timeout=SECONDS_MAX)
    assert resumed.returncode == 0
    assert json.loads(text.splitlines()[-1])["kind"] == "pyspark.sql.connect.session"
    log = logged(running, 0)
    assert rows_of(sunk(tmp_path)) == log
    assert rows_of(list((tmp_path / "function").glob("*/*.parquet"))) == log
    copies = [data for _, data in logged(running, 1, first_copy)]
    assert sorted(copies) == sorted(data for _, data in log)
    # A checkpoint that was not resumed would have batches for all transactions once more.
    assert 0 < sum(done.values()) < sum(committed(tmp_path).values())
    assert max(committed(tmp_path).values()) <= (len(log) + 1) // 2
