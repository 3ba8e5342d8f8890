"""What the README shows exists."""

from __future__ import annotations

import re

from tests.clusters import ROOT
from waltz.cli.commands import PLACES

README = (ROOT / "README.md").read_text()


def test_the_commands_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:^\$ |`)make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    assert set(re.findall(r"(?:^\$ |`)waltz (\w+)", README, re.MULTILINE)) <= set(PLACES)


def test_the_pages_that_the_readme_links_to_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README)
    assert "docs/index.md" in links
    assert [link for link in links if not (ROOT / link).exists()] == []
