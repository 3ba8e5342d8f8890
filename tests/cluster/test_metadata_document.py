"""The page on disk is what the code prints."""

from __future__ import annotations

from pathlib import Path

from waltz.cluster.metadata_document import metadata_tables

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "metadata.md"


def test_the_page_on_disk_is_up_to_date() -> None:
    assert PAGE.read_text() == metadata_tables(), (
        "run: python -m waltz.cluster.metadata_document > docs/formats/metadata.md"
    )


def test_constants_and_nested_parts_are_told() -> None:
    text = metadata_tables()
    assert "| magic | int -1259834553 |" in text
    assert "(partition ID: int, generation: int) each" in text
    assert "| `/waltz/ids/client` | counter |" in text
