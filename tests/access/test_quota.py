"""Limits by value: the least of several, and how they are written."""

from __future__ import annotations

import pytest

from waltz.access.quota import NO_QUOTA, Quota, least, shown_limit


def test_the_least_of_each_limit_holds_and_a_limit_that_nobody_has_is_none() -> None:
    assert least([]) == NO_QUOTA
    assert least([NO_QUOTA, NO_QUOTA]) == NO_QUOTA
    assert least([Quota(5, 1, None, 2), NO_QUOTA, Quota(3, 9)]) == Quota(3, 1, None, 2)


@pytest.mark.parametrize(
    ("name", "limit", "text"),
    [
        ("append_bytes", 20 << 20, "20MiB/s"),
        ("read_bytes", 1 << 40, "1TiB/s"),
        ("read_bytes", 1025 << 10, "1025KiB/s"),
        ("read_bytes", 100_001, "100001B/s"),
        ("appends", 1 << 20, "1048576/s"),
        ("connections", 200, "200"),
        ("appends", None, "none"),
    ],
)
def test_a_limit_is_shown_as_it_is_written(name: str, limit: int | None, text: str) -> None:
    assert shown_limit(name, limit) == text
