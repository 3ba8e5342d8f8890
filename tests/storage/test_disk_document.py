"""The printed page is what the code says."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from waltz.storage.disk_document import disk_tables, field_sizes, table

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats" / "disk.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == disk_tables(), "run python -m waltz.storage.disk_document"


def test_tables_count_their_bytes() -> None:
    layout = struct.Struct(">iq16si96x")
    assert list(field_sizes(layout)) == [4, 8, 16, 4, 96]
    assert sum(field_sizes(layout)) == layout.size
    assert table(struct.Struct(">iq"), ["one", "two"], ("12", "n", "three")).splitlines()[2:] == [
        "| 0 | 4 | one |",
        "| 4 | 8 | two |",
        "| 12 | n | three |",
    ]


def test_every_field_has_a_name() -> None:
    with pytest.raises(ValueError, match="shorter"):
        table(struct.Struct(">iq"), ["one"])
