"""The keys that secure connections, below any prefix (CF-10, CF-34, CF-47, CF-60 to CF-63)."""

from __future__ import annotations

import pytest

from waltz.configuration.settings import Settings, judge
from waltz.configuration.tls_settings import TlsKeys, tls_keys, tls_settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import Plain, TlsSettings

PREFIXES = ["client.ssl", "server.ssl", "server.storage.ssl", "storage.ssl"]


def judged(keys: TlsKeys, content: str) -> Settings:
    return judge(keys.all, read_yaml(content, "node.yml"))


def found(prefix: str, content: str, *, listens: bool = True) -> TlsSettings:
    keys = tls_keys(prefix)
    return tls_settings(judged(keys, content), keys, listens=listens)


def fault(content: str, *, listens: bool = True) -> str:
    with pytest.raises(ConfigurationError) as raised:
        found("server.ssl", content, listens=listens)
    return str(raised.value)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_prefix_has_the_same_keys(prefix: str) -> None:
    content = f"""\
{prefix}:
  keyStore: {{location: node.pem, keyLocation: node.key, password: sesame, type: pem}}
  trustStore: {{location: ca.pem, type: PEM}}
  verifyHostName: false
  plain: always
"""
    assert found(prefix, content) == TlsSettings(
        "node.pem", "node.key", "sesame", "ca.pem", verify_host_name=False, plain=Plain.ALWAYS
    )


def test_nothing_given_is_tls_with_anyone_and_plain_on_loopback() -> None:
    """TS-03."""
    settings = found("server.ssl", "")
    assert settings == TlsSettings()
    assert settings.plain_with is Plain.LOOPBACK


@pytest.mark.parametrize("given", ["keyStore.location: node.pem", "plain: never"])
def test_plain_is_over_once_a_certificate_is_given(given: str) -> None:
    assert found("server.ssl", f"server.ssl.{given}").plain_with is Plain.NEVER


@pytest.mark.parametrize("store", ["keyStore", "trustStore"])
@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_java_store_is_refused_with_the_way_to_convert_it(store: str, kind: str) -> None:
    """CF-60, CF-61."""
    said = fault(f"server.ssl.{store}: {{location: a.jks, type: {kind}}}")
    assert f"server.ssl.{store}.type (node.yml) is '{kind}'; expected PEM; a Java key" in said
    assert "openssl pkcs12 -in store.p12 -nodes -out store.pem" in said


def test_what_only_java_needs_is_a_warning() -> None:
    """CF-61 to CF-63: files of the original stay valid."""
    keys = tls_keys("server.ssl")
    content = """\
server.ssl.keyManager.algorithm: SunX509
server.ssl.trustManager.algorithm: SunX509
server.ssl.trustStore.password: sesame
"""
    warnings = judged(keys, content).warnings
    assert [warning.split()[0] for warning in warnings] == [
        "server.ssl.keyManager.algorithm",
        "server.ssl.trustManager.algorithm",
        "server.ssl.trustStore.password",
    ]
    assert "sesame" not in "".join((*warnings, *judged(keys, content).lines()))


@pytest.mark.parametrize(
    ("content", "listens", "said"),
    [
        ("trustStore.location: ca.pem", True, "show none; set both"),
        ("keyStore.location: node.pem", False, "would trust every peer that answers; set both"),
        ("keyStore.password: sesame", True, "keyStore.location is not; set both, or none"),
        ("keyStore.keyLocation: a.key", False, "keyStore.location is not; set both, or none"),
    ],
)
def test_half_a_configuration_is_refused(content: str, listens: bool, said: str) -> None:
    """TS-03."""
    assert said in fault(f"server.ssl.{content}", listens=listens)
    assert "sesame" not in fault(f"server.ssl.{content}", listens=listens)


def test_a_client_may_believe_without_being_known_and_a_server_the_other_way() -> None:
    assert found("client.ssl", "client.ssl.trustStore.location: ca.pem", listens=False).authorities
    assert found("server.ssl", "server.ssl.keyStore.location: node.pem").certificate


def test_a_misspelt_key_is_a_fault() -> None:
    assert "did you mean server.ssl.keyStore.location?" in fault("server.ssl.keystor.location: a")


def test_plain_has_three_values() -> None:
    assert "expected never, loopback or always" in fault("server.ssl.plain: sometimes")
