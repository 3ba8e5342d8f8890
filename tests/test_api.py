"""The reference says what the code says, and leaves nothing out."""

from __future__ import annotations

import re

import waltz
import waltz.testing
from tests.api import FRAMEWORKS, PLAIN, SECTIONS, page, undocumented
from tests.clusters import ROOT


def test_the_page_is_as_printed() -> None:
    assert (ROOT / "docs" / "api.md").read_text() == page(), "python -m tests.api > docs/api.md"


def test_every_public_name_has_its_place() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted(waltz.__all__)
    headings = re.findall(r"^### (\w+)$", page(), re.MULTILINE)
    of_frameworks = [name for names in FRAMEWORKS.values() for name in names]
    shown = [*placed, *waltz.testing.__all__, *of_frameworks, "Options"]
    assert sorted(headings) == sorted(shown)
    assert PLAIN.keys() <= set(placed)


def test_every_public_verb_says_what_it_does() -> None:
    assert undocumented() == []
