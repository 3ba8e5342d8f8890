"""Where a process listens that was not told where, and what contradicts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from waltz.configuration import server_settings as server
from waltz.configuration import storage_settings as storage
from waltz.configuration.settings import Given, Settings
from waltz.configuration.yaml_text import read_yaml
from waltz.errors import ConfigurationError
from waltz.types import Address

LOCAL = "coordinator.address: 127.0.0.1:7100"


class Process(NamedTuple):
    """A kind of process: its keys' prefix, and the least that its file says."""

    prefix: str
    judge: Callable[[Mapping[str, Given]], Settings]
    bound: Callable[[Settings], Address]
    advertised: Callable[[Settings, str], Address]
    http: Callable[[Settings], Address | None]
    least: str

    def settings(self, more: str = "", coordinator: str = LOCAL) -> Settings:
        content = f"{self.least}{coordinator}\n{more.replace('$', self.prefix)}"
        return self.judge(read_yaml(content, "node.yml"))


each_process = pytest.mark.parametrize(
    "process",
    [
        Process(
            "server",
            server.server_settings,
            server.client_address,
            server.advertised_address,
            server.http_address,
            "server: {port: 7300, jetty.port: 7301}\n",
        ),
        Process(
            "storage",
            storage.storage_settings,
            storage.data_address,
            storage.advertised_address,
            storage.http_address,
            "storage: {directory: d, port: 7300, admin.port: 7302, jetty.port: 7301}\n",
        ),
    ],
    ids=lambda process: process.prefix,
)

CAS = "$.ssl: {keyStore.location: a.pem, trustStore.location: ca.pem}\n"
REMOTE = "zookeeper.connectString: 127.0.0.1:2181,zoo.example:2181"


@each_process
@pytest.mark.parametrize(
    ("more", "host"),
    [
        ("", "127.0.0.1"),
        ("$.ssl.keyStore.location: a.pem\n", "127.0.0.1"),
        (CAS + "$.ssl.plain: always\n", "127.0.0.1"),
        (CAS, "0.0.0.0"),
        (CAS + "$.ssl.plain: loopback\n", "0.0.0.0"),
        ("$.bindAddress: 0.0.0.0\n", "0.0.0.0"),
        ("$.bindAddress: 10.0.0.1\n", "10.0.0.1"),
    ],
)
def test_what_believes_everybody_listens_on_loopback_unless_told_otherwise(
    process: Process, more: str, host: str
) -> None:
    """TS-01: as long as nobody is asked who he is; the admin and HTTP ports follow."""
    settings = process.settings(more)
    assert process.bound(settings) == Address(host, 7300)
    assert process.http(settings) == Address(host, 7301)
    if process.prefix == "storage":
        assert storage.admin_address(settings) == Address(host, 7302)


@each_process
def test_what_listens_on_loopback_tells_others_no_other_address(process: Process) -> None:
    assert process.advertised(process.settings(), "me.example") == Address("127.0.0.1", 7300)
    told = process.settings("$.advertisedAddress: localhost:7300\n")
    assert process.advertised(told, "me.example") == Address("localhost", 7300)
    everywhere = process.settings("$.bindAddress: 0.0.0.0\n")
    assert process.advertised(everywhere, "me.example") == Address("me.example", 7300)


@each_process
def test_an_address_that_nobody_would_reach_is_refused_with_the_remedy(process: Process) -> None:
    with pytest.raises(ConfigurationError) as raised:
        process.settings("$.advertisedAddress: outside.example:47000\n")
    said = str(raised.value)
    assert f"{process.prefix}.advertisedAddress tells others to connect to outside" in said
    assert f"Set {process.prefix}.bindAddress (0.0.0.0: all addresses" in said
    assert f"{process.prefix}.ssl.trustStore.location" in said
    for more in ("$.bindAddress: 127.0.0.1\n", CAS):
        process.settings(more + "$.advertisedAddress: outside.example:47000\n")


@each_process
@pytest.mark.parametrize(
    ("coordinator", "named"),
    [
        (REMOTE, "zoo.example"),
        ("coordinator.address: 10.0.0.9:7100", "10.0.0.9"),
        ("coordinator.address: zookeeper://zoo.example:2181/waltz", "zoo.example"),
    ],
)
def test_a_file_of_the_original_is_refused_where_neighbours_may_be_elsewhere(
    process: Process, coordinator: str, named: str
) -> None:
    """It has no such key; all interfaces are a line in it."""
    with pytest.raises(ConfigurationError) as raised:
        process.settings(coordinator=coordinator)
    said = str(raised.value)
    assert f"{process.prefix}.bindAddress is not set" in said
    assert f"the coordinator, at {named}, is not known by a loopback address" in said
    for more in ("$.bindAddress: 0.0.0.0\n", "$.bindAddress: 127.0.0.1\n", CAS):
        process.settings(more, coordinator)


@each_process
def test_a_file_of_the_original_for_one_machine_is_taken_as_it_is(process: Process) -> None:
    settings = process.settings(coordinator="zookeeper.connectString: localhost:2181")
    assert process.bound(settings).host == "127.0.0.1"


@each_process
@pytest.mark.parametrize(
    "wrong",
    ["$.bindAddress: 'a:1'\n", "$.ssl.trustStore.location: 7\n$.ssl.keyStore.location: a\n"],
)
def test_a_fault_of_what_decides_is_told_alone(process: Process, wrong: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        process.settings(wrong, REMOTE)
    assert "is not set" not in str(raised.value)
    assert "faults" not in str(raised.value)
