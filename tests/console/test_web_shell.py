"""The console over HTTP: every page, its streams, and what it refuses."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.console.browser import Browser, browse
from tests.console.details import hostile_details, life
from tests.console.hostile import ALL, INVISIBLE, MARKUP
from tests.console.served import MadeUpCluster, MadeUpLog, large
from tests.console.states import (
    cluster,
    node_id,
    partition_report,
    storage_told,
    with_node,
    with_nodes_gone,
    with_reports,
)
from waltz.console.inquiries import LifeOf
from waltz.console.live_tail_shell import TAILS_MAX
from waltz.console.tail_sample import TAIL_ROWS_MAX
from waltz.console.web_shell import STREAM_SECONDS_MAX, STREAMS_MAX, static_files

PAGE_BYTES_MAX = 200 * 1024
MODULE_BYTES_MAX = 15 * 1024
PAGES = (
    "/", "/?from=0", "/partition/42", "/nodes", f"/node/{node_id(3)}", "/consumers", "/tail",
    "/tail?partition=3&data=1", "/transaction", "/transaction?partition=3&id=17",
    "/transaction?partition=3&id=17&data=1", "/partition/42?locks=account,order", "/pipelines",
    "/locks", "/locks?locks=account,order", "/locks?locks=%3Cscript%3E",
    "/transaction?partition=3&id=2026-11-24T03:21:16Z", "/partition/42?locks=%3Cscript%3E",
)  # fmt: skip
ELEMENTS = {
    "a", "body", "br", "button", "code", "dd", "div", "dl", "dt", "figcaption", "figure", "footer",
    "form", "h1", "h2", "head", "header", "html", "i", "input", "kbd", "label", "li", "link",
    "main", "meta", "nav", "p", "path", "pre", "rect", "script", "section", "small", "span", "svg",
    "table", "tbody", "td", "th", "thead", "title", "tr", "ul",
}  # fmt: skip


class Elements(HTMLParser):
    """The elements of a page with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def check_page(html: str) -> None:
    """Nothing on the page is anything but ours."""
    for tag, attributes in Elements(html).found:
        assert tag in ELEMENTS, tag
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("href", "src", "action"):
            where = attributes.get(name)
            assert where is None or re.match(r"(/(?!/)|#)", where), where
        if tag == "script":
            assert (attributes.get("src") or "").startswith("/static/")
    assert not re.search("<script[^>]*>[^<]", html), "no script stands in a page"


@pytest.mark.parametrize("target", PAGES)
def test_each_page_of_a_large_cluster_is_served_and_small(target: str) -> None:
    async def story(browser: Browser) -> None:
        got = await browser.get(target)
        assert got.status == 200
        assert len(got.text.encode()) <= PAGE_BYTES_MAX
        assert got.headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in got.headers["content-security-policy"]
        assert got.headers["cache-control"] == "no-store"
        check_page(got.text)

    browse(story, MadeUpCluster(large()))


@pytest.mark.parametrize(
    "target",
    [
        "/nope", "/partition/100", "/partition/x", "/partition/-1", "/partition/" + "9" * 400,
        "/node/nowhere", "/static/nope", "/static/..%2fpages.py", "/static/uPlot.LICENSE",
        "/transaction?partition=3&id=99999999999", "/transaction?partition=x&id=1",
        "/transaction?partition=3&id=" + "9" * 5000, "/search?q=nothing", "/" + "x" * 3000,
    ],
)  # fmt: skip
def test_what_is_not_there_is_not_found(target: str) -> None:
    async def story(browser: Browser) -> None:
        got = await browser.get(target)
        assert got.status == 404
        assert len(got.text) < 10_000
        check_page(got.text)

    browse(story, MadeUpCluster(cluster()))


