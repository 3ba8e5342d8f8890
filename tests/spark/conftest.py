"""A real cluster and a Spark session, each started once, and only where a test asks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from waltz.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS_MAX = 60


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The coordinator's address of a cluster of two partitions."""
    directory: Path = tmp_path_factory.mktemp("cluster") / "data"
    command = ["up", "--directory", str(directory), "--partitions", "2", "--port", "0"]
    process = subprocess.Popen([sys.executable, "-m", "waltz.cli.main", *command])
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        state = {"ready": False}
        while not state["ready"]:
            assert process.poll() is None, "the cluster ended"
            assert time.monotonic() < deadline, "the cluster is not ready"
            time.sleep(0.1)
            if (directory / "cluster.json").exists():
                state = json.loads((directory / "cluster.json").read_text())
        yield str(state["coordinator"])
    finally:
        process.terminate()
        process.wait(START_SECONDS_MAX)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = spark_session(
        "tests",
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.extraJavaOptions": "-Xss16m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    yield session
    session.stop()
