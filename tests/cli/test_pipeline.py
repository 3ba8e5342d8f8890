"""`waltz pipeline` as an operator runs it: on a real cluster, with Spark, from a file."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import waltz
from tests.cli.test_pipeline_port import get, samples
from tests.clusters import run_waltz, running_cluster, wait_until
from tests.spark.short_sessions import SHORT_LIVED
from tests.spark.tables_by_value import CLUSTER, LAYOUTS, batch, ranged
from waltz.cli.pipeline import pipeline
from waltz.cli.trial_directory import choose_ports
from waltz.errors import ConfigurationError
from waltz.spark.pipelines.delta_tables import DeltaTables
from waltz.spark.pipelines.iceberg_tables import IcebergTables

SPARK = json.dumps({"spark.master": "local[2]", **SHORT_LIVED})
DEFINITION = """\
pipeline: archive
cluster: {cluster}
target: archive
spark: {spark}
"""
AUDIT = """\
pipeline: audit
cluster: {cluster}
target: audit.json
archive: archive
spark: {spark}
"""


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """The definition of an archive; the log of its cluster has 30 transactions."""
    definition = tmp_path / "archive.yaml"
    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        definition.write_text(DEFINITION.format(cluster=cluster.coordinator, spark=SPARK))
        (tmp_path / "audit.yaml").write_text(AUDIT.format(cluster=cluster.coordinator, spark=SPARK))
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for number in range(30):
                client.append(number % 2, b"%d" % number)
        yield definition


def run_it(definition: Path) -> None:
    done = run_waltz("pipeline", "run", str(definition), seconds_max=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("archived 30 transactions in 2 files")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
def test_an_archive_is_run_and_looked_at(archive: Path) -> None:
    run_it(archive)
    seen = run_waltz("pipeline", "status", str(archive), "--json")
    assert json.loads(seen.stdout) == {
        "kind": "archive",
        "target": str(archive.parent / "archive"),
        "partitions": [
            {"partition": 0, "taken_in": 15, "log": 15},
            {"partition": 1, "taken_in": 15, "log": 15},
        ],
        "behind": 0,
        "last_verify": None,
    }


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
def test_an_archive_that_was_changed_is_found_out(archive: Path, tmp_path: Path) -> None:
    run_it(archive)
    manifest = next((tmp_path / "archive" / "manifests").glob("*.json"))
    entry = json.loads(manifest.read_text())
    entry["files"][0]["blocks"][0][2] = "0" * 64
    manifest.write_text(json.dumps(entry))
    proven = run_waltz("pipeline", "verify", str(archive), "--json", seconds_max=300)
    assert proven.returncode == 1, proven.stderr
    found = json.loads(proven.stdout)
    assert (found["equal"], found["transactions"]) == (False, 30)
    (difference,) = found["differences"]
    assert (difference["partition"], difference["file"][:12]) == (0, "partition=0/")
    seen = json.loads(run_waltz("pipeline", "status", str(archive), "--json").stdout)
    noted = seen["last_verify"]
    assert (noted["equal"], noted["differences"], noted["transactions"]) == (False, 1, 30)
    (archived,) = (tmp_path / "archive").glob("partition=0/*.parquet")
    archived.unlink()
    judged = run_waltz("pipeline", "run", str(tmp_path / "audit.yaml"), seconds_max=300)
    assert judged.returncode == 1, judged.stderr
    assert judged.stdout.startswith("partition 0: 15 transactions\n  127.0.0.1:")
    (difference,) = json.loads((tmp_path / "audit.json").read_text())["differences"]
    assert judged.stdout.endswith(f"different:\nWALTZ-2008 {difference['text']}\n")
    assert difference["copies"] == ["the archive"]


WALTZ = (sys.executable, "-m", "waltz.cli.main")
TABLES = """\
pipeline: tables
cluster: {cluster}
target: tables.db
spark: {spark}
tables:
  headers:
    keys: [header]
    measures: {{transactions: count(*)}}
lineage: {{namespace: shop, job: headers}}
report:
  target: report.html
  title: Headers
  sections: [{{title: All of them, query: SELECT header FROM headers}}]
