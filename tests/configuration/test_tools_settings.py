"""The configuration of the tools (CF-70 to CF-73)."""

from __future__ import annotations

import pytest

from waltz.configuration.coordinator_settings import coordinator_address
from waltz.configuration.settings import Settings
from waltz.configuration.tls_settings import tls_settings
from waltz.configuration.tools_settings import CONNECT_TIMEOUT, TLS, tool_settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import Address, TlsSettings, ZooKeeperAddress


def settings_in(content: str) -> Settings:
    return tool_settings(read_yaml(content, "tool.yml"))


def test_the_keys_of_the_original_say_where_the_cluster_is() -> None:
    """CF-70, CF-71, CF-72, CF-73"""
    settings = settings_in("zookeeper.connectString: a:1,b\ncluster.root: /x\n")
    expected = ZooKeeperAddress((Address("a", 1), Address("b", 2181)), "/x", 30_000)
    assert coordinator_address(settings) == expected
    assert settings[CONNECT_TIMEOUT] == 10_000
    assert tls_settings(settings, TLS, listens=False) == TlsSettings()
    settings = settings_in(
        "zookeeper: {connectString: 'a:1', sessionTimeout: 500, connectTimeout: 70}\n"
        "ssl: {trustStore.location: ca.pem}\n"
    )
    assert coordinator_address(settings) == ZooKeeperAddress((Address("a", 1),), "/waltz", 500)
    assert settings[CONNECT_TIMEOUT] == 70
    assert tls_settings(settings, TLS, listens=False) == TlsSettings(authorities="ca.pem")


def test_what_is_missing_or_unknown_is_told_with_its_remedy() -> None:
    """TL-01"""
    with pytest.raises(ConfigurationError, match=r"or zookeeper.connectString, .* or --cluster"):
        settings_in("cluster.root: /x\n")
    with pytest.raises(ConfigurationError, match=r"ssl.keystore .* is not known"):
        settings_in("zookeeper.connectString: a:1\nssl.keystore: x\n")
    with pytest.raises(ConfigurationError, match=r"cluster.root .* is 'x'"):
        settings_in("zookeeper.connectString: a:1\ncluster.root: x\n")
    (warning,) = settings_in("zookeeper.connectString: a:1\nserver.port: 1\n").warnings
    assert "server.port (tool.yml) is not known and ignored" in warning
