"""Figures as people read them."""

from __future__ import annotations

import pytest

from waltz.console.figure_text import (
    age_text,
    count_text,
    mark_text,
    milliseconds_text,
    rate_text,
    seconds_text,
    size_text,
    span_text,
)

DASH = "\N{EN DASH}"


@pytest.mark.parametrize("shown", [count_text, rate_text, size_text, milliseconds_text])
def test_what_is_not_known_is_a_dash(shown: object) -> None:
    assert callable(shown)
    assert shown(None) == DASH


def test_figures_have_their_unit() -> None:
    assert count_text(1234567) == "1,234,567"
    assert [rate_text(value) for value in (0.0, 0.25, 99.94, 1234.5)] == [
        "0",
        "0.2",
        "99.9",
        "1,234",
    ]
    assert [size_text(value) for value in (0, 1023, 1536, 3 * 2**40)] == [
        "0 bytes", "1023 bytes", "1.5 KiB", "3.0 TiB",
    ]  # fmt: skip
    assert milliseconds_text(0.0041) == "4.1 ms"
    assert [mark_text(mark) for mark in (-1, 0, None)] == ["none", "0", DASH]


def test_a_lag_is_shown_within_its_bounds() -> None:
    def shown(least: float | None, most: float | None) -> str:
        return span_text(least, most, is_current=True)

    assert [shown(None, None), shown(0.2, 0.9), shown(3.2, 9.1), shown(200.5, None)] == [
        DASH, "1 s", "3 s to 10 s", "3 min 20 s or more",
    ]  # fmt: skip
    assert [seconds_text(value) for value in (0, 611.0, 9000)] == ["0 s", "10 min 11 s", "2.5 h"]
    assert span_text(0.0, 8000.0, is_current=False) == "at most 2.2 h"


def test_ages_are_coarse_and_never_too_good() -> None:
    ages = [age_text(value) for value in (None, 0.4, 3.2, 119, 240, 7300)]
    assert ages == ["never", "now", "3 s ago", "119 s ago", "4 min ago", "2 h ago"]
