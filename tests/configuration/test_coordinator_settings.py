"""Where the metadata is, as every process may be told (CF-20, CF-46, CM-01, CM-05)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from waltz.configuration.coordinator_settings import ZOOKEEPER_ACCESS_KEYS, coordinator_address
from waltz.configuration.server_settings import server_settings
from waltz.configuration.settings import Given, Settings
from waltz.configuration.storage_settings import storage_settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import (
    OPEN_ACCESS,
    Address,
    CoordinatorAddress,
    Plain,
    TlsSettings,
    ZooKeeperAccess,
    ZooKeeperAcl,
    ZooKeeperAddress,
)

Judged = Callable[[Mapping[str, Given]], Settings]

STORAGE = "storage: {directory: d, bindAddress: '::', port: 7201, admin.port: 7202}\n"
SERVER = "server: {bindAddress: '::', port: 7300}\n"

each_process = pytest.mark.parametrize(
    ("judged", "others"), [(storage_settings, STORAGE), (server_settings, SERVER)]
)


def address_in(judged: Judged, content: str) -> CoordinatorAddress:
    return coordinator_address(judged(read_yaml(content, "node.yml")))


@each_process
def test_the_keys_of_the_original_say_where_its_zookeeper_is(judged: Judged, others: str) -> None:
    """CF-20, CF-46, CM-01, CM-05: the chroot is the beginning of the root."""
    content = others + (
        "zookeeper: {connectString: 'a:2182,b/c', sessionTimeout: 6000}\n"
        "cluster.root: /waltz_cluster\n"
    )
    settings = judged(read_yaml(content, "node.yml"))
    servers = (Address("a", 2182), Address("b", 2181))
    expected = ZooKeeperAddress(servers, "/c/waltz_cluster", 6000)
    assert coordinator_address(settings) == expected
    assert settings.warnings == ()
    shown = list(settings.lines())
    assert "zookeeper.connectString: a:2182,b:2181/c  # node.yml" in shown


@each_process
def test_a_connect_string_is_enough(judged: Judged, others: str) -> None:
    found = address_in(judged, others + "zookeeper.connectString: a:1")
    assert found == ZooKeeperAddress((Address("a", 1),), "/waltz", 30_000)


@each_process
def test_one_key_may_name_either_kind_of_coordinator(judged: Judged, others: str) -> None:
    assert address_in(judged, others + "coordinator.address: c:7100") == Address("c", 7100)
    servers = (Address("a", 1), Address("b", 2))
    found = address_in(judged, others + "coordinator.address: zookeeper://a:1,b:2/r")
    assert found == ZooKeeperAddress(servers, "/r")


@each_process
def test_one_coordinator_is_needed_and_two_are_one_too_many(judged: Judged, others: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        address_in(judged, others)
    said = "coordinator.address is missing; give it, or zookeeper.connectString, in the"
    assert said in str(raised.value)
    both = others + "coordinator.address: c:1\nzookeeper.connectString: a:1"
    with pytest.raises(ConfigurationError) as raised:
        address_in(judged, both)
    said = "coordinator.address (node.yml) and zookeeper.connectString (node.yml)"
    assert said in str(raised.value)


@each_process
def test_the_option_overrides_the_zookeeper_of_the_file(judged: Judged, others: str) -> None:
    given = read_yaml(others + "zookeeper.connectString: a:1\ncluster.root: /r", "node.yml")
    given["coordinator.address"] = Given(Address("b", 2), "--coordinator")
    assert coordinator_address(judged(given)) == Address("b", 2)


@each_process
def test_what_goes_with_the_other_way_is_reported(judged: Judged, others: str) -> None:
    content = others + "coordinator.address: c:1\ncluster.root: /r\nzookeeper.sessionTimeout: 9"
    root, session = sorted(judged(read_yaml(content, "node.yml")).warnings)
    said = "(node.yml) has no effect without zookeeper.connectString"
    assert root.startswith(f"cluster.root {said}")
    assert session.startswith(f"zookeeper.sessionTimeout {said}")


@each_process
def test_zookeeper_is_plain_and_whoever_wants_nothing_plain_is_told(
    judged: Judged, others: str
) -> None:
    """TS-03, CM-01."""
    part = "storage" if others == STORAGE else "server"
    secured = others + f"{part}.ssl.keyStore.location: own.pem\n"
    (warning,) = judged(read_yaml(secured + "zookeeper.connectString: a:1", "node.yml")).warnings
    assert warning.startswith("connections to ZooKeeper at a:1 are plain nevertheless")
    said = judged(read_yaml(secured + "coordinator.address: c:1", "node.yml")).warnings
    assert said == ()


ZOOKEEPERS = ("zookeeper.connectString: a:1\n", "coordinator.address: zookeeper://a:1/r\n")


@each_process
@pytest.mark.parametrize("place", ZOOKEEPERS)
def test_a_zookeeper_is_spoken_to_as_the_keys_say(judged: Judged, others: str, place: str) -> None:
    """CM-27: with either way to say where it is; no key, no TLS, no user, open nodes."""
    found = address_in(judged, others + place)
    assert isinstance(found, ZooKeeperAddress)
    assert found.access == OPEN_ACCESS
    more = (
        "zookeeper.client.secure: true\n"
        "zookeeper.ssl: {keyStore.location: me.pem, trustStore.location: ca.pem}\n"
        "zookeeper.auth: {user: me, password: secret}\n"
        "zookeeper.acl: Creator\n"
    )
    settings = judged(read_yaml(others + place + more, "node.yml"))
    found = coordinator_address(settings)
    assert isinstance(found, ZooKeeperAddress)
    tls = TlsSettings("me.pem", authorities="ca.pem", plain=Plain.NEVER)
    assert found.access == ZooKeeperAccess(tls, "me", "secret", ZooKeeperAcl.CREATOR)
    assert settings.warnings == ()
    assert "secret" not in "".join([*settings.lines(), repr(found), str(found)])


@each_process
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("zookeeper.ssl.trustStore.location: ca", "zookeeper.client.secure is not"),
        ("zookeeper.ssl.truststore.location: ca", "did you mean zookeeper.ssl.trustStore"),
        ("zookeeper.auth.user: me", "set both"),
        ("zookeeper.auth.password: secret", "set both"),
        ("zookeeper.auth: {user: 'a:b', password: secret}", "a colon"),
        ("zookeeper.auth.passphrase: secret", "zookeeper.auth.passphrase (node.yml) is not known"),
        ("zookeeper.acl: creator", "does not authenticate to ZooKeeper"),
        ("zookeeper.acl: closed", "expected open or creator"),
    ],
)
def test_half_of_what_is_needed_is_refused(
    judged: Judged, others: str, more: str, said: str
) -> None:
    """TS-03"""
    with pytest.raises(ConfigurationError) as refused:
        judged(read_yaml(others + ZOOKEEPERS[0] + more, "node.yml"))
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@each_process
def test_what_is_for_a_zookeeper_has_no_effect_with_another_coordinator(
    judged: Judged, others: str
) -> None:
    content = others + "coordinator.address: c:7100\nzookeeper.acl: open\n"
    (warning,) = judged(read_yaml(content, "node.yml")).warnings
    assert "zookeeper.acl (node.yml) has no effect: the coordinator is no ZooKeeper" in warning


def test_with_whom_no_tls_is_spoken_is_not_asked_of_a_zookeeper() -> None:
    names = [key.name for key in ZOOKEEPER_ACCESS_KEYS]
    assert len(names) == len(set(names))
    assert not any(name.endswith((".plain", ".algorithm")) for name in names)
    assert not any(key.option for key in ZOOKEEPER_ACCESS_KEYS)
