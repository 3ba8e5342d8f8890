"""Identifiers and addresses."""

from __future__ import annotations

import pytest

from waltz.errors import ConfigurationError
from waltz.types import (
    Address,
    ServersAddress,
    ZooKeeperAddress,
    parse_cluster,
    parse_coordinator,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:6000", Address("localhost", 6000)),
        ("10.0.0.1:1", Address("10.0.0.1", 1)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_an_address_is_read_and_written_the_same(text: str, address: Address) -> None:
    """LC-01."""
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "localhost", ":6000", "localhost:", "a:0", "a:65536", "a:x", "::1:6000", "a:-1", "a:²"],
)
def test_what_is_no_address_is_refused_with_its_text(text: str) -> None:
    """LC-01."""
    with pytest.raises(ConfigurationError) as error:
        Address.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("zookeeper://a:1", ZooKeeperAddress((Address("a", 1),), "")),
        (
            "zookeeper://a:1,[::1]:2/prod/waltz",
            ZooKeeperAddress((Address("a", 1), Address("::1", 2)), "/prod/waltz"),
        ),
        (
            "zookeeper://a:1/waltz?sessionTimeout=6000",
            ZooKeeperAddress((Address("a", 1),), "/waltz", 6000),
        ),
    ],
)
def test_a_cluster_in_a_zookeeper_has_an_address_too(text: str, address: ZooKeeperAddress) -> None:
    """CM-01, CM-05."""
    assert parse_coordinator(text) == address
    assert str(address) == text
    assert parse_coordinator("a:1") == Address("a", 1)


def test_a_zookeeper_without_a_port_is_where_they_all_are() -> None:
    found = parse_coordinator("zookeeper://a, [::1] ,b:1/root")
    servers = (Address("a", 2181), Address("::1", 2181), Address("b", 1))
    assert found == ZooKeeperAddress(servers, "/root")


@pytest.mark.parametrize(
    "text",
    [
        "zookeeper://",
        "zookeeper://a:",
        "zookeeper://[::1",
        "zookeeper://a:1,",
        "zookeeper://user:secret@a:x",
        "http://a:1/",
        "zookeeper://a:1/r?sessionTimeout=1&root=x",
        "zookeeper://a:1/r?root=x",
        "zookeeper://a:1/r?sessionTimeout=",
        "zookeeper://a:1/r?sessionTimeout=0",
    ],
)
def test_what_is_no_address_of_a_coordinator_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_coordinator(text)


SOME = (Address("a", 1), Address("10.0.0.1", 6000), Address("::1", 65535))


def test_servers_are_an_address_too() -> None:
    """LC-01, LC-10: in the order given, each once."""
    text = "waltz://a:1,10.0.0.1:6000,[::1]:65535"
    found = parse_cluster(text)
    assert found == ServersAddress(SOME)
    assert str(found) == text
    assert parse_cluster("waltz://a:1, 10.0.0.1:6000 ,[::1]:65535,a:1/") == found
    assert parse_cluster("a:1") == Address("a", 1)
    assert parse_cluster("zookeeper://a:1/x") == parse_coordinator("zookeeper://a:1/x")


def test_one_good_server_among_bad_ones_is_enough_and_the_bad_are_named() -> None:
    """LC-10."""
    found = parse_cluster("waltz://nothing,a:1,:6000,b:70000")
    assert isinstance(found, ServersAddress)
    assert found.servers == (Address("a", 1),)
    assert [reason.partition("'")[2].partition("'")[0] for reason in found.refused] == [
        "nothing",
        ":6000",
        "b:70000",
    ]


@pytest.mark.parametrize("entries", ["", ",", "nothing", ":1,a:0", "a:1:2", "[::1]", "::1:6000"])
def test_servers_of_which_none_is_an_address_are_refused_by_name(entries: str) -> None:
    """LC-01, LC-10: before anything is tried."""
    with pytest.raises(ConfigurationError) as raised:
        parse_cluster(f"waltz://{entries}")
    for entry in entries.split(","):
        assert repr(entry) in str(raised.value)


def test_servers_are_told_from_other_schemes() -> None:
    with pytest.raises(ConfigurationError, match="not a list of servers"):
        ServersAddress.parse("zookeeper://a:1")
