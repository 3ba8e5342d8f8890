"""A real cluster and a Spark session, each started once, and only where a test asks for them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.clusters import RunningCluster, running_cluster
from tests.spark.short_sessions import SHORT_LIVED
from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of two partitions."""
    directory = tmp_path_factory.mktemp("cluster") / "data"
    with running_cluster(directory, "--partitions", "2") as running:
        yield running


@pytest.fixture(scope="session")
def cluster(running: RunningCluster) -> str:
    """The coordinator's address of a cluster of two partitions."""
    return running.coordinator


@pytest.fixture(scope="session")
def started_spark() -> Iterator[SparkSession]:
    session = spark_session(
        "tests",
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": 2,
            **SHORT_LIVED,
        },
    )
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    yield session
    session.stop()


@pytest.fixture
def spark(started_spark: SparkSession) -> SparkSession:
    """The session, active in the Java thread of this one, which a lost connection replaces."""
    assert spark_session("tests") is started_spark
    return started_spark
