"""What is settled before Spark's Java process exists."""

from __future__ import annotations

import sys
from pathlib import Path

import pyspark

from tests.spark.test_java import full_java
from waltz.spark.session import overlay, prepare_environment


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
