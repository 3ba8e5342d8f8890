"""The console in a real browser: Debian's chromium, headless, with no network but the console.

`CONSOLE_PICTURES=DIRECTORY pytest tests/console/test_chromium.py` keeps a picture of each page.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.clusters import wait_until
from tests.console.details import hostile_details
from tests.console.hostile import ALL
from tests.console.served import MadeUpCluster, MadeUpLog, console, large
from tests.console.states import (
    cluster,
    gone,
    node_id,
    partition_report,
    storage_told,
    with_node,
    with_reports,
)
from tests.databases import installed
from tests.shares import one_in
from waltz.connections.loop_thread import LoopThread
from waltz.system.http import HttpBounds, HttpServer
from waltz.types import Address

pytestmark = pytest.mark.processes

SIZES: Final = ((1280, 900), (420, 860))
PAGES: Final = {
    "cluster": "/",
    "partition": "/partition/42",
    "nodes": "/nodes",
    "node": f"/node/{node_id(7)}",
    "consumers": "/consumers",
    "locks": "/locks",
    "tail": "/tail?data=1",
    "transaction": "/transaction?partition=3&id=17&data=1",
    "pipelines": "/pipelines",
    "moment": "/transaction?partition=3&id=2026-11-24T03:21:16Z",
    "search": "/search?q=storage-8",
}
AXE: Final = Path(__file__).with_name("vendored") / "axe.min.js"
MILLISECONDS_MAX: Final = 20_000


def chromium() -> Path | None:
    found = shutil.which("chromium")
    return None if found is None else Path(found)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium() or installed("chromium", chromium),
            args=["--no-sandbox", "--disable-gpu"],
        )
        yield running
        running.close()


@contextmanager
def served(made_up: MadeUpCluster, log: MadeUpLog | None = None) -> Iterator[str]:
    """Serve the console of a made-up cluster; yield its URL."""
    loop = LoopThread("console", asyncio.new_event_loop())

    async def start() -> tuple[Any, Any, HttpServer]:
        shown, poller = console(made_up, log)
        server = HttpServer(shown.application(), HttpBounds(512, 60.0))
        await server.start(Address("127.0.0.1", 0))
        return shown, poller, server

    async def stop() -> None:
        await shown.stop()
        await poller.stop()
        await server.stop()

    shown, poller, server = loop.call(start(), 20)
    try:
        yield f"http://{server.address}"
    finally:
        loop.call(stop(), 20)
        loop.stop()


class Watched:
    """A page of which every request and every message is kept."""

    def __init__(self, browser: Browser, url: str, size: tuple[int, int], scheme: str) -> None:
        width, height = size
        self.context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        self.url = url
        self.elsewhere: list[str] = []
        self.said: list[str] = []
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(MILLISECONDS_MAX)
        self.page.on("request", lambda request: self._note(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(f"dialog {dialog.message}"))

    def _note(self, url: str) -> None:
        if not url.startswith(f"{self.url}/"):
            self.elsewhere.append(url)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def wait_until_live(self) -> None:
        self.page.locator("#stream", has_text="Live.").wait_for()

    def close(self) -> None:
        self.context.close()
        assert self.elsewhere == [], "the console asks nobody else"
        assert self.said == [], "the browser has nothing to complain of"


@contextmanager
def watched(
    browser: Browser, url: str, size: tuple[int, int] = SIZES[0], scheme: str = "light"
) -> Iterator[Watched]:
    found = Watched(browser, url, size, scheme)
    yield found
    found.close()


@pytest.fixture(scope="module")
def large_console() -> Iterator[str]:
    with served(MadeUpCluster(large(), step=40)) as url:
        yield url


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
@pytest.mark.parametrize("size", one_in(len(SIZES), SIZES), ids=lambda size: str(size[0]))
@pytest.mark.parametrize("name", PAGES)
def test_each_page_fits_moves_and_is_accessible(
    browser: Browser, large_console: str, name: str, size: tuple[int, int], scheme: str
) -> None:
    """All pages, 100 partitions and 20 nodes: no request elsewhere, no message, no violation."""
    with watched(browser, large_console, size, scheme) as shown:
        page = shown.open(PAGES[name])
        if page.get_attribute("body", "data-events"):
            shown.wait_until_live()
        if name == "tail":
            page.wait_for_selector("#tail tr")
        if name in ("cluster", "partition"):
            page.wait_for_selector(".uplot canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        page.evaluate(AXE.read_text())  # not by a script element: the page allows none but ours
        violations = page.evaluate(
            "axe.run().then(found => found.violations.map("
            "each => each.id + ': ' + each.nodes.slice(0, 3).map(node => node.html).join(' ')))"
        )
        assert violations == []
        if directory := os.environ.get("CONSOLE_PICTURES"):
            path = Path(directory) / f"{name}-{size[0]}-{scheme}.png"
            page.screenshot(path=path, full_page=True)


def test_figures_move_while_the_page_stands_still(browser: Browser, large_console: str) -> None:
    with watched(browser, large_console) as shown:
        page = shown.open("/partition/3")
        shown.wait_until_live()
        before = page.text_content('[data-live="mark"]')
        page.evaluate("window.isTheSame = true")
        wait_until(
            lambda: page.text_content('[data-live="mark"]') != before, "the mark does not move"
        )
        assert page.evaluate("window.isTheSame"), "it was not loaded anew"


def test_a_node_that_dies_is_seen_without_loading_the_page_anew(browser: Browser) -> None:
    made_up = MadeUpCluster(cluster())
    with served(made_up) as url, watched(browser, url) as shown:
        page = shown.open("/")
        assert "All 2 partitions take appends" in (page.text_content("h1") or "")
        shown.wait_until_live()
        page.focus("#p1 a")
        made_up.answers = with_node(made_up.answers, 0, gone("connection refused"))
        page.get_by_text("Storage node storage-1 does not answer: connection refused.").wait_for()
        assert page.evaluate("document.activeElement.closest('tr')?.id") == "p1"
        made_up.answers = cluster(partitions=3)
        page.wait_for_selector("#p2")


@pytest.mark.long
def test_the_console_that_is_gone_is_told_on_the_page(browser: Browser) -> None:
    with served(MadeUpCluster(cluster())) as url:
        shown = Watched(browser, url, SIZES[0], "light")
        shown.open("/nodes")
        shown.wait_until_live()
    shown.page.wait_for_selector("#stream.lost")
    assert "has not answered for" in (shown.page.text_content("#stream") or "")
    shown.context.close()


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, large_console: str) -> None:
    with watched(browser, large_console) as shown:
        page = shown.open("/")
        shown.wait_until_live()
        focused = "document.activeElement.textContent.trim()"
        page.keyboard.press("Tab")
        assert page.evaluate(focused) == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.id") == "search"
        page.keyboard.type("42")
        page.keyboard.press("Enter")
        page.wait_for_url("**/partition/42")
        page.keyboard.press("/")
        page.keyboard.type("storage-8")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/node/{node_id(7).replace(':', '%3A')}")
        page.focus("tbody tr:first-child a")
        page.keyboard.press("ArrowDown")
        second = page.text_content("tbody tr:nth-child(2) th")
        assert page.evaluate(focused) == (second or "").strip()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        page.wait_for_url("**/partition/*")
        seen = []
        for _ in range(14):
            page.keyboard.press("Tab")
            seen.append(page.evaluate("document.activeElement.tagName"))
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", "the focus is seen"
        assert {"A", "INPUT", "BUTTON"} <= set(seen)


@pytest.mark.long
def test_colours_are_chosen_and_kept(browser: Browser, large_console: str) -> None:
    with watched(browser, large_console) as shown:
        page = shown.open("/nodes")
        paper = "getComputedStyle(document.documentElement).backgroundColor"
        light = page.evaluate(paper)
        page.click("#theme")
        dark = page.evaluate(paper)
        assert dark != light
        page.reload()
        assert page.evaluate(paper) == dark
        assert page.get_attribute("html", "data-theme") == "dark"


def test_hostile_names_and_data_run_nothing(browser: Browser) -> None:
    """A page shows each of them as text; a dialog or a message would fail it."""
    answers = cluster(partitions=len(ALL), nodes=3)
    texts = dict(enumerate(ALL))
    answers = with_reports(
        answers,
        {number: partition_report(number, (), writable=0, reason=text)
         for number, text in texts.items()},
    )  # fmt: skip
    held = range(len(ALL))
    answers = with_node(answers, 0, storage_told(held, problems=ALL))
    for data in ALL[:2]:
        log = MadeUpLog(data.encode())
        made_up = MadeUpCluster(answers, step=1)
        made_up.told = hostile_details(data, data.encode())
        with (
            served(made_up, log) as url,
            watched(browser, url) as shown,
        ):
            for path in ("/", "/nodes", f"/node/{node_id(0)}", "/partition/1"):
                shown.open(path)
                shown.wait_until_live()
            for path in ("/pipelines", "/locks", "/transaction?request=1:2:0:3"):
                shown.open(path)
            page = shown.open("/transaction?partition=0&id=1&data=1")
            assert page.text_content("pre") == data
            page = shown.open("/tail?data=1")
            page.wait_for_selector("#tail tr")
            assert page.text_content("#tail tr td:last-child") == data


def test_the_live_tail_shows_rows_and_stops_while_paused(
    browser: Browser, large_console: str
) -> None:
    with watched(browser, large_console) as shown:
        page = shown.open("/tail?partition=3")
        page.wait_for_selector("#tail tr")
        assert page.locator("#tail tr").first.locator("td").count() == 4
        page.click("#pause")
        count = page.locator("#tail tr").count()
        said = page.text_content("#tail-said")
        wait_until(lambda: page.text_content("#tail-said") != said, "nothing is counted")
        assert page.locator("#tail tr").count() == count


def test_a_live_tail_whose_console_is_gone_says_so(browser: Browser) -> None:
    """Its count lacks the transactions that came while the console did not answer."""
    with served(MadeUpCluster(large(), step=40)) as url:
        shown = Watched(browser, url, SIZES[0], "light")
        shown.open("/tail?partition=3")
        shown.page.wait_for_selector("#tail tr")
    shown.page.wait_for_selector("#tail-said.lost")
    assert "neither shown nor counted" in (shown.page.text_content("#tail-said") or "")
    shown.context.close()
