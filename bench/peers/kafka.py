"""Kafka: a topic with three replicas, synced by the system or before each answer.

The brokers come from Maven Central. The driver is confluent-kafka: with one in Python alone
(aiokafka) Python would be measured, and Kafka's clients in Java and C do more than that.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bench.peers.peer import (
    LOADS,
    Load,
    Peer,
    UnavailableHereError,
    free_ports,
    program,
    say,
    summary,
    wait_for,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NODES = 3
VERSION = "4.4.0"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
POM = f"""\
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
CLUSTER_ID = "d2FsdHotYmVuY2gtMDAwMA"
PARTITIONS: Final = {"log": 1, "batches": 4}
"""Partitions of each topic."""
ADMIN_SECONDS_MAX = 5.0
WARM_UP: Final = LOADS[1:3]
WARM_UP_SECONDS = 30.0
"""Seconds of warm-up: until Java has compiled the code that is called often, which takes more than
a minute of its processors' time, Kafka does a fifth of what it can."""
LOG_CRITICAL = 2


class Kafka(Peer):
    name = "Kafka, 3 replicas, acks=all"
    durability = (
        "in the memory of all in-sync replicas, at least two of three, synced by the operating"
        " system later: UNSYNCED"
    )
    driver = "C, librdkafka, called from Python"
    batching = "100 records produced together"
    settings: Mapping[str, str] = {}

    def __init__(self) -> None:
        super().__init__()
        self._servers = ""

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        try:
            from confluent_kafka.admin import AdminClient
        except ModuleNotFoundError:
            reason = "no confluent_kafka: pip install confluent-kafka"
            raise UnavailableHereError(reason) from None
        java = [
            *(program("java", "default-jre-headless"), "-Xms512m", "-Xmx512m"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", str(jars() / "*")),
        ]
        ports = free_ports(2 * NODES)
        clients, controllers = ports[:NODES], ports[NODES:]
        self._servers = ",".join(f"127.0.0.1:{port}" for port in clients)
        log = directory / "log"
        with ExitStack() as stack:
            for number in range(NODES):
                file = directory / f"n{number}.properties"
                file.write_text(properties(number, clients, controllers, directory / f"n{number}"))
                storage = ("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file))
                run([*java, *storage])
                stack.enter_context(self.process([*java, "kafka.Kafka", str(file)], log))
            admin = AdminClient({"bootstrap.servers": self._servers, "log_level": LOG_CRITICAL})
            wait_for(lambda: has_topics(admin, self.settings), self.name, log)
            say(f"{self.name}: warming up")
            for load in WARM_UP:
                self.apply(load, WARM_UP_SECONDS)
            yield

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": linger_milliseconds(load),
                "log_level": LOG_CRITICAL,
            }
        )
        topic = "log" if load.batch == 1 else "batches"
        for partition in range(PARTITIONS[topic]):  # it gets its connections and its ID with these
            producer.produce(topic, load.data, partition=partition)
        producer.flush()
        calls, taken, p50, p99 = keep_producing(producer, topic, load, seconds)
        return calls * load.batch, taken, p50, p99


class SyncedKafka(Kafka):
    name = "Kafka, 3 replicas, acks=all, flush.messages=1"
    durability = "in the logs of all in-sync replicas, at least two of three, each synced"
    settings: Mapping[str, str] = {"flush.messages": "1"}


class Produces(Protocol):
    """The methods of confluent_kafka.Producer that are needed."""

    def produce(
        self,
        topic: str,
        value: bytes,
        *,
        partition: int,
        on_delivery: Callable[[Any, Any], None],
    ) -> None: ...

    def poll(self, timeout: float) -> int: ...


def keep_producing(
    producer: Produces, topic: str, load: Load, seconds: float
) -> tuple[int, float, float, float]:
    """Keep the load's batches outstanding for `seconds`, by turns over the partitions; return
    batches, seconds, p50 and p99. The answer to a batch's last record begins the next batch."""
    data = load.data
    taken: list[float] = []
    begun = 0
    start = time.perf_counter()

    def begin() -> None:
        nonlocal begun
        partition = begun % PARTITIONS[topic]
        begun += 1
        began = time.perf_counter()
        left = load.batch

        def on_delivery(error: Any, _: Any) -> None:
            nonlocal left
            if error is not None:
                raise RuntimeError(f"a record is not in the log: {error}")
            left -= 1
            if left == 0:
                now = time.perf_counter()
                taken.append(now - began)
                if now < start + seconds:
                    begin()

        for _ in range(load.batch):
            producer.produce(topic, data, partition=partition, on_delivery=on_delivery)

    for _ in range(load.outstanding):
        begin()
    while len(taken) < begun:
        producer.poll(1.0)
    return summary(taken, time.perf_counter() - start)


def linger_milliseconds(load: Load) -> int:
    """Return for how long to wait for more of a batch: with the others it costs less to wait."""
    if load.outstanding == 1:
        return 0
    return 1 if load.batch == 1 else 5


def properties(
    number: int, clients: Sequence[int], controllers: Sequence[int], directory: Path
) -> str:
    """Return the file of a node that is broker and controller."""
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
    )


def has_topics(admin: AdminClient, settings: Mapping[str, str]) -> bool:
    """Return whether all topics have all replicas in sync; create them once all nodes are there."""
    from confluent_kafka import KafkaException
    from confluent_kafka.cimpl import NewTopic

    try:
        found = admin.list_topics(timeout=ADMIN_SECONDS_MAX)
        if len(found.brokers) < NODES:
            return False
        config = {"min.insync.replicas": "2", **settings}
        missing = [
            NewTopic(name, partitions, NODES, config=config)
            for name, partitions in PARTITIONS.items()
            if name not in found.topics
        ]
        if missing:
            for made in admin.create_topics(missing).values():
                made.result()
            return False
    except KafkaException:
        return False
    return all(
        len(partition.isrs) == NODES
        for name in PARTITIONS
        for partition in found.topics[name].partitions.values()
    )


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
