"""The frame of all pages."""

from __future__ import annotations

import pytest

from tests.console.states import cluster
from waltz.console.picture import picture_of
from waltz.console.view import number_in, page_of


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("17", 17), ("", None), ("-1", None), ("1e3", None), ("٣", None), ("9" * 19, None)],
)
def test_numbers_are_plain_digits(text: str, number: int | None) -> None:
    assert number_in(text) == number


def test_a_page_is_loaded_anew_when_its_rows_come_or_go() -> None:
    def layout(partitions: int, *rows: int) -> str:
        picture = picture_of(cluster(partitions=partitions))
        return page_of("nodes.html", "/nodes", "/nodes", picture, rows=rows).layout

    assert layout(2) == layout(2)
    assert len({layout(2), layout(3), layout(2, 1), layout(2, 1, 2)}) == 4
