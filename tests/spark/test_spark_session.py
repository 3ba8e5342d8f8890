"""What is settled before Spark's Java process exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from tests.spark.test_java import full_java
from waltz.spark.spark_session import (
    ANYWHERE,
    LOCAL,
    decided_settings,
    overlay,
    own_settings,
    prepare_environment,
)


def test_the_overlay_leads_to_the_installed_spark(tmp_path: Path) -> None:
    installed = Path(pyspark.__file__).parent
    home = overlay(tmp_path)
    assert (home / "jars").resolve() == installed / "jars"
    assert (home / "bin" / "spark-submit").is_file()
    archives = list((home / "python" / "lib").iterdir())
    assert {path.name.split("-")[0].split(".")[0] for path in archives} == {"py4j", "pyspark"}
    # As folders they hold what the archives hold, with its byte code.
    assert all((path / "pyspark" / "__init__.py").is_file() for path in archives)
    assert "rootLogger.level = error" in (home / "conf" / "log4j2.properties").read_text()
    assert overlay(tmp_path) == home


def test_workers_run_on_this_python_and_the_session_stays_on_this_machine(tmp_path: Path) -> None:
    full_java(tmp_path / "jdk")
    environment = {"JAVA_HOME": str(tmp_path / "jdk")}
    prepare_environment(environment, tmp_path, local=True)
    assert environment == {
        "JAVA_HOME": str(tmp_path / "jdk"),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(overlay(tmp_path)),
    }


def test_on_a_cluster_spark_keeps_its_home_and_its_address(tmp_path: Path) -> None:
    full_java(tmp_path / "jdk")
    environment = {"JAVA_HOME": str(tmp_path / "jdk")}
    prepare_environment(environment, tmp_path, local=False)
    assert environment.keys() == {"JAVA_HOME", "PYSPARK_PYTHON"}


def test_what_the_user_has_set_stands(tmp_path: Path) -> None:
    full_java(tmp_path / "jdk")
    own = {
        "JAVA_HOME": str(tmp_path / "jdk"),
        "PYSPARK_PYTHON": "python3.11",
        "SPARK_LOCAL_IP": "10.0.0.1",
        "SPARK_HOME": "/opt/spark",
    }
    environment = dict(own)
    prepare_environment(environment, tmp_path, local=True)
    assert environment == own


def test_on_one_machine_what_nobody_has_decided_is_set() -> None:
    assert own_settings({}) == {"spark.master": "local[*]", **ANYWHERE, **LOCAL}
    decided = {"spark.master": "local[2]", "spark.driver.memory": "4g", "spark.ui.enabled": "true"}
    found = own_settings(decided)
    assert not found.keys() & decided.keys()
    assert found.keys() | decided.keys() == LOCAL.keys() | ANYWHERE.keys() | {"spark.master"}


def test_a_cluster_keeps_its_defaults() -> None:
    """F-18: neither memory nor logging nor the number of partitions is ours to say there."""
    assert own_settings({"spark.master": "spark://host:7077"}) == ANYWHERE


def test_checkpoints_are_kept_as_their_file_system_needs_it() -> None:
    """F-18: renaming, which is quick on a local disk, is no atomic step on an object store."""
    assert not [key for key in {**ANYWHERE, **LOCAL} if "checkpoint" in key.lower()]


def test_what_the_environment_decides_is_found(tmp_path: Path) -> None:
    assert decided_settings({}) == {}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(
        "# a comment\n\nspark.master   yarn\nspark.ui.enabled=true\nspark.driver.memory: 3g\n"
    )
    defaults = {"spark.master": "yarn", "spark.ui.enabled": "true", "spark.driver.memory": "3g"}
    assert decided_settings({"SPARK_HOME": str(tmp_path)}) == defaults
    assert decided_settings({"SPARK_CONF_DIR": str(tmp_path / "conf")}) == defaults
    arguments = (
        "--master local[3] --name 'the job' --conf spark.ui.enabled=false -c a.b=c=d"
        " --driver-memory 2g --packages x:y:1 pyspark-shell"
    )
    found = decided_settings({"SPARK_HOME": str(tmp_path), "PYSPARK_SUBMIT_ARGS": arguments})
    assert found == {
        "spark.master": "local[3]",
        "spark.app.name": "the job",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "a.b": "c=d",
    }
    properties = tmp_path / "other.conf"
    properties.write_text("spark.ui.enabled maybe\n")
    arguments = f"--properties-file {properties} pyspark-shell"
    found = decided_settings({"SPARK_HOME": str(tmp_path), "PYSPARK_SUBMIT_ARGS": arguments})
    assert found == {"spark.ui.enabled": "maybe"}


def test_a_master_for_a_session_of_connect_is_refused() -> None:
    """In a process of its own: this one may have a session, which would be taken."""
    code = (
        "from waltz.spark import spark_session\nspark_session('x', **{'spark.master': 'local[3]'})"
    )
    refused = subprocess.run(
        [sys.executable, "-c", code],
        env=dict(os.environ, SPARK_REMOTE="sc://127.0.0.1:1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        "waltz.errors.ConfigurationError: spark.master is local[3], and SPARK_REMOTE or"
        " spark.remote is sc://127.0.0.1:1; a session has one of them: unset SPARK_REMOTE, or"
        " leave spark.master out"
    )
