"""What each kind of value takes, and what it does not."""

from __future__ import annotations

from typing import Any

import pytest

from waltz.configuration.keys import (
    Key,
    ValueKind,
    address,
    boolean,
    host_name,
    number,
    port,
    text,
    whole_number,
)
from waltz.types import Address


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (whole_number(1, 9), 9, 9),
        (whole_number(-9, 9), "-7", -7),
        (port(), "65535", 65535),
        (number(0.5, 9, "seconds"), 1, 1.0),
        (number(0.5, 9, "seconds"), "2.5", 2.5),
        (boolean(), True, True),
        (boolean(), "False", False),
        (text(), " /a b ", "/a b"),
        (host_name(), "[::1]", "::1"),
        (host_name(), "node-1.example", "node-1.example"),
        (address(), "node:7100", Address("node", 7100)),
        (address(), Address("node", 7100), Address("node", 7100)),
    ],
)
def test_what_a_kind_takes(kind: ValueKind[Any], given: object, value: object) -> None:
    found = kind.convert(given)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (whole_number(1, 9), 0),
        (whole_number(1, 9), 10),
        (whole_number(1, 9), True),
        (whole_number(1, 9), 1.5),
        (whole_number(1, 9), "1e0"),
        (whole_number(1, 9), ""),
        (whole_number(1, 9), "--1"),
        (whole_number(1, 9), None),
        (port(), 0),
        (port(), 65536),
        (number(0, 9, "seconds"), float("nan")),
        (number(0, 9, "seconds"), "soon"),
        (number(0, 9, "seconds"), True),
        (number(0, 9, "seconds"), [1]),
        (boolean(), "yes"),
        (boolean(), 1),
        (text(), ""),
        (text(), 7),
        (text(), ["a"]),
        (host_name(), "a b"),
        (host_name(), 10.0),
        (address(), "node"),
        (address(), "node:0"),
        (address(), 7100),
    ],
)
def test_what_a_kind_refuses(kind: ValueKind[Any], given: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- its text is never shown
        kind.convert(given)


def test_defaults_are_shown_as_a_file_would_have_them() -> None:
    assert Key(name="a", kind=boolean(), default=False, description="").shown_default == "false"
    assert Key(name="a", kind=number(0, 9, ""), default=5.0, description="").shown_default == "5"
    assert Key(name="a", kind=port(), description="").shown_default == ""
    assert Key(name="a", kind=port(), default_text="none", description="").shown_default == "none"
