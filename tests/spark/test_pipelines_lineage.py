"""Passes of real definitions with Spark on a real cluster, as OpenLineage is told of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

import waltz
from waltz.spark.pipelines.archiving import add_to_archive
from waltz.spark.pipelines.definition import PipelineDefinition, parse_definition
from waltz.spark.pipelines.derived import rebuild, take_in
from waltz.spark.pipelines.lineage_shell import told_lineage
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]

FILE = """\
pipeline: tables
cluster: {cluster}
target: {target}
partitions: 0
lineage: {{namespace: shop, job: headers}}
tables:
  headers:
    where: header div 10 = {tens}
    keys: {{header: header}}
    measures: {{moves: count(*)}}
{more}"""
MORE = "  all: {keys: {p: partition}, measures: {moves: count(*)}}\narchive: archive\n"


class Lineage:
    """A cluster and a file of events; each pass returns what it has told."""

    def __init__(self, spark: SparkSession, cluster: str, directory: Path) -> None:
        self.spark, self.cluster, self.directory = spark, cluster, directory
        self.access = LogAccess(cluster)
        with waltz.open_reader(cluster) as log:
            self.namespace = f"waltz://{log.cluster_key}"

    def defined(self, target: str, tens: int, more: str = "") -> PipelineDefinition:
        text = FILE.format(cluster=self.cluster, target=target, tens=tens, more=more)
        return parse_definition(text, directory=self.directory)

    def append(self, *headers: int) -> int:
        """Append to partition 0; return the transaction ID after the last."""
        with waltz.open_client(self.cluster, waltz.NoCallbacks()) as client:
            for header in headers:
                client.append(0, b"x", header=header)
        with waltz.open_reader(self.cluster) as log:
            return log.high_water_mark(0) + 1

    def events(self) -> list[dict[str, Any]]:
        file = self.directory / "events"
        found = (
            [json.loads(each) for each in file.read_text().splitlines()] if file.exists() else []
        )
        file.unlink(missing_ok=True)
        return found

    def run(
        self, definition: PipelineDefinition, *, is_rebuild: bool = False
    ) -> list[dict[str, Any]]:
        with told_lineage(definition, rebuild=is_rebuild, end_seconds=60) as runs:
            if is_rebuild:
                rebuild(self.spark, self.access, definition, runs)
                runs.pass_ended()
            else:
                report = take_in(self.spark, self.access, definition, runs)
                runs.pass_ended(report.dropped)
        return self.events()


@pytest.fixture
def lineage(
    spark: SparkSession, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Lineage:
    config = {"type": "file", "log_file_path": str(tmp_path / "events"), "append": True}
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", json.dumps(config))
    return Lineage(spark, cluster, tmp_path)


def marks(event: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    facet = event["inputs"][0]["inputFacets"]["waltz_marks"]
    return facet["start"], facet["end"]


def written(event: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Return the statistics that were told of each output, by the last part of its name."""
    return {
        each["name"].split("/")[-1]: {
            key: value
            for key, value in each["outputFacets"].get("outputStatistics", {}).items()
            if key[0] != "_"
        }
        for each in event["outputs"]
    }


def test_passes_tell_what_they_have_read_and_written(lineage: Lineage) -> None:
    first = lineage.append(700, 700, 701)
    definition = lineage.defined("tables.db", 70)
    start, complete = lineage.run(definition)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert complete["inputs"][0]["namespace"] == lineage.namespace
    assert [each["name"] for each in complete["inputs"]] == ["log"]
    assert marks(complete) == ({"0": 0}, {"0": first})
    assert written(complete) == {"tables.db.headers": {"rowCount": 2}}
    (table,) = start["outputs"]
    assert [each["name"] for each in table["facets"]["schema"]["fields"]][:2] == ["header", "moves"]
    assert lineage.run(definition) == []

    # A table that is new in the definition is derived from the past, which the archive has.
    add_to_archive(lineage.spark, lineage.access, lineage.directory / "archive")
    second = lineage.append(701)
    both = lineage.defined("tables.db", 70, MORE)
    _, complete = lineage.run(both)
    names = [each["name"] for each in complete["inputs"]]
    assert names == ["log", str(lineage.directory / "archive")]
    assert marks(complete) == ({"0": first}, {"0": second})
    assert written(complete) == {"tables.db.headers": {"rowCount": 1}, "tables.db.all": {}}

    _, complete = lineage.run(both, is_rebuild=True)
    assert marks(complete) == ({"0": 0}, {"0": second})
    assert written(complete) == {
        "tables.db.headers": {"rowCount": 2},
        "tables.db.all": {"rowCount": 1},
    }


@pytest.mark.parametrize("target", ["delta:tables", "iceberg:tables"])
def test_files_of_tables_are_told_as_they_are(lineage: Lineage, target: str) -> None:
    lineage.append(710, 711, 712, 712)
    definition = lineage.defined(target, 71)
    _, complete = lineage.run(definition)
    (table,) = complete["outputs"]
    directory = lineage.directory / "tables" / "headers"
    assert (table["namespace"], table["name"]) == ("file", str(directory))
    files = list(directory.rglob("*.parquet"))
    columns = [each["name"] for each in table["facets"]["schema"]["fields"]]
    assert set(columns) == set(pq.read_schema(files[0]).names) | {"waltz_bucket"}
    assert written(complete)["headers"] == {
        "rowCount": 3,
        "size": sum(each.stat().st_size for each in files),
        "fileCount": len(files),
    }
