"""The ground of a proof on Spark that is a program of its own: session, cluster, directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.clusters import running_cluster
from tests.spark.short_sessions import SHORT_LIVED
from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Ground(NamedTuple):
    """The cluster, at `coordinator`, has two partitions; `directory` goes with it."""

    spark: SparkSession
    coordinator: str
    directory: Path


@contextmanager
def proof_ground(name: str) -> Iterator[Ground]:
    """Two threads of Spark on this machine, with a stack for the deepest of random definitions."""
    spark = spark_session(
        name,
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": 1,
            **SHORT_LIVED,
        },
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        running_cluster(Path(directory) / "data", "--partitions", "2") as running,
    ):
        yield Ground(spark, running.coordinator, Path(directory))
    spark.stop()
