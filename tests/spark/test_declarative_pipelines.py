"""`examples/sdp` under `spark-pipelines`, on a real cluster, judged by the files of its tables."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import waltz
from tests.clusters import ROOT, RunningCluster, running_cluster
from tests.spark.test_front_doors import SCRIPTS, SECONDS_MAX, connect_port, environment, java_home

EXAMPLE = ROOT / "examples" / "sdp"
OPTIONS = ("--remote", "local[2]", "--conf", "spark.sql.catalogImplementation=hive")
QUIET = ("--conf", "spark.ui.enabled=false")

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def project(directory: Path, cluster: RunningCluster) -> Path:
    """Return a copy of the example, for that cluster."""
    copy = directory / "sdp"
    shutil.copytree(EXAMPLE, copy)
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text()
    assert "127.0.0.1:7100" in text
    assert "/var/lib/accounts" in text
    text = text.replace("127.0.0.1:7100", cluster.coordinator)
    spec.write_text(text.replace("/var/lib/accounts", str(directory)))
    return copy


def run(directory: Path) -> None:
    with connect_port():
        done = subprocess.run(
            (str(SCRIPTS / "spark-pipelines"), "run", *OPTIONS, *QUIET),
            cwd=directory,
            env=environment(
                JAVA_HOME=java_home(),
                PYSPARK_PYTHON=sys.executable,
            ),
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


def append(cluster: RunningCluster, *moves: tuple[int, int]) -> None:
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        for number, (account, amount) in enumerate(moves):
            data = json.dumps({"account": account, "amount": amount}).encode()
            client.append(number % 2, data)


def moves(directory: Path) -> list[tuple[int, int]]:
    """Return partition and transaction of each row of the streaming table, as its files have it."""
    files = (directory / "spark-warehouse" / "moves").glob("*.parquet")
    tables = [pq.read_table(file, columns=["partition", "transaction_id"]) for file in files]
    return sorted(
        (row["partition"], row["transaction_id"]) for table in tables for row in table.to_pylist()
    )


def balances(directory: Path) -> dict[int, tuple[int, int]]:
    files = (directory / "spark-warehouse" / "balances").glob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    found = {row["account"]: (row["balance"], row["moves"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.long
def test_the_example_derives_a_streaming_table_and_a_view(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        append(cluster, (1, 10), (2, 20), (1, -4), (2, 1))
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            client.append(0, b"no JSON")
        directory = project(tmp_path, cluster)
        run(directory)
        assert moves(directory) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        assert balances(directory) == {1: (6, 2), 2: (21, 2)}


@pytest.mark.long
def test_a_second_run_takes_in_what_is_new_and_nothing_twice(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        directory = project(tmp_path, cluster)
        append(cluster, (1, 10), (2, 20), (1, -4))
        run(directory)
        append(cluster, (3, 7), (1, 1))
        run(directory)
        assert moves(directory) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        assert balances(directory) == {1: (7, 3), 2: (20, 1), 3: (7, 1)}
