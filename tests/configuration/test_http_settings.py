"""The keys that protect HTTP ports, in the configuration of each process that has one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from waltz.configuration import archive_settings, server_settings, storage_settings
from waltz.configuration.http_settings import http_access
from waltz.configuration.settings import Given, Settings
from waltz.errors import ConfigurationError
from waltz.types import HttpAccess, TlsSettings


class Process(NamedTuple):
    judge: Callable[[dict[str, Given]], Settings]
    least: dict[str, object]
    everywhere: dict[str, object]
    """Keys that have HTTP listen at all addresses."""


PROCESSES = {
    "server": Process(
        server_settings.server_settings,
        {"server.port": 1, "server.jetty.port": 2},
        {"server.jetty.bindAddress": "0.0.0.0"},
    ),
    "storage": Process(
        storage_settings.storage_settings,
        {
            "storage.port": 1,
            "storage.admin.port": 3,
            "storage.jetty.port": 2,
            "storage.directory": "/d",
        },
        {"storage.jetty.bindAddress": "0.0.0.0"},
    ),
    "archiver": Process(
        archive_settings.archive_settings,
        {"archive.target": "file:///a", "archive.httpAddress": "127.0.0.1:2"},
        {"archive.httpAddress": "0.0.0.0:2"},
    ),
}


def judged(process: Process, keys: dict[str, object]) -> Settings:
    given = {"coordinator.address": "127.0.0.1:7100", **process.least, **keys}
    return process.judge({name: Given(value, "test") for name, value in given.items()})


each = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


@each
def test_without_keys_http_is_plain_and_open(process: Process) -> None:
    assert http_access(judged(process, {})) == HttpAccess()


@each
def test_the_keys_say_what_a_port_shows_and_asks_for(process: Process) -> None:
    settings = judged(
        process,
        {
            "http.tls.keyStore.location": "c.pem",
            "http.tls.keyStore.keyLocation": "k.pem",
            "http.tls.keyStore.password": "secret",
            "http.tls.trustStore.location": "ca.pem",
            "http.tokens": "t.yaml",
            **process.everywhere,
        },
    )
    tls = TlsSettings("c.pem", "k.pem", "secret", authorities="ca.pem")
    assert http_access(settings) == HttpAccess(tls, "t.yaml")
    assert not any("secret" in line for line in settings.lines())


@each
def test_tokens_are_refused_at_a_plain_port_that_others_reach(process: Process) -> None:
    tokens: dict[str, object] = {"http.tokens": "t.yaml"}
    assert http_access(judged(process, tokens)) == HttpAccess(tokens="t.yaml")
    with pytest.raises(ConfigurationError, match=r"http\.tokens is set, and HTTP at 0\.0"):
        judged(process, tokens | process.everywhere)


@each
@pytest.mark.parametrize(
    "key", ["keyStore.keyLocation", "keyStore.password", "trustStore.location"]
)
def test_half_of_what_tls_needs_is_a_fault(process: Process, key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{key} is set and http\.tls\.keyStore\.loc"):
        judged(process, {f"http.tls.{key}": "x"})


@each
@pytest.mark.parametrize("key", ["http.token", "http.tls.keystore.location", "http.tls.trustStore"])
def test_a_key_that_is_misspelt_keeps_a_process_from_starting(process: Process, key: str) -> None:
    with pytest.raises(ConfigurationError, match="is not known; did you mean"):
        judged(process, {key: "x"})
