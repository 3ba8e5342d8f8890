"""A pipeline whose archive and tables are in a bucket: commands, tasks of Spark and the proof have
nothing from the run before but the log and the bucket."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import waltz
from tests.buckets import bucket_url, object_store
from tests.cli.test_pipeline import SPARK
from tests.clusters import run_waltz, running_cluster
from waltz.spark.pipelines.object_store_tables import ObjectStoreTables

__all__ = ["bucket_url", "object_store"]

ARCHIVE = """\
pipeline: archive
cluster: {cluster}
target: delta:{bucket}/archive
spark: {spark}
"""
TABLES = """\
pipeline: tables
cluster: {cluster}
target: delta:{bucket}/tables
archive: delta:{bucket}/archive
transactionsPerBatch: 40
spark: {spark}
tables:
  sizes:
    keys: {{header: header}}
    measures: {{transactions: count(*), bytes: sum(octet_length(data))}}
"""
AUDIT = """\
pipeline: audit
cluster: {cluster}
target: {directory}/audit.json
archive: delta:{bucket}/archive
spark: {spark}
"""
ROWS = 90


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_past_comes_from_the_bucket_and_the_tables_are_proven(
    bucket_url: str, tmp_path: Path
) -> None:
    def run(*words: str) -> str:
        done = run_waltz("pipeline", *words, seconds_max=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        named = {"cluster": cluster.coordinator, "bucket": bucket_url, "directory": tmp_path}
        files = {}
        for name, text in (("archive", ARCHIVE), ("tables", TABLES), ("audit", AUDIT)):
            files[name] = str(tmp_path / f"{name}.yaml")
            Path(files[name]).write_text(text.format(spark=SPARK, **named))
        append(cluster.coordinator, 0, 60)
        assert run("run", files["archive"]).startswith("archived 60 transactions in 2 files")
        append(cluster.coordinator, 60, ROWS)
        run("run", files["tables"])
        for name in ("archive", "tables"):
            assert json.loads(run("verify", files[name], "--json"))["equal"] is True
        run("run", files["audit"])
        assert json.loads((tmp_path / "audit.json").read_text())["differences"] == []
    truth = {
        header: (len(numbers), sum(len(data_of(each)) for each in numbers))
        for header in range(3)
        if (numbers := [each for each in range(ROWS) if each % 3 == header])
    }
    with ObjectStoreTables(f"{bucket_url}/tables", create=False) as store:
        table = store._format.opened("sizes").to_pyarrow_table().to_pylist()
    assert {row["header"]: (row["transactions"], row["bytes"]) for row in table} == truth


def data_of(number: int) -> bytes:
    return b"%d" % number * (number % 7 + 1)


def append(cluster: str, first: int, end: int) -> None:
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(first, end):
            client.append(number % 2, data_of(number), header=number % 3)
