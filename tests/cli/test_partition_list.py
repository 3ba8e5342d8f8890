"""Lists of partitions, as people write and read them (TL-01)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from waltz.cli.partition_list import listed_partitions, parse_partitions
from waltz.limits import PARTITIONS_MAX


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("0-6,7,10-16", [*range(8), *range(10, 17)]),
        (" 3 , 1 - 2 ", [1, 2, 3]),
        ("5-5,5", [5]),
        (str(PARTITIONS_MAX - 1), [PARTITIONS_MAX - 1]),
    ],
)
def test_numbers_and_ranges_are_taken(text: str, expected: list[int]) -> None:
    assert list(parse_partitions(text)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3-1", "range 3-1 runs backwards; did you mean 1-3?"),
        ("a", "'a' is no partition"),
        ("", "'' is no partition"),
        ("1,,2", "'' is no partition"),
        ("-1", "'-1' is no partition"),
        ("1-", "'1-' is no partition"),
        ("1-2-3", "'1-2-3' is no partition"),
        ("²", "'²' is no partition"),
        (f"0-{PARTITIONS_MAX}", f"partition {PARTITIONS_MAX} is out of range"),
    ],
)
def test_whatever_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_partitions(text)


@given(some.sets(some.integers(0, 60)))
def test_what_is_listed_is_what_is_parsed(numbers: set[int]) -> None:
    listed = listed_partitions(numbers)
    assert listed == "none" if not numbers else list(parse_partitions(listed)) == sorted(numbers)
