"""The keys that say by which name peers are known."""

from __future__ import annotations

import pytest

from waltz.configuration.access_settings import BREAK_GLASS, BREAK_GLASS_MAX, PRINCIPAL_FROM
from waltz.types import NAME_SOURCES, NameSource


@pytest.mark.parametrize(
    "value", ["cn, uri-san", ["cn", "uri-san"], pytest.param("cn,uri-san", id="without a space")]
)
def test_an_order_is_a_list_or_its_text(value: object) -> None:
    assert PRINCIPAL_FROM.kind.convert(value) == (NameSource.COMMON_NAME, NameSource.URI)


@pytest.mark.parametrize("value", ["", [], "cn, cn", "CN", ["cn", 1], 7, None, {"cn": 1}])
def test_what_is_no_order_is_refused(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the kind says what it expects
        PRINCIPAL_FROM.kind.convert(value)


def test_the_default_is_shown_as_it_is_written() -> None:
    assert PRINCIPAL_FROM.kind.convert(PRINCIPAL_FROM.shown_default) == NAME_SOURCES


def test_principals_that_break_glass_are_a_list_or_one_text_with_its_commas() -> None:
    (whole,) = BREAK_GLASS.kind.convert("DN=C=US,O=Bank,CN=ann")
    assert whole.text == "DN=C=US,O=Bank,CN=ann"
    several = BREAK_GLASS.kind.convert(["CN=ops-*", "spiffe://prod/ann"])
    assert [each.matches("CN=ops-1") for each in several] == [True, False]


@pytest.mark.parametrize(
    "value",
    [
        "",
        [],
        "*",
        "ann",
        ["CN=a*b*"],
        ["CN=a", 1],
        7,
        {"CN=a": 1},
        ["CN=a"] * (BREAK_GLASS_MAX + 1),
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_what_names_no_principal_breaks_no_glass(value: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- the kind says what it expects
        BREAK_GLASS.kind.convert(value)
