"""The site of the pages: it shows what the files say, all links lead somewhere, nothing is loaded
from elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from markdown_it import MarkdownIt
from mkdocs.exceptions import PluginError

from docs.site.pages import TOP_PAGES, list_of_decisions, site_link
from tests.clusters import ROOT
from tests.site.built import ReadPage, build, dead_links, pages, read

UNUSED_ADDRESSES: Final = {
    "https://api.github.com/repos/": "asked for a link to a repository, which the site has none of",
    "https://api.github.com/users/": "asked for a link to a repository, which the site has none of",
    "https://unpkg.com/mermaid@": "loaded for drawings as text, which the site has none of",
    "https://unpkg.com/resize-observer-polyfill": "loaded by browsers from before 2020",
    "https://bit.ly/2s3ChXG": "words of a warning",
    "https://clipboardjs.com": "a comment",
    "https://fontawesome.com": "a comment",
    "http://lunrjs.com": "a comment",
    "http://tartarus.org": "a comment",
    "http://www.w3.org/": "names of XML",
}
"""The beginning of each address that the theme's scripts and styles name, and why no browser goes
there."""

ELSEWHERE: Final = re.compile(r"(?:https?:|wss?:|(?<=[\"'`(]))//(?:[\w-]+\.)+[a-z]{2,}[\w./@-]*")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build(directory)
    return directory


@pytest.fixture(scope="module")
def found(site: Path) -> dict[str, ReadPage]:
    return pages(site)


def sources() -> dict[str, Path]:
    """Return the files of pages by the place of the page in the built site."""
    of_docs = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix(): path
        for path in sorted((ROOT / "docs").rglob("*.md"))
    }
    return of_docs | {name.replace(".md", ".html"): ROOT / name for name in TOP_PAGES}


def test_every_file_of_the_documentation_is_a_page(found: dict[str, ReadPage]) -> None:
    assert set(sources()) | {"decisions/index.html", "404.html"} == set(found)


def test_a_page_consists_of_what_a_repository_shows_of_its_file(
    found: dict[str, ReadPage],
) -> None:
    """Two programs that read Markdown differ where a list has no empty line before it, or continues
    with too few spaces: then a page of the site is not what its author has seen."""
    commonmark = MarkdownIt("commonmark").enable("table")
    for place, path in sources().items():
        expected = read(f"<article>{commonmark.render(path.read_text())}</article>").counts
        assert expected == found[place].counts, place


def test_every_link_leads_to_a_file_and_to_a_place_in_it(
    site: Path, found: dict[str, ReadPage]
) -> None:
    assert [*dead_links(site, found)] == []
    assert sum(len(page.links) for page in found.values()) > len(found)


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("guarantees.html#a-commit", []),
        ("guaranties.html", ["no such file"]),
        ("guarantees.html#no-commit", ["no such place"]),
        ("#no-commit", ["no such place"]),
        ("decisions", ["no such file"]),
    ],
)
def test_a_dead_link_is_found(
    site: Path, found: dict[str, ReadPage], link: str, said: list[str]
) -> None:
    planted = found | {"planted.html": read(f'<a href="{link}">here</a>')}
    (site / "planted.html").touch()
    dead = [each for each in dead_links(site, planted) if each.startswith("planted.html")]
    (site / "planted.html").unlink()
    assert [each.rpartition(": ")[2] for each in dead] == said


def test_no_page_has_a_browser_load_anything_from_elsewhere(found: dict[str, ReadPage]) -> None:
    loads = {load for page in found.values() for load in page.loads}
    assert [load for load in loads if re.match(r"(?:[a-z]+:|//)", load)] == []
    assert any("iframe-worker" in load for load in loads)
    assert any(load.endswith(".css") for load in loads)


def test_scripts_and_styles_name_no_address_that_a_browser_goes_to(site: Path) -> None:
    named = Counter(
        address
        for pattern in ("*.js", "*.css")
        for path in site.rglob(pattern)
        if path.name != "search_index.js"
        for address in ELSEWHERE.findall(path.read_text())
    )
    unknown = [each for each in named if not each.startswith(tuple(UNUSED_ADDRESSES))]
    assert unknown == []


def test_no_page_has_what_the_theme_would_load_something_for(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        assert 'class="mermaid"' not in text, path
        assert 'data-md-component="source"' not in text, path
        assert not re.search(r"url\(\s*['\"]?(?:https?:|//)", text), path


# Links as the repository has them


@pytest.mark.parametrize(
    ("link", "page", "expected"),
    [
        ("guarantees.md#locks", "tutorial.md", "guarantees.md#locks"),
        ("../ARCHITECTURE.md", "style.md", "ARCHITECTURE.md"),
        ("../../CHANGELOG.md#x", "operating/tls.md", "../CHANGELOG.md#x"),
        ("docs/guarantees.md", "CHANGELOG.md", "guarantees.md"),
        ("docs/pictures/append.svg", "ARCHITECTURE.md", "pictures/append.svg"),
        ("decisions", "index.md", "decisions/index.md"),
        ("#locks", "guarantees.md", "#locks"),
        ("https://example.com/a", "index.md", "https://example.com/a"),
    ],
)
def test_links_are_those_of_the_repository(link: str, page: str, expected: str) -> None:
    assert site_link(link, page) == expected


def test_a_link_to_what_the_site_does_not_have_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"docs/index.md: the site has no src/waltz/types.py"):
        site_link("../src/waltz/types.py", "index.md")


def test_the_list_of_decisions_has_every_decision_in_order(tmp_path: Path) -> None:
    (tmp_path / "0002-b.md").write_text("# 2. To be\n\ntext")
    (tmp_path / "0001-a.md").write_text("# 1. Or not\n")
    assert list_of_decisions(tmp_path).splitlines()[-2:] == [
        "| 1 | [Or not](0001-a.md) |",
        "| 2 | [To be](0002-b.md) |",
    ]
    (tmp_path / "0003-c.md").write_text("# Three\n")
    with pytest.raises(PluginError, match="0003"):
        list_of_decisions(tmp_path)
