"""The keys of a storage node, alone and together (CF-36, CF-40 to CF-48, CF-60 to CF-68)."""

from __future__ import annotations

import pytest

from waltz.configuration.settings import Settings
from waltz.configuration.storage_settings import (
    DIRECTORY,
    SEGMENT_CACHE,
    SEGMENT_THRESHOLD,
    SHUTDOWN_TIMEOUT,
    STORAGE_KEYS,
    TLS,
    admin_address,
    advertised_address,
    data_address,
    http_address,
    storage_settings,
)
from waltz.configuration.tls_settings import tls_settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import Address, TlsSettings

LEAST = """\
storage.directory: /var/lib/waltz
storage.port: 7201
storage.admin.port: 7202
coordinator.address: 127.0.0.1:7100
"""


def settings_of(content: str) -> Settings:
    return storage_settings(read_yaml(content, "node.yml"))


def fault(content: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        settings_of(content)
    return str(raised.value)


def test_four_keys_are_enough() -> None:
    settings = settings_of(LEAST)
    assert settings[DIRECTORY] == "/var/lib/waltz"
    assert data_address(settings) == Address("127.0.0.1", 7201)
    assert admin_address(settings) == Address("127.0.0.1", 7202)
    assert http_address(settings) is None
    assert advertised_address(settings, "node-1.example") == Address("127.0.0.1", 7201)
    assert settings[SEGMENT_THRESHOLD] == 1_000_000_000
    assert settings[SEGMENT_CACHE] == 5
    assert settings[SHUTDOWN_TIMEOUT] == 30
    assert settings.warnings == ()


@pytest.mark.parametrize(
    "name",
    ["storage.directory", "storage.port", "storage.admin.port", "coordinator.address"],
)
def test_each_required_key_is_missed_by_its_name(name: str) -> None:
    rest = "\n".join(line for line in LEAST.splitlines() if not line.startswith(name))
    assert f"{name} is missing" in fault(rest)


def test_all_ports_listen_where_the_data_port_does_unless_told_otherwise() -> None:
    """CF-110: bound and advertised addresses are settings of their own."""
    settings = settings_of(
        LEAST + "storage.bindAddress: 10.0.0.1\nstorage.advertisedAddress: node-1:7201\n"
        "storage.jetty.port: 7203\n"
    )
    assert data_address(settings) == Address("10.0.0.1", 7201)
    assert admin_address(settings) == Address("10.0.0.1", 7202)
    assert http_address(settings) == Address("10.0.0.1", 7203)
    assert advertised_address(settings, "other") == Address("node-1", 7201)
    apart = settings_of(
        LEAST + 'storage: {admin: {bindAddress: 10.0.0.2}, jetty: {port: 7203, bindAddress: "::1"}}'
    )
    bound = settings_of(LEAST + "storage.bindAddress: 10.0.0.1")
    assert advertised_address(bound, "other") == Address("10.0.0.1", 7201)
    assert admin_address(apart) == Address("10.0.0.2", 7202)
    assert http_address(apart) == Address("::1", 7203)


@pytest.mark.parametrize("key", ["storage.admin.port", "storage.jetty.port"])
def test_one_port_twice_names_both_keys(key: str) -> None:
    """CF-36."""
    content = "\n".join(line for line in LEAST.splitlines() if not line.startswith(key))
    said = fault(f"{content}\n{key}: " + ("7201" if "admin" in key else "7202"))
    assert key in said
    assert "are the same port" in said
    assert "720" not in said


def test_tls_is_configured_below_storage_ssl() -> None:
    """CF-47, CF-60, CF-61."""
    settings = settings_of(
        f"{LEAST}storage.ssl:\n  keyStore.location: node.pem\n  keyStore.password: sesame\n"
        "  trustStore.location: ca.pem\n"
    )
    assert tls_settings(settings, TLS, listens=True) == TlsSettings(
        "node.pem", password="sesame", authorities="ca.pem"
    )
    assert "sesame" not in "".join(settings.lines())


def test_half_of_tls_is_refused() -> None:
    """TS-03."""
    said = fault(f"{LEAST}storage.ssl.trustStore.location: ca.pem")
    assert "storage.ssl.keyStore.location is not" in said


def test_graphite_is_a_warning() -> None:
    """CF-48, CF-64 to CF-68."""
    content = LEAST + (
        "storage.graphite: {hostname: g, port: 2003, prefix: waltz, reportIntervalMs: 60,"
        " useUdp: false}"
    )
    warnings = settings_of(content).warnings
    assert len(warnings) == 5
    assert all("not sent to Graphite" in warning for warning in warnings)


@pytest.mark.parametrize(
    "line",
    [
        "storage.segment.size.threshold: 0",
        "storage.segment.size.threshold: 1 GB",
        "storage.segment.cache.capacity: 0",
        "storage.shutdownTimeout: 0",
        "storage.shutdownTimeout: 30000",
        "storage.jetty.port: 99999",
        "storage.bindAddress: 10.0.0.1:7201",
        "storage.advertisedAddress: node",
        "zookeeper.connectString: 'a:1,'",
        "zookeeper.connectString: 'a:1/r?sessionTimeout=x'",
        "zookeeper.sessionTimeout: 0",
        "cluster.root: waltz",
        "cluster.root: /waltz/",
    ],
)
def test_values_out_of_range_are_refused(line: str) -> None:
    assert f"{line.split(':')[0]} (node.yml) is" in fault(LEAST + line)


def test_a_password_of_a_key_that_is_served_would_be_declared_secret() -> None:
    assert all(key.secret == ("password" in key.name.lower()) for key in STORAGE_KEYS)


def test_every_key_says_what_it_is_for() -> None:
    names = [key.name for key in STORAGE_KEYS]
    assert len(set(names)) == len(names)
    for key in STORAGE_KEYS:
        assert key.description.endswith("."), key.name
        assert key.default is None or key.kind.convert(key.shown_default) == key.default, key.name
