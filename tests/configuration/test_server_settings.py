"""A server's keys: names and defaults of the original, and what they mean together."""

from __future__ import annotations

import pytest

from waltz.configuration.server_settings import (
    ADVERTISED_ADDRESS,
    CHECKPOINT_INTERVAL,
    FEED_CACHE_SIZE,
    LOCK_TABLE_SIZE,
    MIN_FETCH_SIZE,
    PREFERRED_PARTITIONS,
    SERVER_KEYS,
    SHUTDOWN_TIMEOUT,
    TLS,
    advertised_address,
    client_address,
    http_address,
    server_settings,
    storage_tls,
)
from waltz.configuration.settings import Given, Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import Address, TlsSettings

LEAST = {"coordinator.address": "127.0.0.1:7100", "server.port": 7000}


def settings(**changes: object) -> Settings:
    given = LEAST | {name.replace("__", "."): value for name, value in changes.items()}
    return server_settings({name: Given(value, "test") for name, value in given.items()})


def test_defaults_are_those_of_the_original() -> None:
    """CF-23 to CF-25, CF-33, CF-112."""
    least = settings()
    assert least[LOCK_TABLE_SIZE] == 30_000
    assert least[FEED_CACHE_SIZE] == 67_108_864
    assert least[MIN_FETCH_SIZE] == 100
    assert least[CHECKPOINT_INTERVAL] == 250_000, "CF-32"
    assert least[SHUTDOWN_TIMEOUT] == 30.0
    assert http_address(least) is None
    assert least.warnings == ()


def test_advertised_address_is_apart_from_the_bound_one() -> None:
    """SV-02, CF-110."""
    everywhere = settings(server__bindAddress="0.0.0.0")
    assert client_address(everywhere) == Address("0.0.0.0", 7000)
    assert advertised_address(everywhere, "me.example") == Address("me.example", 7000)
    bound = settings(server__bindAddress="10.0.0.1")
    assert advertised_address(bound, "me.example") == Address("10.0.0.1", 7000)
    mapped = settings(server__bindAddress="::", server__advertisedAddress="outside:47000")
    assert (
        mapped[ADVERTISED_ADDRESS] == advertised_address(mapped, "x") == Address("outside", 47000)
    )


def test_http_listens_where_clients_do_unless_told_otherwise() -> None:
    with_port = settings(server__jetty__port=7001, server__bindAddress="10.0.0.1")
    assert http_address(with_port) == Address("10.0.0.1", 7001)
    apart = settings(server__jetty__port=7001, server__jetty__bindAddress="127.0.0.1")
    assert http_address(apart) == Address("127.0.0.1", 7001)


def test_two_purposes_need_two_ports() -> None:
    """CF-36."""
    with pytest.raises(ConfigurationError, match=r"server\.port and server\.jetty\.port"):
        settings(server__jetty__port=7000)


@pytest.mark.parametrize(
    ("value", "expected"), [([1, 3], (1, 3)), ("0, 2", (0, 2)), (5, (5,)), ([], ())]
)
def test_preferred_partitions_are_a_list(value: object, expected: tuple[int, ...]) -> None:
    """SV-25."""
    assert settings(server__preferredPartitions=value)[PREFERRED_PARTITIONS] == expected


@pytest.mark.parametrize("value", [[-1], "a", [True], [1.5]])
def test_what_is_no_partition_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="preferredPartitions"):
        settings(server__preferredPartitions=value)


def test_keys_of_the_original_without_effect_are_reported() -> None:
    """CF-22, CF-26 to CF-31, CF-35."""
    found = settings(
        server__region="eu",
        server__realtimeThreshold=1000,
        server__transactionDataCacheSize=1,
        server__transactionDataCacheAllocation="heap",
        storage__maxBatchSize=100,
        storage__initialRetryInterval=100,
        storage__maxRetryInterval=20_000,
        server__graphite__hostname="g",
    )
    assert len(found.warnings) == 8
    assert "server.jetty.port" in found.warnings[-1]


def test_every_key_is_declared_once() -> None:
    names = [key.name for key in SERVER_KEYS]
    assert len(set(names)) == len(names)
    assert {"server.ssl.keyStore.location", "server.graphite.port"} <= set(names)


def test_tls_is_configured_below_server_ssl() -> None:
    """CF-34, TS-03: half of it, or a misspelt key, keeps a server from starting."""
    found = settings(
        server__ssl__keyStore__location="server.pem", server__ssl__trustStore__location="ca.pem"
    )
    expected = TlsSettings("server.pem", authorities="ca.pem")
    assert tls_settings(found, TLS, listens=True) == expected
    with pytest.raises(ConfigurationError, match=r"server\.ssl\.keyStore\.location is not"):
        settings(server__ssl__trustStore__location="ca.pem")
    with pytest.raises(ConfigurationError, match=r"did you mean server\.ssl\.keyStore\.location"):
        settings(server__ssl__keystore__location="server.pem")


def faults_of(content: str) -> list[str]:
    with pytest.raises(ConfigurationError) as raised:
        server_settings(read_yaml(content, "server.yml"))
    first, *others = str(raised.value).split("\n  ")
    return others or [first]


def test_all_faults_are_named_at_once_whatever_their_kind() -> None:
    """F-34: a wrong type, a port used twice, half of a certificate and half of a user."""
    found = faults_of(
        """\
zookeeper: {connectString: "zoo:2181", auth.user: me}
cluster.root: /c
server.port: 7000
server.jetty.port: 7000
server.feedCacheSize: many
server.ssl.keyStore.password: sesame
server.storage.ssl.keyStore.location: node.pem
"""
    )
    assert len(found) == 6
    told = "\n".join(found)
    for expected in (
        "server.feedCacheSize (server.yml) is 'many'",
        "server.port and server.jetty.port are the same port",
        "server.ssl.keyStore.password is set and server.ssl.keyStore.location is not",
        "server.storage.ssl.keyStore.location is set and server.storage.ssl.trustStore.location",
        "only one of zookeeper.auth.user and zookeeper.auth.password is set",
        "server.bindAddress is not set",
    ):
        assert expected in told


def test_what_was_refused_is_not_said_to_be_missing_too() -> None:
    """F-34: one mistake, one fault."""
    (found,) = faults_of(
        """\
coordinator.address: 127.0.0.1:7100
server.port: 7000
server.ssl: {keyStore: {location: [1], keyLocation: node.key}}
"""
    )
    assert "server.ssl.keyStore.location (server.yml) is [1]" in found


def test_the_way_to_storage_nodes_may_have_certificates_of_its_own() -> None:
    """TS-04: the server of the original shares one setting."""
    shared = settings(server__ssl__keyStore__location="node.pem")
    assert storage_tls(shared) is None, "one for both unless told otherwise"
    apart = {
        "server__storage__ssl__keyStore__location": "inner.pem",
        "server__storage__ssl__trustStore__location": "inner-ca.pem",
    }
    own = settings(server__ssl__keyStore__location="node.pem", **apart)
    assert storage_tls(own) == TlsSettings("inner.pem", authorities="inner-ca.pem")
    assert tls_settings(own, TLS, listens=True) == TlsSettings("node.pem")
