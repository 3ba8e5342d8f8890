"""Text from outside: one line, bounded, nothing invisible."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.console.hostile import ALL, INVISIBLE
from waltz.console.plain_text import TEXT_CHARACTERS_MAX, plain, plain_data


@pytest.mark.parametrize("text", ALL, ids=range(len(ALL)))
def test_hostile_text_is_one_bounded_line_of_visible_characters(text: str) -> None:
    shown = plain(text)
    assert shown.isprintable()
    assert not [each for each in shown if unicodedata.bidirectional(each) in ("RLO", "LRO", "RLI")]
    assert len(shown) <= 12 * TEXT_CHARACTERS_MAX


@pytest.mark.parametrize("text", INVISIBLE, ids=range(len(INVISIBLE)))
def test_what_is_invisible_is_shown_as_an_escape(text: str) -> None:
    assert "\\" in plain(text)


@given(st.text(max_size=50))
def test_ordinary_text_stays_as_it_is_and_all_other_text_is_printable(text: str) -> None:
    assert plain(text).isprintable()
    if text.isascii() and text.isprintable():
        assert plain(text) == text


def test_text_that_is_too_long_says_how_long_it_is() -> None:
    assert plain("abcdef", 3) == "abc… (6 characters)"
    assert plain_data(b"abcdef", 3) == "abc… (6 bytes)"


@given(st.binary(max_size=64))
def test_any_bytes_can_be_shown(data: bytes) -> None:
    assert plain_data(data, 32).isprintable()


def test_a_megabyte_of_data_is_shown_by_its_beginning() -> None:
    assert len(plain_data(b"\x00" * 1_000_000, 512)) < 3000
