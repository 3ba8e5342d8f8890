"""Tables of random definitions are the same in whatever batches they came."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clusters import running_cluster
from tests.shares import one_in
from tests.spark.random_definitions import faults_of_definitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.processes]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    with running_cluster(tmp_path / "data", "--partitions", "2") as running:
        yield running.coordinator


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", one_in(3, [1, 4, 24]))
def test_random_definitions_in_random_batches_are_what_they_are_in_one(
    spark: SparkSession, cluster: str, tmp_path: Path, count: int
) -> None:
    """F-2, F-3: and what plain Python makes of lists; and `verify` finds them equal."""
    assert faults_of_definitions(spark, cluster, tmp_path, count=count, seed=5) == []
