"""The configuration of a bridge."""

from __future__ import annotations

import pytest

from waltz.configuration.bridge_settings import (
    DATA,
    HEADERS,
    PARTITIONS,
    START,
    URL,
    bridge_settings,
)
from waltz.configuration.settings import Settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError

BASE = "bridge.cluster: h:1\nbridge.secretFile: s\nbridge.progress: p\n"


def settings(text: str, url: str = "https://hooks.example/in") -> Settings:
    return bridge_settings(read_yaml(f"{BASE}bridge.url: '{url}'\n{text}", "file"))


def test_what_is_needed_is_little() -> None:
    found = settings("")
    assert (found[START], found[DATA], found.get(PARTITIONS)) == ("first", "base64", None)
    with pytest.raises(ConfigurationError, match=r"bridge\.progress is missing"):
        bridge_settings(read_yaml("bridge.url: https://h/", "file"))


@pytest.mark.parametrize("text", ["3, 1,3", "[3, 1]", "['3', 1]"])
def test_partitions_and_headers_are_lists(text: str) -> None:
    quoted = text if text.startswith("[") else f"'{text}'"
    found = settings(f"bridge.partitions: {quoted}\nbridge.headers: -5\n")
    assert found[PARTITIONS] == (3, 1)
    assert found[HEADERS] == (-5,)


@pytest.mark.parametrize("text", ["''", "'1,'", "-1", "[1, x]", "[]", "[[1]]", "true"])
def test_what_is_no_list_of_partitions_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bridge\.partitions"):
        settings(f"bridge.partitions: {text}\n")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/",
        "https:///in",
        "h:1",
        "https://user:secret@h/",
        "https://h/#part",
        "https://h/a b",
        "https://h:99999/",
        "https://h:x/",
        "https://ü/",
        "https://[::1/",
    ],
)
def test_what_is_no_address_of_a_webhook_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"bridge\.url") as caught:
        settings("", url)
    assert "secret@" not in str(caught.value)


def test_plain_http_leaves_this_machine_only_if_that_is_allowed() -> None:
    for url in ("http://127.0.0.1:80/", "http://localhost/", "http://[::1]/in?a=b"):
        assert settings("", url)[URL] == url
    for url in ("http://hooks.example/", "http://127.0.0.1.example/", "http://localhost.x/"):
        with pytest.raises(ConfigurationError, match="plain HTTP to another machine"):
            settings("", url)
        assert settings("bridge.plainHttp: true\n", url)[URL] == url