"""


def told(file: Path) -> list[str]:
    """Return the types of the events in a file of OpenLineage."""
    return [json.loads(each)["eventType"] for each in file.read_text().splitlines()]


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(900)
def test_tables_follow_the_log_until_they_are_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition, target = tmp_path / "tables.yaml", tmp_path / "tables.db"
    lineage = tmp_path / "lineage"
    config = {"type": "file", "log_file_path": str(lineage), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(config))
    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        definition.write_text(TABLES.format(cluster=cluster.coordinator, spark=SPARK))
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            client.append(0, b"x", header=7)
            (port,) = choose_ports("127.0.0.1", 0, 1)
            url = f"http://127.0.0.1:{port}"
            options = ("--every", "0.2", "--http-address", f"127.0.0.1:{port}")
            command = (*WALTZ, "pipeline", "run", str(definition), *options)
            running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert running.stdout is not None
            assert running.stdout.readline() == "took in 1 transactions\n"
            client.append(1, b"y", header=7)
            assert running.stdout.readline() == "took in 1 transactions\n"
            found = samples(get(url, "/metrics")[1])
            assert found["waltz_pipeline_transactions_total", "", ""] == 2
            assert found["waltz_pipeline_batch_seconds_count", "read", ""] == 2
            assert found["waltz_pipeline_lag_transactions", "", "0"] == 0
            assert ("waltz_pipeline_verified_equal", "", "") not in found
            proven = run_waltz("pipeline", "verify", str(definition), seconds_max=300)
            assert proven.returncode == 0, proven.stderr
            wait_until(
                lambda: "waltz_pipeline_verified_equal 1.0" in get(url, "/metrics")[1],
                "the pipeline does not tell of the verify",
                300,
            )
            running.send_signal(signal.SIGINT)
            running.stdout.close()
            assert running.wait(60) == 130
            # Two passes had something to do; the verify, and idle passes, tell nothing.
            assert told(lineage) == ["START", "COMPLETE"] * 2
        with sqlite3.connect(target) as database:
            query = "SELECT header, transactions FROM headers"
            assert database.execute(query).fetchall() == [(7, 2)]
        seen = run_waltz("pipeline", "status", str(definition))
        *_, verified, last = seen.stdout.splitlines()
        assert last == "up to date"
        assert verified.endswith("Z, 2 transactions: equal")
        rebuilt = run_waltz("pipeline", "rebuild", str(definition), seconds_max=300)
        assert rebuilt.returncode == 0, rebuilt.stderr
        seen = run_waltz("pipeline", "status", str(definition), "--json")
        assert json.loads(seen.stdout)["last_verify"] is None
        assert told(lineage) == ["START", "COMPLETE"] * 3
    written = CliRunner().invoke(pipeline, ["report", str(definition)])
    assert written.output == f"{tmp_path / 'report.html'}\n"
    assert "<td>7</td>" in (tmp_path / "report.html").read_text()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    refused = CliRunner().invoke(pipeline, ["status", str(missing)])
    assert str(refused.exception) == f"cannot read {missing}: No such file or directory"
    audit = tmp_path / "audit.yaml"
    audit.write_text(AUDIT.format(cluster="127.0.0.1:1", spark=SPARK))
    for command in ("status", "verify", "rebuild"):
        refused = CliRunner().invoke(pipeline, [command, str(audit)])
        assert (
            str(refused.exception)
            == f"{audit} is an audit, which keeps nothing; use `waltz pipeline run`"
        )
    definition = tmp_path / "archive.yaml"
    definition.write_text("pipeline: archive\ndestination: x\n")
    refused = CliRunner().invoke(pipeline, ["status", str(definition)])
    assert str(refused.exception).startswith(
        "WALTZ-1007 the file has the unknown key 'destination'"
    )


@pytest.mark.parametrize(
    ("kind", "unneeded"),
    [(DeltaTables, 2), (IcebergTables, 6)],  # with the list and the manifest of a snapshot
)
def test_tidying_names_files_first_and_deletes_them_when_told(
    tmp_path: Path, kind: type[DeltaTables | IcebergTables], unneeded: int
) -> None:
    name = "delta" if kind is DeltaTables else "iceberg"
    definition = tmp_path / "headers.yaml"
    definition.write_text(
        f"pipeline: tables\ncluster: 127.0.0.1:7100\ntarget: {name}:tables\n"
        "tables: {t: {keys: [header], measures: {transactions: count(*)}}}\n"
    )
    with kind(tmp_path / "tables", create=True) as store:
        store.prepare(CLUSTER, "definition", LAYOUTS)
        for number in range(2):
            store.add(batch([("k", 0, 7, 0, number)], [ranged(number, number + 1)]))
    runner = CliRunner()
    kept = runner.invoke(pipeline, ["tidy", str(definition), "--delete"])
    assert kept.output == ("positive: deleted 0 files, 0 bytes\nt: deleted 0 files, 0 bytes\n")
    arguments = ["tidy", str(definition), "--retention-hours", "0", "--json"]
    named = json.loads(runner.invoke(pipeline, arguments).output)
    assert (named["deleted"], [each["table"] for each in named["tables"]]) == (
        False,
        ["positive", "t"],
    )
    files = [tmp_path / "tables" / t["table"] / f for t in named["tables"] for f in t["files"]]
    assert len(files) == unneeded
    assert all(each.exists() for each in files)
    deleted = json.loads(runner.invoke(pipeline, [*arguments, "--delete"]).output)
    assert deleted == {**named, "deleted": True}
    assert not any(each.exists() for each in files)
    definition.write_text(definition.read_text().replace(f"{name}:", ""))
    refused = runner.invoke(pipeline, ["tidy", str(definition)])
    assert isinstance(refused.exception, ConfigurationError)


def test_a_definition_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "accounts.yaml"
    path.write_bytes(b"pipeline: \xff\n")
    failed = CliRunner().invoke(pipeline, ["status", str(path)]).exception
    assert isinstance(failed, ConfigurationError)
    assert str(failed) == f"cannot read {path}: not UTF-8 at byte 10"
