"""A broker of Kafka for tests: one node that is broker and controller, with a directory and a port
that it keeps when it is started again.

python -m tests.bridge.kafka_broker DIRECTORY     # runs one by hand, and prints its address
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.kafka_node import format_storage, java_command, node_command, properties
from bench.peers.peer import free_ports

HEAP_MEGABYTES = 256
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""Java compiles less well and sooner: a broker of a test lives for seconds."""

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
CALL_SECONDS_MAX = 1.0

PROPERTIES: Mapping[str, str] = {
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # A broker that is started again is refused until its former session has expired.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class KafkaBroker:
    """One broker. Its log is beside its directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2)
        self.address = f"127.0.0.1:{ports[0]}"
        self.log = directory / "broker.log"
        self._java = java_command(HEAP_MEGABYTES, *QUICK_START)
        self._file = directory / "broker.properties"
        self._file.write_text(properties(0, ports[:1], ports[1:], directory / "data", PROPERTIES))
        format_storage(self._java, self._file)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return once the broker answers."""
        with self.log.open("ab") as written:
            self._process = subprocess.Popen(
                node_command(self._java, self._file), stdout=written, stderr=written
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                if self.admin().list_topics(timeout=CALL_SECONDS_MAX).brokers:
                    return
            except KafkaException:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
            time.sleep(0.1)

    def stop(self) -> None:
        """End it as an operator does."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic; a property's dots are underscores."""
        settings = {each.replace("_", "."): value for each, value in config.items()}
        topic = NewTopic(name, partitions, 1, config=settings)
        admin = self.admin()
        for made in admin.create_topics([topic]).values():
            made.result()


@contextmanager
def running_broker(directory: Path) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(directory)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def main(directory: str) -> None:
    with running_broker(Path(directory)) as broker:
        print(broker.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
