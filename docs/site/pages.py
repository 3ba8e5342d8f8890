"""The pages of the site that are not files of docs/, and links as the repository has them.

mkdocs calls the functions `on_...` (`hooks` of mkdocs.yml). A page links to files relative to its
own place in the repository, as every viewer of a repository wants it. The site has other places:
for the pages at the top of the repository, and an index where a link leads to a folder.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP_PAGES: Final = ("ARCHITECTURE.md", "CHANGELOG.md", "HACKING.md")
"""Pages at the top of the repository that the site has, too."""

DECISIONS: Final = "decisions/index.md"
"""The list of decisions; in a repository the folder is that list."""

FOLDERS: Final = {"docs/decisions": DECISIONS}
"""The page of the site for each folder that a page links to."""

BEFORE_RELATIVE_PATHS: Final = 10
"""The priority of our step among those of a page; the step of mkdocs that checks links has 0."""


def site_place(repository_path: str) -> str | None:
    """Return the place in the site of a file of the repository; None: the site does not have it."""
    if repository_path in FOLDERS:
        return FOLDERS[repository_path]
    if repository_path in TOP_PAGES:
        return repository_path
    return repository_path.removeprefix("docs/") if repository_path.startswith("docs/") else None


def site_link(target: str, page: str) -> str:
    """Return the link of a page, whose place in the site is `page`, as the site wants it.

    Raises PluginError: it leads to a file of the repository that the site does not have.
    """
    parts = urlsplit(target)
    if parts.scheme or parts.netloc or not parts.path:
        return target
    repository_page = page if page in TOP_PAGES else f"docs/{page}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(repository_page), parts.path))
    place = site_place(path)
    if place is None:
        raise PluginError(f"{repository_page}: the site has no {path}")
    relative = posixpath.relpath(place, posixpath.dirname(page) or ".")
    return relative + (f"#{parts.fragment}" if parts.fragment else "")


class SiteLinks(Treeprocessor):
    """The step that rewrites the links of one page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page

    def run(self, root: Element) -> None:
        for element in root.iter():
            for attribute in {"a": ("href",), "img": ("src",)}.get(element.tag, ()):
                if target := element.get(attribute):
                    element.set(attribute, site_link(target, self.page))


class SiteLinksOfPage(Extension):
    """Rewrites the links of the page that is built at the moment."""

    page = ""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        links = SiteLinks(self.page)
        md.treeprocessors.register(links, "site_links", BEFORE_RELATIVE_PATHS)


LINKS: Final = SiteLinksOfPage()


def list_of_decisions(folder: Path) -> str:
    """Return the page that names every decision of the folder, in the order of their numbers."""
    lines = ["# Decisions", "", "What was decided, and why.", "", "| | Decision |", "|---|---|"]
    for path in sorted(folder.glob("0*.md")):
        title = path.read_text().partition("\n")[0]
        found = re.fullmatch(r"# (\d+)\. (.+)", title)
        if found is None:
            raise PluginError(f"{path}: begins with {title!r}, not with '# NUMBER. TITLE'")
        lines.append(f"| {found[1]} | [{found[2]}]({path.name}) |")
    return "\n".join(lines) + "\n"


def on_config(config: MkDocsConfig) -> None:
    """Have every page's links rewritten."""
    config.markdown_extensions.append(LINKS)  # type: ignore[arg-type]  # Markdown takes instances


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not files of docs/."""
    top = Path(config.docs_dir).parent
    for name in TOP_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(top / name)))
    decisions = list_of_decisions(Path(config.docs_dir) / "decisions")
    files.append(File.generated(config, DECISIONS, content=decisions))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> None:
    """Note the page whose links are rewritten next."""
    LINKS.page = page.file.src_uri


def on_post_build(config: MkDocsConfig) -> None:
    """Remove the theme's scripts for the search in other languages, a third of the site, unused."""
    shutil.rmtree(Path(config.site_dir) / "assets" / "javascripts" / "lunr")
