"""Every row has a test or a reason, and the page says which."""

from __future__ import annotations

import re

from tests.rows import (
    OTHER_ROWS,
    ROWS,
    SHORT_OF,
    TESTS,
    UNTESTED,
    cited,
    cited_by_code,
    page,
    proofs,
)

HAZARDS = "docs/design/hazards.md"


def test_every_row_has_a_test_or_a_reason() -> None:
    found = proofs()
    assert [row for row in ROWS if row not in found and row not in UNTESTED] == []
    assert [row for row in UNTESTED if row in found] == [], "there is a test by now"
    assert {*UNTESTED, *SHORT_OF} <= ROWS.keys()
    assert [row for row in found if row not in ROWS and row not in OTHER_ROWS] == [], "no such row"
    assert ROWS.keys() & OTHER_ROWS.keys() == set()


def test_every_row_that_the_code_cites_is_on_the_page() -> None:
    shown = page()
    assert [row for row in sorted(cited_by_code()) if f"| {row} |" not in shown] == []


def test_every_hazard_that_is_cited_is_on_its_page() -> None:
    """H, R and D are hazards of the original; the page says what each is."""
    root = TESTS.parent
    known = set(re.findall(r"^\| ([HRD]\d+) \|", (root / HAZARDS).read_text(), re.MULTILINE))
    cited_hazards = {
        hazard
        for path in (*(root / "src").rglob("*.py"), *TESTS.rglob("test_hazards.py"))
        for line in path.read_text().splitlines()
        if "azard" in line or path.name == "test_hazards.py"
        for hazard in re.findall(r"\b[HRD]\d+\b", line)
    }
    assert len(cited_hazards) > 15
    assert cited_hazards - known == set()


def test_the_page_is_as_printed() -> None:
    assert (TESTS.parent / "docs" / "rows.md").read_text() == page(), (
        "python -m tests.rows > docs/rows.md"
    )


def test_a_range_of_rows_is_all_of_them() -> None:
    assert [*cited("PM-50 to PM-52, CI-03; DM-1")] == ["PM-50", "PM-51", "PM-52", "CI-03", "DM-01"]
