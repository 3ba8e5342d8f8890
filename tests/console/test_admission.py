"""The requests that are answered: only those that a person made of this console."""

from __future__ import annotations

import pytest

from waltz.console.admission import is_known_host, refusal, refused_address
from waltz.types import Address

LOOPBACK = "127.0.0.1"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7180", "localhost", "LOCALHOST:1", "[::1]:7180", "127.0.0.1", "127.8.8.8:1"]
)
def test_names_of_this_machine_are_known(host: str) -> None:
    assert is_known_host(host, LOOPBACK)


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:7180", "127.0.0.1.evil.example", "localhost.evil.example",
        "[::1].evil.example"[4:], "10.0.0.8:7180", "a" * 300, "[", "]", ":", "0.0.0.0",
        "127.0.0.1@evil.example", "localhost evil",
    ],
)  # fmt: skip
def test_a_name_that_was_made_to_resolve_to_this_machine_is_not(host: str) -> None:
    """DNS rebinding: the browser believes that the page is that of the other name."""
    assert not is_known_host(host, LOOPBACK)


def test_at_another_address_its_name_and_any_ip_address_are_known() -> None:
    assert is_known_host("10.0.0.8:7180", "0.0.0.0")
    assert is_known_host("console.lan:7180", "console.lan")
    assert not is_known_host("evil.example", "console.lan")


def test_only_reading_is_allowed() -> None:
    good = {"host": "127.0.0.1:7180"}
    assert refusal("GET", good, LOOPBACK) is None
    assert refusal("HEAD", good, LOOPBACK) is None
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "X"):
        assert (refusal(method, good, LOOPBACK) or (0,))[0] == 405
    assert (refusal("GET", {}, LOOPBACK) or (0,))[0] == 421


def test_another_site_may_link_to_a_page_and_not_have_it_fetched() -> None:
    elsewhere = {"host": "localhost", "sec-fetch-site": "cross-site"}
    assert (refusal("GET", elsewhere | {"sec-fetch-mode": "cors"}, LOOPBACK) or (0,))[0] == 403
    assert refusal("GET", elsewhere | {"sec-fetch-mode": "navigate"}, LOOPBACK) is None


def test_an_address_that_others_reach_is_refused_with_the_remedy() -> None:
    text = refused_address(Address("0.0.0.0", 7180), is_wanted=False)
    assert text is not None
    assert "no login" in text
    assert "ssh -L 7180:127.0.0.1:7180" in text
    assert refused_address(Address("0.0.0.0", 7180), is_wanted=True) is None
    assert refused_address(Address("127.0.0.1", 7180), is_wanted=False) is None
