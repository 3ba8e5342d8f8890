"""The site, built as `make site` builds it, and what a browser finds in its pages."""

from __future__ import annotations

import posixpath
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tests.clusters import ROOT

COUNTED: Final = frozenset(("ul", "ol", "li", "table", "tr", "pre", "blockquote", "h1", "h2", "h3"))
"""The elements that are counted in two readings of one text, to compare the readings."""

LOADING: Final = {
    **dict.fromkeys(("script", "img", "iframe", "audio", "video", "source", "embed"), "src"),
    "link": "href",
    "object": "data",
    "use": "href",
}
"""The attribute by which an element has a browser load something while it shows the page."""

NOT_LOADED: Final = frozenset(("next", "prev", "canonical"))
"""The values of `rel` for which a browser loads nothing."""


def build(directory: Path) -> None:
    """Build the site into `directory`. Raises AssertionError with what mkdocs has said."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass
class ReadPage(HTMLParser):
    """A page as it was built: its loads, links, anchors and counted elements."""

    loads: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    in_text: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.in_text = self.in_text or tag == "article"
        if self.in_text and tag in COUNTED:
            self.counts[tag] += 1
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        name = LOADING.get(tag)
        if name in attributes and attributes.get("rel") not in NOT_LOADED:
            self.loads.append(attributes[name])
        self.loads += [part.split()[0] for part in attributes.get("srcset", "").split(",") if part]

    def handle_endtag(self, tag: str) -> None:
        self.in_text = self.in_text and tag != "article"


def read(text: str) -> ReadPage:
    page = ReadPage()
    page.feed(text)
    return page


def pages(site: Path) -> dict[str, ReadPage]:
    """Return the pages of a built site by their place in it."""
    return {
        path.relative_to(site).as_posix(): read(path.read_text())
        for path in sorted(site.rglob("*.html"))
    }


def dead_links(site: Path, found: dict[str, ReadPage]) -> Iterator[str]:
    """Yield each link that leads to no file of the site, or to no place of its page."""
    for place, page in found.items():
        for link in [*page.links, *page.loads]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            folder = posixpath.dirname(place)  # an absolute path begins at the top of the site
            path = unquote(parts.path)
            target = posixpath.normpath(posixpath.join(folder, path)).removeprefix("/")
            target = target if parts.path else place
            if not (site / target).is_file():
                yield f"{place}: {link}: no such file"
            elif parts.fragment and unquote(parts.fragment) not in found[target].ids:
                yield f"{place}: {link}: no such place"