@pytest.mark.parametrize("index", range(len(ALL)))
def test_hostile_names_errors_and_data_are_text_and_bounded(index: int) -> None:
    hostile = ALL[index]
    answers = cluster(name=hostile)
    answers = replace(answers, names={str(node_id(0)): hostile, str(node_id(1)): "storage-2"})
    answers = with_node(answers, 0, storage_told([0, 1], problems=(hostile,)))
    answers = with_reports(answers, {0: partition_report(0, (), writable=0, reason=hostile)})
    data = hostile.encode(errors="surrogatepass")
    made_up = MadeUpCluster(answers)
    made_up.told = hostile_details(hostile, data)
    query = "".join(f"%{each:02x}" for each in hostile[:300].encode(errors="surrogatepass"))

    async def story(browser: Browser) -> None:
        targets = [*PAGES[:2], "/partition/0", "/nodes", f"/node/{node_id(0)}", "/pipelines",
                   "/locks", f"/locks?locks={query}",
                   "/transaction?partition=0&id=1&data=1", f"/partition/0?locks={query}",
                   f"/transaction?request={query}"]  # fmt: skip
        for target in [*targets, f"/search?q={query}", f"/nope/{query}", f"/?from={query}",
                       f"/transaction?partition={query}&id={query}"]:  # fmt: skip
            got = await browser.get(target)
            assert len(got.text.encode()) <= PAGE_BYTES_MAX
            check_page(got.text)
            assert all(each.isprintable() or each == "\n" for each in got.text)
            assert "alert(1)</script>" not in got.text
            for name, value in got.headers.items():
                assert (name + value).isprintable()
        (event,) = await browser.events("/events?page=/partition/0", 1)
        for html in event["regions"].values():
            check_page(html)

    browse(story, made_up)
    assert MARKUP
    assert INVISIBLE


def test_requests_by_another_name_or_to_write_are_refused() -> None:
    async def story(browser: Browser) -> None:
        assert (await browser.get("/", host="evil.example")).status == 421
        assert (await browser.get("/events?page=/", host="evil.example:7180")).status == 421
        assert (await browser.get("/", method="POST")).status == 405
        assert (await browser.get("/events", sec_fetch_site="cross-site")).status == 403
        assert browser.poller.questions == 0, "nobody was asked for them"

    browse(story, MadeUpCluster(cluster()))


def test_the_files_of_pages_are_small_and_ours_but_for_the_vendored_one() -> None:
    found = static_files()
    assert set(found) == {
        "console.css", "console.js", "mark.svg", "uPlot.iife.min.js", "uPlot.min.css",
    }  # fmt: skip
    assert len(found["console.js"][0]) <= MODULE_BYTES_MAX
    assert sum(len(content) for content, _ in found.values()) <= PAGE_BYTES_MAX / 2
    for name, (content, _) in found.items():
        assert b"innerHTML = " not in content or name == "console.js"
        assert not re.search(rb"https?://(?!www\.w3\.org/|github\.com/leeoniya)", content), name


def test_the_theme_that_was_chosen_is_in_the_page() -> None:
    async def story(browser: Browser) -> None:
        assert (
            '<html lang="en" data-theme="dark">'
            in (await browser.get("/", cookie="theme=dark")).text
        )
        assert '<html lang="en">' in (await browser.get("/", cookie='theme="><script>')).text

    browse(story, MadeUpCluster(cluster()))


def test_a_search_leads_to_partitions_transactions_and_nodes() -> None:
    async def story(browser: Browser) -> None:
        for query, path in (
            ("1", "/partition/1"),
            ("partition 1", "/partition/1"),
            ("1:17", "/transaction?partition=1&id=17"),
            ("12:3:1:17", "/transaction?request=12:3:1:17"),
            ("storage-2", "/node/127.0.0.1%3A7202"),
            ("STORAGE-3", "/node/127.0.0.1%3A7204"),
            ("server-1", "/#servers"),
        ):
            got = await browser.get(f"/search?q={query.replace(' ', '+')}")
            assert (got.status, got.headers["location"]) == (303, path)

    browse(story, MadeUpCluster(cluster()))


def test_a_stream_sends_everything_and_then_what_changes() -> None:
    made_up = MadeUpCluster(cluster(), step=5)

    async def story(browser: Browser) -> None:
        first, second = await browser.events("/events?page=/", 2)
        assert {"p0", "p1", "headline"} <= set(first["regions"])
        assert second["regions"] == {}
        assert {"m0", "m1"} <= set(second["values"])
        made_up.answers = with_nodes_gone(made_up.answers, 0)
        events = await browser.events("/events?page=/", 5)
        assert "does not answer" in events[-1]["regions"].get("headline", "") or any(
            "does not answer" in each["regions"].get("headline", "") for each in events
        )

    browse(story, made_up)


def test_a_page_whose_rows_come_or_go_is_loaded_anew() -> None:
    made_up = MadeUpCluster(cluster())

    async def story(browser: Browser) -> None:
        watching = asyncio.create_task(browser.events("/events?page=/", 12))
        await asyncio.sleep(2)
        made_up.answers = cluster(partitions=3)
        assert {"reload": True} in await watching

    browse(story, made_up)


def test_a_stream_ends_in_time_and_when_its_reader_goes() -> None:
    async def story(browser: Browser) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        await browser.events("/events?page=/nodes", 1000)
        assert loop.time() - started == pytest.approx(STREAM_SECONDS_MAX, abs=2)
        assert browser.poller.viewers == 0

    browse(story, MadeUpCluster(cluster()))


