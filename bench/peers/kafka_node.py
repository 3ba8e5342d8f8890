"""A node of Kafka: its jars from Maven Central, its configuration, its commands.

Shared by the benchmark of peers and the tests of the bridge to Kafka. Imports no driver.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.peers.peer import UnavailableHereError, program, say

VERSION: Final = "4.4.0"
COPY: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>waltz</groupId>
  <artifactId>bench-kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""
CLUSTER_ID: Final = "d2FsdHotYmVuY2gtMDAwMA"


def java_command(heap_megabytes: int, *options: str) -> list[str]:
    """Return the start of each command of Kafka. Raises UnavailableHereError: no Java, no Maven, or
    Maven gets nothing."""
    return [
        program("java", "default-jre-headless"),
        *(f"-Xms{heap_megabytes}m", f"-Xmx{heap_megabytes}m", *options),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *("-cp", str(jars() / "*")),
    ]


def format_storage(java: Sequence[str], file: Path) -> None:
    """Prepare the directory of the node of this configuration file. Raises UnavailableHereError."""
    run([*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)])


def node_command(java: Sequence[str], file: Path) -> list[str]:
    """Return the command that runs the node of this configuration file."""
    return [*java, "kafka.Kafka", str(file)]


def properties(
    number: int,
    clients: Sequence[int],
    controllers: Sequence[int],
    directory: Path,
    more: Mapping[str, str] | None = None,
) -> str:
    """Return the file of a node that is broker and controller; `more` are other properties."""
    voters = ",".join(f"{each}@127.0.0.1:{port}" for each, port in enumerate(controllers))
    return (
        f"node.id={number}\n"
        "process.roles=broker,controller\n"
        f"controller.quorum.voters={voters}\n"
        "controller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://127.0.0.1:{clients[number]},"
        f"CONTROLLER://127.0.0.1:{controllers[number]}\n"
        f"log.dirs={directory}\n"
        "controlled.shutdown.enable=false\n"
    ) + "".join(f"{name}={value}\n" for name, value in (more or {}).items())


def jars() -> Path:
    """Return a directory with the jars; Maven gets them the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "waltz-bench" / f"kafka-{VERSION}"
    found = directory / "jars"
    if not found.exists():
        maven = program("mvn", "maven")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "pom.xml").write_text(POM)
        unfinished = directory / "unfinished"
        where = ("-f", str(directory / "pom.xml"), f"-DoutputDirectory={unfinished}")
        say(f"Kafka: getting {VERSION} with Maven")
        run([maven, "-q", "-B", COPY, *where, "-DincludeScope=runtime"])
        unfinished.rename(found)
    return found


def run(command: Sequence[str]) -> None:
    """Run a command. Raises UnavailableHereError with the end of its output."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        said = " ".join(done.stdout.split())
        raise UnavailableHereError(f"{Path(command[0]).name}: {said[-300:]}")
