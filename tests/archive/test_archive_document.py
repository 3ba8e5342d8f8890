"""The page of the archive's format says what the code does."""

from __future__ import annotations

from pathlib import Path

from tests.archive.archives import KEY
from waltz.archive.archive_document import archive_tables, example
from waltz.archive.manifest import decode_manifest, encode_manifest

PAGE = Path(__file__).parent.parent.parent / "docs" / "formats" / "archive.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == archive_tables(), "run python -m waltz.archive.archive_document"


def test_the_manifest_shown_is_one() -> None:
    data = encode_manifest(KEY, example())
    assert decode_manifest(data, KEY, 7) == example()
    assert data.decode().strip() in PAGE.read_text()


def test_every_key_of_a_manifest_is_explained() -> None:
    import json

    for key in json.loads(encode_manifest(KEY, example())):
        assert f"| `{key}` |" in PAGE.read_text(), key
