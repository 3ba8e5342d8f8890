"""The site in a real browser, read from files, with no network: it can be read and searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, sync_playwright

from tests.console.test_chromium import chromium
from tests.databases import installed
from tests.site.built import build

pytestmark = pytest.mark.processes

MILLISECONDS_MAX = 60_000
TYPED_MILLISECONDS = 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    build(directory)
    return directory


@pytest.fixture
def asked_elsewhere() -> list[str]:
    """The addresses outside the site that the browser has asked for."""
    return []


@pytest.fixture
def page(asked_elsewhere: list[str]) -> Iterator[Page]:
    def let_files_through(route: Route) -> None:
        if route.request.url.startswith(("file:", "data:", "blob:")):
            route.continue_()
        else:
            asked_elsewhere.append(route.request.url)
            route.abort()

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium() or installed("chromium", chromium),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = running.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(MILLISECONDS_MAX)
        page.route(re.compile(".*"), let_files_through)
        yield page
        running.close()


@pytest.mark.long
def test_the_pages_are_read_and_searched_without_a_network(
    site: Path, page: Page, asked_elsewhere: list[str]
) -> None:
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.get_by_role("link", name="Five minutes").first.click()
    page.wait_for_url("**/start.html")
    assert page.locator("article h1").inner_text().startswith("Five minutes")

    page.keyboard.press("/")
    page.keyboard.type("PartitionBlockedError", delay=TYPED_MILLISECONDS)
    results = page.locator(".md-search-result__link")
    results.first.wait_for()
    assert any("guarantees.html" in str(link.get_attribute("href")) for link in results.all())

    for picture in ("index.html", "design/the-log.html"):
        page.goto((site / picture).as_uri())
        widths = page.locator("article img").evaluate_all(
            "all => all.map(each => each.naturalWidth)"
        )
        assert widths
        assert all(widths)
    assert (asked_elsewhere, errors) == ([], [])
