"""Headers as sets of integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz.errors import ConfigurationError
from waltz.spark.row_filter import Intervals, parse_headers

BOUNDS = st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), max_size=5)
VALUES = range(-11, 12)


def within(bounds: list[tuple[int, int]]) -> set[int]:
    return {value for value in VALUES for low, high in bounds if low <= value <= high}


@given(BOUNDS)
def test_intervals_are_the_sets_that_they_say(bounds: list[tuple[int, int]]) -> None:
    one = Intervals.of(bounds)
    mask = one.mask(np.array(VALUES, np.int32))
    assert {value for value, is_in in zip(VALUES, mask, strict=True) if is_in} == within(bounds)
    assert all(
        left[1] + 1 < right[0] for left, right in zip(one.bounds, one.bounds[1:], strict=False)
    )


def test_headers_are_written_as_numbers_and_ranges() -> None:
    assert parse_headers("1, 3..5,-7..-6,4").bounds == ((-7, -6), (1, 1), (3, 5))
    for text in ("", "a", "1..", "5..3", "2147483648", "1-3"):
        with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option headers is"):
            parse_headers(text)
