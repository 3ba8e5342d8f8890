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
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.kafka_node import format_storage, java_command, node_command, properties
from bench.peers.peer import free_ports
from tests.tls_files import TlsFiles

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


@dataclass(frozen=True)
class Secured:
    """A broker that takes users with passwords over TLS only, and has them do what an ACL allows.

    passwords  of each user; `operator` may do everything, and is the broker itself, too.
    """

    tls: TlsFiles
    passwords: Mapping[str, str]

    def properties(self, clients: int, controller: int) -> dict[str, str]:
        users = " ".join(f'user_{name}="{word}"' for name, word in self.passwords.items())
        own = f'username="operator" password="{self.passwords["operator"]}"'
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        files = {
            "ssl.keystore.location": self.tls.issue("broker", "127.0.0.1"),
            "ssl.truststore.location": self.tls.authorities,
        }
        return {
            "listeners": f"CLIENTS://127.0.0.1:{clients},CONTROLLER://127.0.0.1:{controller}",
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENTS",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.clients.plain.sasl.jaas.config": f"{plain} {own} {users};",
            "ssl.keystore.type": "PEM",
            "ssl.truststore.type": "PEM",
            **files,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # The controller's port takes everybody: it stands for a network of its own.
            "super.users": "User:operator;User:ANONYMOUS",
        }

    def client(self, user: str) -> dict[str, str]:
        """Return the properties of librdkafka with which `user` connects."""
        return {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self.passwords[user],
            "ssl.ca.location": self.tls.authorities,
        }


class KafkaBroker:
    """One broker. Its log is beside its directory. `client` is how an operator connects."""

    def __init__(self, directory: Path, secured: Secured | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2)
        self.address = f"127.0.0.1:{ports[0]}"
        self.client = {"bootstrap.servers": self.address}
        more = dict(PROPERTIES)
        if secured is not None:
            more |= secured.properties(*ports)
            self.client |= secured.client("operator")
        self.log = directory / "broker.log"
        self._java = java_command(HEAP_MEGABYTES, *QUICK_START)
        self._file = directory / "broker.properties"
        self._file.write_text(properties(0, ports[:1], ports[1:], directory / "data", more))
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
        return AdminClient({**self.client, "log_level": 2})

    def create_topic(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic; a property's dots are underscores."""
        settings = {each.replace("_", "."): value for each, value in config.items()}
        topic = NewTopic(name, partitions, 1, config=settings)
        admin = self.admin()
        for made in admin.create_topics([topic]).values():
            made.result()


@contextmanager
def running_broker(directory: Path, secured: Secured | None = None) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(directory, secured)
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
