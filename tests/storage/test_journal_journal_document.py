"""The printed page is what the code says."""

from __future__ import annotations

from pathlib import Path

from waltz.storage.journal.journal_document import BODIES, journal_tables
from waltz.wire.journal_entries import NUMBERS

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats" / "journal.md"


def test_page_is_up_to_date() -> None:
    command = "python -m waltz.storage.journal.journal_document"
    assert PAGE.read_text() == journal_tables(), f"run {command}"


def test_every_kind_of_entry_is_described() -> None:
    assert BODIES.keys() == NUMBERS.keys()
