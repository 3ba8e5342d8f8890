"""How a configuration is read, and how its faults are told."""

from __future__ import annotations

from typing import Any

import pytest

from waltz.configuration.keys import Key, number, port, text
from waltz.configuration.settings import HIDDEN, Given, different, judge, raise_faults
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError

PORT = Key(name="storage.port", kind=port(), required=True, option="--port", description="")
ADMIN_PORT = Key(name="storage.admin.port", kind=port(), description="")
SECONDS = Key(name="storage.seconds", kind=number(0, 60, "seconds"), default=5.0, description="")
PASSWORD = Key(name="store.password", kind=text(), secret=True, description="")
TLS = Key(name="storage.ssl.location", kind=text(), guarded="storage.ssl", description="")
OLD = Key(name="zookeeper.path", kind=text(), unused="no ZooKeeper here", description="")
KEYS: tuple[Key[Any], ...] = (PORT, ADMIN_PORT, SECONDS, PASSWORD, TLS, OLD)


def fault(content: str) -> str:
    with pytest.raises(ConfigurationError) as raised:
        judge(KEYS, read_yaml(content, "node.yml"))
    return str(raised.value)


def test_a_value_that_is_not_set_is_the_default() -> None:
    settings = judge(KEYS, {"storage.port": Given("7201", "node.yml")})
    assert (settings[PORT], settings[SECONDS], settings.get(ADMIN_PORT)) == (7201, 5.0, None)
    assert settings.is_set(PORT)
    assert not settings.is_set(SECONDS)
    assert settings.warnings == ()


def test_a_wrong_value_is_told_with_key_value_and_expectation() -> None:
    said = fault("storage.port: 70000")
    assert said == (
        "configuration: storage.port (node.yml) is 70000; expected a whole number from 1 to 65535"
    )


def test_all_faults_are_told_at_once() -> None:
    said = fault("storage.port: no\nstorage.seconds: 61")
    assert "2 faults" in said
    assert "storage.port" in said
    assert "storage.seconds (node.yml) is 61; expected a number of seconds from 0 to 60" in said


def test_a_missing_key_is_told_with_its_option() -> None:
    assert "storage.port is missing; give it in the configuration file, or as --port" in fault("")


@pytest.mark.parametrize("value", ["12345", "[12345]"])
def test_a_secret_is_never_told(value: str) -> None:
    """CF-60: neither where it is wrong, as a number is, nor in the list of what is in force."""
    said = fault(f"storage.port: 1\nstore.password: {value}")
    assert "store.password (node.yml) is (hidden); expected text, not empty" in said
    assert "12345" not in said
    settings = judge(KEYS, read_yaml("storage.port: 1\nstore.password: sesame", "node.yml"))
    assert settings[PASSWORD] == "sesame"
    assert f"store.password: {HIDDEN}  # node.yml" in list(settings.lines())
    assert "sesame" not in "".join(settings.lines())


def test_an_unknown_key_is_a_warning_with_the_nearest_and_without_the_value() -> None:
    content = "storage.port: 1\nstorage.Admin.prot: 2\nfarfetched: sesame"
    warnings = judge(KEYS, read_yaml(content, "node.yml")).warnings
    assert warnings == (
        "storage.Admin.prot (node.yml) is not known and ignored; did you mean storage.admin.port?",
        "farfetched (node.yml) is not known and ignored",
    )


def test_a_key_without_effect_is_a_warning() -> None:
    settings = judge(KEYS, read_yaml("storage.port: 1\nzookeeper.path: /a", "node.yml"))
    assert settings.warnings == ("zookeeper.path (node.yml) has no effect: no ZooKeeper here",)


@pytest.mark.parametrize("key", ["storage.ssl.lokation", "storage.ssl"])
def test_a_misspelt_way_to_ask_for_tls_is_a_fault(key: str) -> None:
    """CF-47: ignored with a warning it would leave a node in the clear."""
    said = fault(f"storage.port: 1\n{key}: sesame")
    assert f"{key} (node.yml) is not known" in said
    assert "sesame" not in said


def test_values_in_force_are_listed_with_where_they_came_from() -> None:
    given = {"storage.port": Given(7201, "--port")}
    assert list(judge(KEYS, given).lines()) == [
        "storage.port: 7201  # --port",
        "storage.seconds: 5  # default",
    ]


def test_one_port_twice_names_both_keys_and_not_the_port() -> None:
    """CF-36."""
    settings = judge(KEYS, read_yaml("storage: {port: 7201, admin.port: 7201}", "node.yml"))
    with pytest.raises(ConfigurationError) as raised:
        raise_faults(different(settings, (PORT, ADMIN_PORT)))
    assert "storage.port and storage.admin.port are the same port" in str(raised.value)
    assert "7201" not in str(raised.value)


def test_no_fault_is_no_error() -> None:
    raise_faults([])
