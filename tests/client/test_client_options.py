from __future__ import annotations

import re
from pathlib import Path

import pytest

from waltz.client.client_options import ClientOptions, options_from
from waltz.connections.retry import RetryReads
from waltz.errors import ConfigurationError

PAGE = Path(__file__).parents[2] / "docs" / "operating" / "connecting.md"


def test_defaults_are_those_of_the_documents() -> None:
    """Section 9.7."""
    options = options_from({})
    assert options == ClientOptions()
    assert options.max_concurrent_transactions == 5
    assert options.retry_threads == 1
    assert options.long_wait_seconds == 5.0
    assert options.mount_seconds_max == options.registration_seconds_max == 10.0
    assert options.servers == ()
    assert options.retry_policy == RetryReads(16)
    assert options.listener is None


def test_the_page_on_connecting_gives_the_defaults() -> None:
    """LC-87, LC-88."""
    options = ClientOptions()
    rows = re.findall(
        r"^\| `(\w+_max|refresh_seconds)` \| (\d+) \|", PAGE.read_text(), re.MULTILINE
    )
    assert len(rows) == 9
    for name, default in rows:
        assert getattr(options, name) == float(default), name


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"'max_concurent'.*max_concurrent_transactions"):
        options_from({"max_concurent": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_concurrent_transactions", 0),
        ("retry_threads", -1),
        ("long_wait_seconds", 0.0),
        ("heartbeat_interval_seconds", 0.0),
        ("heartbeat_timeout_seconds", 1e9),
        ("protocol_version_max", 6),
        ("connection_seconds_max", 0.0),
        ("reconnect_seconds_max", -1.0),
        ("refresh_seconds", -1.0),
        ("operation_seconds_max", 0.0),
    ],
)
def test_a_value_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is {value}"):
        options_from({name: value})


def test_what_connections_are_like_may_be_set() -> None:
    """CF-104, LC-82."""
    connections = ClientOptions(heartbeat_interval_seconds=2.0, protocol_version_max=3).connections
    assert connections.heartbeat_interval_seconds == 2.0
    assert connections.heartbeat_timeout_seconds is None
    assert connections.codec.versions == (0, 1, 2, 3)
    assert ClientOptions().connections.codec.versions[-1] == 5
