"""Spark and the connectors of the league on Spark: got once, checked, kept in the user's cache.

The connectors are built for Spark 4.2, the newest one for which Maven Central has Spark's Kafka
source and Delta. Delta's does not run on Spark 4.3, whose plans it makes by a constructor that 4.3
has no more; the Kafka source does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Final

from bench.peers.kafka_node import COPY, run
from bench.peers.peer import UnavailableHereError, program, say

SPARK_VERSION: Final = "4.2.0"
SPARK_SHA256: Final = "5ad689d53570ee1674193fd4f9bda065f0db3be9363a27d2a3406cc457b70b61"
"""The hash of PySpark's archive at PyPI, which has Spark's own jars."""

Artifact = tuple[str, str, str]
"""Group, name and version of a jar in Maven Central."""

KAFKA_JARS: Final[Mapping[Artifact, str]] = {
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"): (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.2.0"): (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
    ("org.apache.kafka", "kafka-clients", "3.9.2"): (
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8"
    ),
    ("org.apache.commons", "commons-pool2", "2.13.1"): (
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f"
    ),
}
"""Spark's Kafka source and what it needs beyond Spark's own jars, each with its SHA-256."""

DELTA_JARS: Final[Mapping[Artifact, str]] = {
    ("io.delta", "delta-spark_4.2_2.13", "4.4.0"): (
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead"
    ),
    ("io.delta", "delta-storage", "4.4.0"): (
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
    ),
    ("io.delta", "delta-kernel-api", "4.4.0"): (
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
    ),
    ("io.delta", "delta-kernel-defaults", "4.4.0"): (
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
    ),
}
"""Delta's connector and what it needs beyond Spark's own jars, each with its SHA-256."""

DEPENDENCY: Final = """\
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
    </dependency>
"""
POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>waltz</groupId>
  <artifactId>bench-{name}</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""


def cached(name: str) -> Path:
    """Return the place of this name in the user's cache; its directory exists."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "waltz-bench"
    cache.mkdir(parents=True, exist_ok=True)
    return cache / name


def jars(name: str, wanted: Mapping[Artifact, str]) -> list[Path]:
    """Return the jars, which Maven gets the first time, into a directory of this name.

    Raises UnavailableHereError: Maven is missing or gets nothing, or a jar is another one than its
    SHA-256 says.
    """
    directory = cached(f"spark-{SPARK_VERSION}-{name}")
    if not directory.exists():
        maven = program("mvn", "maven")
        pom = directory.with_name(f"{directory.name}.xml")
        dependencies = "".join(DEPENDENCY.format(*each) for each in wanted)
        pom.write_text(POM.format(name=name, dependencies=dependencies))
        unfinished = directory.with_name(f"{directory.name}-unfinished")
        say(f"{name}: getting the jars of its connector with Maven")
        run([maven, "-q", "-B", COPY, "-f", str(pom), f"-DoutputDirectory={unfinished}"])
        unfinished.rename(directory)
    found = {directory / f"{each[1]}-{each[2]}.jar": digest for each, digest in wanted.items()}
    for path, digest in found.items():
        expect_digest(path, digest)
    return list(found)


def expect_digest(path: Path, digest: str) -> None:
    """Check a file. Raises UnavailableHereError: it is missing, or another one."""
    if not path.exists():
        raise UnavailableHereError(f"{path} is missing: remove its directory and run again")
    found = sha256(path.read_bytes()).hexdigest()
    if found != digest:
        raise UnavailableHereError(
            f"{path} has the SHA-256 {found}, expected {digest}: remove its directory and run again"
        )


def use_spark(module: str) -> None:
    """Return if this process has Spark of the league; otherwise run the module anew in its place,
    with the same arguments and that Spark, which pip gets the first time. Raises
    UnavailableHereError: pip gets nothing."""
    if version("pyspark") == SPARK_VERSION:
        return
    directory = cached(f"pyspark-{SPARK_VERSION}")
    if not directory.exists():
        needed = directory.with_name(f"{directory.name}.txt")
        needed.write_text(f"pyspark=={SPARK_VERSION} --hash=sha256:{SPARK_SHA256}\n")
        unfinished = directory.with_name(f"{directory.name}-unfinished")
        say(f"Spark: getting {SPARK_VERSION} with pip, 430 MB")
        options = ("--quiet", "--no-deps", "--no-build-isolation", "--require-hashes", "--upgrade")
        place = ("--target", str(unfinished), "--requirement", str(needed))
        run([sys.executable, "-m", "pip", "install", *options, *place])
        unfinished.rename(directory)
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execve(sys.executable, command, {**measured_environment(os.environ), "PYTHONPATH": path})


def measured_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of what is measured: without the jars of another Spark, and with
    Python's modules compiled once, as those of an installed package are."""
    # Where compiled modules must not be kept, each process of Spark's compiles them again: Spark's
    # own, too, which pip leaves as they are in that case.
    left_out = ("SPARK_HOME", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in environment.items() if name not in left_out}
    return {"PYTHONPYCACHEPREFIX": str(cached("bytecode")), **kept}
