"""The text of a configuration file."""

from __future__ import annotations

import pytest

from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError


def values(content: str) -> dict[str, object]:
    return {name: given.value for name, given in read_yaml(content, "node.yml").items()}


@pytest.mark.parametrize(
    "content",
    [
        "storage.port: 1\nstorage.admin.port: 2",
        "storage:\n  port: 1\n  admin:\n    port: 2",
        "storage:\n  port: 1\n  admin.port: 2",
        "storage.port: 1\nstorage:\n  admin: {port: 2}",
        "storage.admin:\n  port: 2\nstorage: {port: 1}",
    ],
)
def test_dotted_and_nested_keys_say_the_same(content: str) -> None:
    """CF-40, CF-41."""
    assert values(content) == {"storage.port": 1, "storage.admin.port": 2}


@pytest.mark.parametrize("content", ["", "# nothing", "---", "storage.port:", "a:\n  b: ~"])
def test_a_key_without_a_value_is_not_set(content: str) -> None:
    assert values(content) == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- 1", "holds a list"),
        ("hello", "holds a str"),
        ("a: [", "node.yml, line 1"),
        ("a: 1\n b: 2", "node.yml, line 2, column 3"),
        ("a: &x 1\nb: *x", "line 2, column 4: an alias"),
        ("storage.port: 1\nstorage.port: 2", "'storage.port' occurs twice"),
        ("storage.port: 1\nstorage: {port: 2}", "sets storage.port twice"),
        ("1: 2", "a key is 1"),
        ("a: {2: 3}", "a key is 2; expected text below 'a.'"),
        ("a: !!python/object:os.system 1", "node.yml, line 1"),
        ("a: \x00", "not YAML"),
        ("{" * 3000, "node.yml is nested too deeply"),
        ("a: 1\nb: 2026-13-45", "node.yml, line 2, column 4: a value is not of the form"),
        ("a: {" * 20 + "}" * 20, "nested too deeply"),
        ("#" * 2_000_000, "2000000 characters"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(content: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_yaml(content, "node.yml")
    assert said in str(raised.value)
    assert "node.yml" in str(raised.value)


def test_a_fault_of_form_does_not_quote_the_line_it_is_in() -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_yaml("store.password: sesame: open\n", "node.yml")
    assert "sesame" not in str(raised.value)
