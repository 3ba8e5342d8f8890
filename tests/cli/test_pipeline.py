"""`waltz pipeline` as an operator runs it: on a real cluster, with Spark, from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import waltz
from tests.clusters import run_waltz, running_cluster
from waltz.cli.pipeline import pipeline

DEFINITION = """\
pipeline: archive
cluster: {cluster}
target: archive
spark: {{spark.master: "local[2]"}}
"""


@pytest.mark.spark
@pytest.mark.processes
def test_an_archive_is_run_looked_at_proven_and_found_out(tmp_path: Path) -> None:
    definition = tmp_path / "archive.yaml"
    with running_cluster(tmp_path / "data", "--partitions", "2") as cluster:
        definition.write_text(DEFINITION.format(cluster=cluster.coordinator))
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            for number in range(30):
                client.append(number % 2, b"%d" % number)
        done = run_waltz("pipeline", "run", str(definition), seconds_max=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("archived 30 transactions in 2 files")
        seen = run_waltz("pipeline", "status", str(definition), "--json")
        assert json.loads(seen.stdout) == {
            "partitions": [
                {"partition": 0, "taken_in": 15, "log": 15},
                {"partition": 1, "taken_in": 15, "log": 15},
            ],
            "behind": 0,
        }
        manifest = next((tmp_path / "archive" / "manifests").glob("*.json"))
        entry = json.loads(manifest.read_text())
        entry["files"][0]["blocks"][0][2] = "0" * 64
        manifest.write_text(json.dumps(entry))
        proven = run_waltz("pipeline", "verify", str(definition), "--json", seconds_max=300)
        assert proven.returncode == 1, proven.stderr
        found = json.loads(proven.stdout)
        assert (found["equal"], found["transactions"]) == (False, 30)
        assert found["differences"][0].startswith("WALTZ-2008 partition=0/")


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    refused = CliRunner().invoke(pipeline, ["status", str(missing)])
    assert str(refused.exception) == f"cannot read {missing}: No such file or directory"
    definition = tmp_path / "archive.yaml"
    definition.write_text("pipeline: archive\ndestination: x\n")
    refused = CliRunner().invoke(pipeline, ["status", str(definition)])
    assert str(refused.exception).startswith(
        "WALTZ-1007 the file has the unknown key 'destination'"
    )
