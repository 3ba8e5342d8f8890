"""Tables of random definitions are the same in whatever batches they came."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clusters import running_cluster
from tests.spark.random_definitions import faults_of_definitions, unequal_files
from tests.spark.tables_by_value import CLUSTER, LAYOUTS, Event, batch, ranged
from waltz.spark.pipelines.definition import PipelineDefinition, TargetKind
from waltz.spark.pipelines.open_tables import open_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        yield running.coordinator


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [1, 4, 24])
def test_random_definitions_in_random_batches_are_what_they_are_in_one(
    spark: SparkSession, cluster: str, tmp_path: Path, count: int
) -> None:
    """F-2, F-3: and what plain Python makes of lists; and `verify` finds them equal."""
    assert faults_of_definitions(spark, cluster, tmp_path, count=count, seed=5) == []


def test_files_with_other_rows_than_the_database_are_named(tmp_path: Path) -> None:
    one = LAYOUTS[0]
    rows: list[Event] = [("k", 0, 7, 0, 0), (None, 1, None, 0, 1)]
    kinds: tuple[tuple[str, TargetKind], ...] = (
        ("t.db", "sqlite"),
        ("d", "delta"),
        ("i", "iceberg"),
    )
    for name, kind in kinds:
        definition = PipelineDefinition("tables", "none", tmp_path / name, target_kind=kind)
        with open_tables(definition, create=True) as store:
            store.prepare(CLUSTER, "definition", LAYOUTS)
            store.add(batch(rows, [ranged(0, 2)]))
    lakes = [tmp_path / "d", tmp_path / "i"]
    assert unequal_files(tmp_path / "t.db", lakes, LAYOUTS) == []
    with closing(sqlite3.connect(tmp_path / "t.db")) as database, database:
        database.execute("UPDATE t SET the_sum = 8 WHERE a = 'k'")
    assert unequal_files(tmp_path / "t.db", lakes, [one]) == [
        f"table t in {each} is not that of {tmp_path}/t.db" for each in lakes
    ]
