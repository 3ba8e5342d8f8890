"""The page on disk is what the code prints."""

from __future__ import annotations

from pathlib import Path

from waltz.wire.admin_protocol import ADMIN_CODEC
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.storage_protocol import STORAGE_CODEC
from waltz.wire.wire_document import wire_tables

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "wire.md"


def test_the_page_on_disk_is_up_to_date() -> None:
    assert PAGE.read_text() == wire_tables(), (
        "run: python -m waltz.wire.wire_document > docs/formats/wire.md"
    )


def test_every_message_has_its_section() -> None:
    text = wire_tables()
    for codec in (CLIENT_CODEC, STORAGE_CODEC, ADMIN_CODEC):
        for kind in codec.messages:
            assert f"\n### {kind.CODE} {kind.__name__}" in text


def test_versions_are_told_where_they_differ() -> None:
    text = wire_tables()
    assert "| state | boolean: READY or not | 0 to 2 |" in text
    assert "| append_locks | count, then int each | 2 to 5 |" in text
    assert "### 21 ServerPartitionsHealthRequest (versions 4 to 5)" in text
    assert "| checksum | CRC-32 of data, verified; only with data | 0 to 5 |" in text
