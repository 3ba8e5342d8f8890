"""`waltz bridge kafka` at a broker that takes users with passwords over TLS only, and has an ACL.

With the rights that the page names the bridge sends everything; without one it says which."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

import waltz
from tests.bridge.kafka_broker import KafkaBroker, Secured, running_broker
from tests.bridge.kafka_kills import kafka_configuration
from tests.bridge.test_kafka_calls_shell import committed
from tests.cli.test_bridge_kafka import bridging
from tests.clusters import RunningCluster, run_waltz, running_cluster, wait_until
from tests.tls_files import TlsFiles

pytestmark = pytest.mark.long

Right = tuple[ResourceType, str, ResourcePatternType, AclOperation]

TOPIC, PROGRESS = "orders", "orders.waltz-progress"
EXACT, PREFIX = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
DESCRIBE = AclOperation.DESCRIBE
CREATE: Right = (ResourceType.TOPIC, PROGRESS, EXACT, AclOperation.CREATE)
NOTHING_TAKEN = f"topic {TOPIC} or {PROGRESS} takes nothing: "
RIGHTS: dict[Right, str] = {
    (ResourceType.TOPIC, TOPIC, EXACT, AclOperation.WRITE): NOTHING_TAKEN,
    (ResourceType.TOPIC, TOPIC, EXACT, AclOperation.DESCRIBE_CONFIGS): "of topic orders: ",
    (ResourceType.TOPIC, PROGRESS, EXACT, AclOperation.WRITE): NOTHING_TAKEN,
    (ResourceType.TOPIC, PROGRESS, EXACT, AclOperation.DESCRIBE_CONFIGS): (
        "of topic orders.waltz-progress: "
    ),
    (ResourceType.TOPIC, PROGRESS, EXACT, AclOperation.READ): "the progress cannot be read: ",
    (ResourceType.TRANSACTIONAL_ID, "waltz-bridge.test", PREFIX, AclOperation.WRITE): (
        "a producer cannot begin: "
    ),
    (ResourceType.GROUP, "waltz-bridge.test", EXACT, AclOperation.READ): (
        "the progress cannot be read: "
    ),
}
"""Those that docs/bridge-kafka.md names, and what is said without one."""

KINDS = {
    ResourceType.TOPIC: "TOPIC",
    ResourceType.TRANSACTIONAL_ID: "TRANSACTIONAL_ID",
    ResourceType.GROUP: "GROUP",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """One partition with 20 transactions."""
    directory = tmp_path_factory.mktemp("bridge") / "secured"
    with running_cluster(directory, "--partitions", "1") as cluster:
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            client.append_many(0, [b"%d" % number for number in range(20)])
        yield cluster


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Secured:
    passwords = {"operator": "operator-secret", "bridge": "bridge-secret"}
    return Secured(TlsFiles(tmp_path_factory.mktemp("tls")), passwords)


@pytest.fixture
def broker(secured: Secured, tmp_path: Path) -> Iterator[KafkaBroker]:
    with running_broker(tmp_path / "broker", secured) as broker:
        broker.create_topic(TOPIC, 1)
        yield broker


def binding(right: Right) -> AclBinding:
    kind, name, pattern, operation = right
    allow = AclPermissionType.ALLOW
    return AclBinding(kind, name, pattern, "User:bridge", "*", operation, allow)


def grant(broker: KafkaBroker, rights: Iterable[Right]) -> None:
    admin = broker.admin()
    for done in admin.create_acls([binding(each) for each in rights]).values():
        done.result()


def revoke(broker: KafkaBroker, right: Right) -> None:
    kind, name, pattern, operation = right
    allow = AclPermissionType.ALLOW
    wanted = AclBindingFilter(kind, name, pattern, "User:bridge", "*", operation, allow)
    admin = broker.admin()
    (done,) = admin.delete_acls([wanted]).values()
    assert len(done.result()) == 1


def configuration(
    directory: Path, cluster: RunningCluster, broker: KafkaBroker, secured: Secured, *more: str
) -> Path:
    password = directory / "password"
    password.write_text(secured.passwords["bridge"])
    known = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "bridge",
        "sasl.passwordFile": str(password),
        "ssl.ca.location": secured.tls.authorities,
    }
    lines = [f"{name}: {value}" for name, value in known.items()]
    return kafka_configuration(directory, cluster.coordinator, broker.address, TOPIC, *lines, *more)


def says(log: Path, reason: re.Pattern[str]) -> bool:
    return reason.search(log.read_text()) is not None


def has(broker: KafkaBroker, values: list[bytes]) -> bool:
    return committed(broker, TOPIC) == values


def test_with_the_rights_of_the_page_all_is_sent_and_without_one_the_bridge_says_which(
    cluster: RunningCluster, secured: Secured, broker: KafkaBroker, tmp_path: Path
) -> None:
    file = configuration(tmp_path, cluster, broker, secured)
    grant(broker, [*RIGHTS, CREATE])
    done = run_waltz("bridge", "kafka", str(file), "--once")
    assert (done.returncode, "posted 20 transactions in" in done.stdout) == (0, True), done.stderr
    revoke(broker, CREATE)  # the progress has its topic
    # Without it a topic that may not be written to cannot be looked up either.
    grant(broker, [(ResourceType.TOPIC, each, EXACT, DESCRIBE) for each in (TOPIC, PROGRESS)])
    log = tmp_path / "log"
    expected = [b"%d" % number for number in range(20)]
    for number, (right, said) in enumerate(RIGHTS.items()):
        revoke(broker, right)
        with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
            client.append(0, b"%d" % number)
        with bridging(file, log) as bridge:
            reason = re.compile(f"{said}.*{KINDS[right[0]]}_AUTHORIZATION_FAILED")
            wait_until(partial(says, log, reason), f"not said: {said}")
            assert bridge.poll() is None, "what is missing may be granted"
            grant(broker, [right])
            expected.append(b"%d" % number)
            wait_until(partial(has, broker, expected), "it does not resume")


def test_a_wrong_password_and_an_unknown_authority_are_named_as_such(
    cluster: RunningCluster, secured: Secured, broker: KafkaBroker, tmp_path: Path
) -> None:
    file = configuration(tmp_path, cluster, broker, secured)
    log = tmp_path / "log"
    file.write_text(file.read_text() + "    timeout: 3\n")
    (tmp_path / "password").write_text("another")
    with bridging(file, log):
        wait_until(lambda: "SASL authentication error" in log.read_text(), "not told")
    other = TlsFiles(tmp_path).authorities
    (tmp_path / "password").write_text(secured.passwords["bridge"])
    file.write_text(file.read_text().replace(secured.tls.authorities, other))
    with bridging(file, log):
        wait_until(lambda: "certificate verify failed" in log.read_text(), "not told")
    assert secured.passwords["bridge"] not in log.read_text()
