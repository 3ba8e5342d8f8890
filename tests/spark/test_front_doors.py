"""README's program runs through every door: spark-submit, Connect, a session that is there."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import waltz
from tests.clusters import ROOT, RunningCluster
from tests.spark.short_sessions import JAVA_OPTIONS
from waltz.spark.cache import cache_directory
from waltz.spark.java import packaged_java, settle_java

SECONDS_MAX = 300.0
SCRIPTS = Path(sysconfig.get_path("scripts"))
SUBMIT = (str(SCRIPTS / "spark-submit"),)
PROGRAM = (str(ROOT / "tests" / "spark" / "front_doors.py"),)
MODULE = (sys.executable, "-m", "tests.spark.front_doors")
ZONE = "spark.sql.session.timeZone"

pytestmark = [pytest.mark.spark, pytest.mark.processes]


def environment(**more: str) -> dict[str, str]:
    """Return this one without what a Spark session of the tests may have left in it, and with
    options for every Java."""
    ours = ("SPARK_", "PYSPARK_", "JAVA_HOME")
    theirs = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return theirs | {"JDK_JAVA_OPTIONS": JAVA_OPTIONS} | more


def run(running: RunningCluster, arguments: tuple[str, ...], **more: str) -> dict[str, Any]:
    """Run the program; return what it prints. Its rows must be those of the log."""
    with waltz.open_client(running.coordinator, waltz.NoCallbacks()) as client:
        client.append(0, b"a row")
        client.append(1, b"a row")
    program = subprocess.run(
        arguments,
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert program.returncode == 0, program.stderr[-4000:]
    with waltz.open_reader(running.coordinator) as log:
        rows = sum(log.high_water_mark(each) + 1 for each in range(log.partition_count))
    found: dict[str, Any] = json.loads(program.stdout.splitlines()[-1])
    assert "|partition|count|" in program.stdout
    assert found.pop("rows") == rows
    return found


@contextmanager
def connect_port() -> Iterator[None]:
    """Keep port 15002 for this test: every server of Connect that Spark starts by itself takes it,
    and the machine may run several tests at a time."""
    with Path(tempfile.gettempdir(), "waltz-tests-15002.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def java_home() -> str:
    cache = cache_directory(Path(sys.prefix), Path(tempfile.gettempdir()))
    return str(settle_java(environment(), cache, packaged=packaged_java()))


@pytest.mark.parametrize(
    "master", ["local[1]", pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.long)]
)
def test_spark_submit_decides_and_the_program_runs(running: RunningCluster, master: str) -> None:
    """F-18."""
    arguments = ("--master", master, "--name", "submitted", "--conf", f"{ZONE}=Asia/Tokyo")
    found = run(
        running,
        (*SUBMIT, *arguments, *PROGRAM, running.coordinator),
        JAVA_HOME=java_home(),
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=str(ROOT),
    )
    assert found == {
        ZONE: "Asia/Tokyo",
        "master": master,
        "app": "submitted",
        "is_theirs": False,
        "kind": "pyspark.sql.session",
    }


@pytest.mark.long
def test_a_session_that_is_there_is_taken_as_it_is(running: RunningCluster) -> None:
    theirs = {"JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable}
    found = run(running, (*MODULE, running.coordinator, "existing"), **theirs)
    assert found == {
        ZONE: "Asia/Tokyo",
        "master": "local[1]",
        "app": "theirs",
        "is_theirs": True,
        "kind": "pyspark.sql.session",
    }


@pytest.mark.long
def test_a_session_of_spark_connect_reads_and_writes(running: RunningCluster) -> None:
    with connect_port():
        found = run(running, (*MODULE, running.coordinator), SPARK_REMOTE="local[1]")
    assert found == {
        ZONE: "UTC",
        "is_theirs": False,
        "kind": "pyspark.sql.connect.session",
    }


@pytest.mark.long
def test_arguments_in_the_environment_decide(running: RunningCluster) -> None:
    arguments = f"--master local[1] --conf {ZONE}=Asia/Tokyo --name named pyspark-shell"
    found = run(running, (*MODULE, running.coordinator), PYSPARK_SUBMIT_ARGS=arguments)
    assert (found["master"], found[ZONE], found["app"]) == ("local[1]", "Asia/Tokyo", "named")
