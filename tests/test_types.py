"""Identifiers and addresses."""

from __future__ import annotations

import pytest

from waltz.errors import ConfigurationError
from waltz.types import Address


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
