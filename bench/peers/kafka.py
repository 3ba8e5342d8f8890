"""Kafka: a topic with three replicas, synced by the system or before each answer.

The brokers come from Maven Central. The driver is confluent-kafka: with one in Python alone
(aiokafka) Python would be measured, and Kafka's clients in Java and C do more than that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from bench.peers.kafka_node import format_storage, java_command, node_command, properties
from bench.peers.peer import (
    LOADS,
    Load,
    Peer,
    UnavailableHereError,
    free_ports,
    say,
    summary,
    wait_for,
)

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

NODES = 3
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

    @property
    def servers(self) -> str:
        """The addresses of the nodes that run."""
        return self._servers

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        with self.nodes(directory, PARTITIONS):
            self.warm_up(WARM_UP_SECONDS)
            yield

    def warm_up(self, seconds: float) -> None:
        """Apply loads to the topics of `PARTITIONS`, for `seconds` each."""
        say(f"{self.name}: warming up")
        for load in WARM_UP:
            self.apply(load, seconds)

    @contextmanager
    def nodes(self, directory: Path, topics: Mapping[str, int]) -> Iterator[None]:
        """Run the nodes until the block ends; each of the topics has as many partitions as it
        says. Raises UnavailableHereError."""
        try:
            from confluent_kafka.admin import AdminClient
        except ModuleNotFoundError:
            reason = "no confluent_kafka: pip install confluent-kafka"
            raise UnavailableHereError(reason) from None
        java = java_command(512)
        ports = free_ports(2 * NODES)
        clients, controllers = ports[:NODES], ports[NODES:]
        self._servers = ",".join(f"127.0.0.1:{port}" for port in clients)
        log = directory / "log"
        with ExitStack() as stack:
            for number in range(NODES):
                file = directory / f"n{number}.properties"
                file.write_text(properties(number, clients, controllers, directory / f"n{number}"))
                format_storage(java, file)
                stack.enter_context(self.process(node_command(java, file), log))
            admin = AdminClient({"bootstrap.servers": self._servers, "log_level": LOG_CRITICAL})
            wait_for(lambda: has_topics(admin, topics, self.settings), self.name, log)
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


def has_topics(admin: AdminClient, topics: Mapping[str, int], settings: Mapping[str, str]) -> bool:
    """Return whether all topics, given with the number of their partitions, have all replicas in
    sync; create them once all nodes are there."""
    from confluent_kafka import KafkaException
    from confluent_kafka.cimpl import NewTopic

    try:
        found = admin.list_topics(timeout=ADMIN_SECONDS_MAX)
        if len(found.brokers) < NODES:
            return False
        config = {"min.insync.replicas": "2", **settings}
        missing = [
            NewTopic(name, partitions, NODES, config=config)
            for name, partitions in topics.items()
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
        for name in topics
        for partition in found.topics[name].partitions.values()
    )