def test_fifty_viewers_cost_the_cluster_no_more_than_one() -> None:
    asked = []
    for viewers in (1, 50):
        made_up = MadeUpCluster(large())

        async def story(browser: Browser, viewers: int = viewers) -> None:
            pages = ("/", "/nodes", "/partition/3", "/consumers", f"/node/{node_id(1)}")
            await asyncio.gather(
                *(browser.events(f"/events?page={pages[n % 5]}", 10) for n in range(viewers))
            )

        browse(story, made_up)
        asked.append(sum(made_up.asked.values()))
    assert asked[1] <= asked[0] + 2


def test_streams_are_bounded() -> None:
    async def story(browser: Browser) -> None:
        watching = [
            asyncio.create_task(browser.events("/events?page=/consumers", 4))
            for _ in range(STREAMS_MAX)
        ]
        await asyncio.sleep(1.5)
        assert (await browser.get("/events?page=/")).status == 503
        await asyncio.gather(*watching)
        assert len(await browser.events("/events?page=/", 1)) == 1

    browse(story, MadeUpCluster(cluster()))


def test_the_tail_shows_at_most_fifty_a_second_and_says_how_many_it_skipped() -> None:
    log = MadeUpLog()

    async def story(browser: Browser) -> None:
        events = await browser.events("/tail/events?partition=0", 6)
        for event in events[1:]:
            assert len(event["rows"]) <= TAIL_ROWS_MAX
            assert {*event["rows"][0]} == {"partition", "id", "header", "request"}
        assert sum(event["skipped"] for event in events) >= 4 * (1000 - TAIL_ROWS_MAX)
        ids = [int(row["id"]) for event in events for row in event["rows"]]
        assert ids == sorted(set(ids))

    browse(story, MadeUpCluster(cluster(), step=1000), log)
    assert log.rows_read <= 8 * TAIL_ROWS_MAX


def test_viewers_of_one_tail_share_its_reads_and_too_many_tails_are_told() -> None:
    log = MadeUpLog()

    async def story(browser: Browser) -> None:
        same = [asyncio.create_task(browser.events("/tail/events", 6)) for _ in range(50)]
        await asyncio.gather(*same)
        assert log.rows_read <= 8 * TAIL_ROWS_MAX
        others = [
            asyncio.create_task(browser.events(f"/tail/events?partition={n}", 6))
            for n in range(TAILS_MAX)
        ]
        await asyncio.sleep(1.5)
        (told,) = await browser.events("/tail/events?data=1", 1)
        assert "close one of them" in told["said"]
        await asyncio.gather(*others)

    browse(story, MadeUpCluster(cluster(partitions=20), step=1000), log)


def test_data_is_shown_only_when_it_is_asked_for_and_only_its_beginning() -> None:
    data = b"<b>secret</b>" + b"x" * 1_000_000
    log = MadeUpLog(data)
    made_up = MadeUpCluster(cluster(), step=5)
    made_up.told = {LifeOf: life(1, 17, data)}

    async def story(browser: Browser) -> None:
        target = "/transaction?partition=1&id=17"
        got = await browser.get(target)
        assert "secret" not in got.text
        assert "976.6 KiB" in got.text
        shown = await browser.get(f"{target}&data=1")
        assert "&lt;b&gt;secret&lt;/b&gt;" in shown.text
        assert len(shown.text) < 40_000
        (_, event) = await browser.events("/tail/events?partition=1&data=1", 2)
        assert event["rows"][0]["data"].startswith("<b>secret</b>xxx")
        assert len(event["rows"][0]["data"]) < 3000
        assert len(event["rows"]) <= TAIL_ROWS_MAX

    browse(story, made_up, log)


def test_a_cluster_of_which_nothing_is_known_has_pages_too() -> None:
    answers = cluster()
    answers = replace(answers, coordinator=replace(answers.coordinator, trouble="refused"))

    async def story(browser: Browser) -> None:
        for target in ("/", "/nodes", "/consumers", "/tail", "/transaction"):
            got = await browser.get(target)
            assert got.status == 200
        assert "Nothing is known of this cluster" in (await browser.get("/")).text
        assert (await browser.get("/partition/0")).status == 404

    browse(story, MadeUpCluster(answers))


def test_consumers_are_not_told_by_servers_of_this_release() -> None:
    async def story(browser: Browser) -> None:
        text = (await browser.get("/consumers")).text
        assert "This cluster&#39;s servers do not tell who is connected." in text

    browse(story, MadeUpCluster(cluster()))
