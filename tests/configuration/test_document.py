"""The printed page of keys."""

from __future__ import annotations

from pathlib import Path

from waltz.configuration.document import EXAMPLE, storage_page
from waltz.configuration.settings import read_yaml
from waltz.configuration.storage import STORAGE_KEYS, storage_settings

PAGE = Path(__file__).parents[2] / "docs" / "operating" / "storage-configuration.md"


def test_the_printed_page_is_current() -> None:
    assert PAGE.read_text() == storage_page(), "run `make docs`"


def test_every_key_is_on_the_page() -> None:
    page = storage_page()
    assert all(f"`{key.name}`" in page for key in STORAGE_KEYS)


def test_the_example_is_a_configuration() -> None:
    assert storage_settings(read_yaml(EXAMPLE, "example")).warnings == ()
