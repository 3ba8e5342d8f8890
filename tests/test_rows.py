"""Every row has a test or a reason, and the page says which."""

from __future__ import annotations

from tests.rows import ROWS, SHORT_OF, TESTS, UNTESTED, cited, page, proofs


def test_every_row_has_a_test_or_a_reason() -> None:
    found = proofs()
    assert [row for row in ROWS if row not in found and row not in UNTESTED] == []
    assert [row for row in UNTESTED if row in found] == [], "there is a test by now"
    assert {*UNTESTED, *SHORT_OF} <= ROWS.keys()
    assert [row for row in found if row not in ROWS] == [], "nobody has asked for it"


def test_the_page_is_as_printed() -> None:
    assert (TESTS.parent / "docs" / "rows.md").read_text() == page(), (
        "python -m tests.rows > docs/rows.md"
    )


def test_a_range_of_rows_is_all_of_them() -> None:
    assert [*cited("PM-50 to PM-52, CI-03; DM-1")] == ["PM-50", "PM-51", "PM-52", "CI-03", "DM-01"]
