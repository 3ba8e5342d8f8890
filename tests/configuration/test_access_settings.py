"""The keys that say by which name peers are known."""

from __future__ import annotations

import pytest

from waltz.configuration.access_settings import PRINCIPAL_FROM
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
