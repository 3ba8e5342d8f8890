"""Pages that ask for what they show: which questions, and what is said before and after."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.console.browser import Browser, browse
from tests.console.details import explanation, hottest_told, locks_told
from tests.console.served import MadeUpCluster
from tests.console.states import cluster, node_id
from waltz.console.answers import ClusterAnswers, Told
from waltz.console.detail_pages import lock_names, parse_request_id
from waltz.console.inquiries import (
    HOT_PARTITIONS_PER_SECOND,
    DurationsOf,
    HottestLocksOf,
    LifeOf,
    LocksOf,
    PipelinesOf,
    PlaceOf,
    RequestOf,
    RequestTold,
    SessionsOf,
    SinksOf,
    SinksTold,
)
from waltz.console.transaction_life import life_of
from waltz.console.web_shell import INQUIRY_SECONDS_MAX
from waltz.errors import UnavailableError
from waltz.operators.explanation_shell import Copy, CopyStanding
from waltz.operators.hot_locks_shell import HottestLocks
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId
from waltz.wire.report_protocol import RefusalsKept

ZERO = PartitionId(0)


def got(
    target: str, told: dict[Any, Any] | None = None, answers: ClusterAnswers | None = None
) -> tuple[int, str, list[Any]]:
    """Return the status and text of a page, and what was inquired for it."""
    made_up = MadeUpCluster(answers or cluster())
    made_up.told = told or {}
    found: list[Any] = []

    async def story(browser: Browser) -> None:
        answer = await browser.get(target)
        found.extend((answer.status, answer.headers.get("location") or answer.text))

    browse(story, made_up)
    return found[0], found[1], made_up.inquired


def test_a_partition_shows_locks_refusals_durations_and_sessions() -> None:
    status, text, asked = got("/partition/0")
    assert status == 200
    assert {*asked} == {LocksOf(ZERO), DurationsOf(ZERO), SessionsOf(ZERO)}
    for part in (
        "412 appends were refused", "all of them", "hash 01234567", ">398<", "wrote the lock",
        "/transaction?partition=0&amp;id=91822", "/transaction?request=23:3:0:0",
        "0.25 to 0.5 ms", "last minute", "3 of 3 nodes", "storage-3 tells nothing",
    ):  # fmt: skip
        assert part in text, part


def test_locks_have_the_names_that_the_viewer_gives() -> None:
    _, text, _ = got("/partition/0?locks=account,+order")
    assert "account:" in text
    assert 'value="account, order"' in text
    assert lock_names(" a,,b ,a") == ("a", "b")
    assert len(lock_names(",".join(map(str, range(100))))) == 10


def test_what_a_server_does_not_tell_is_unknown_with_its_reason() -> None:
    error = UnavailableError("the release of server h:1 cannot say this")
    _, text, _ = got("/partition/0", dict.fromkeys((LocksOf, DurationsOf, SessionsOf), error))
    assert text.count("Unknown: the release of server h:1 cannot say this.") == 3
    assert "No append was refused" not in text
    never = replace(locks_told(), kept=replace(locks_told().kept, count=0, kept=0), locks=())
    _, text, _ = got("/partition/0", {LocksOf: never})
    assert "No append was refused since the server has opened the partition." in text


def test_the_locks_that_refuse_most_are_shown_over_all_partitions() -> None:
    status, text, asked = got("/locks?locks=order")
    assert status == 200
    assert asked == [HottestLocksOf(2)]
    for part in (
        "The hottest lock that is known is order:124961321",
        '<a href="/partition/0">partition 0</a>',
        "4,980 refusals that its server remembers", "/transaction?partition=0&amp;id=91822",
        "Partition 1: unknown: server 10.0.0.9:55280 does not have the partition now.",
        "1 of 2 partitions asked", "they remember 10,000, which are counted here",
        'value="order"',
    ):  # fmt: skip
        assert part in text, part


def test_a_lock_is_the_hottest_only_if_all_partitions_were_asked() -> None:
    """And that no append was refused is said of those alone that could be asked."""
    whole = replace(hottest_told(), unasked={})
    _, text, _ = got("/locks", {HottestLocksOf: whole})
    assert "The hottest lock is hash 01234567" in text
    assert "unknown" not in text
    never = RefusalsKept(0, 0, -1)
    none = HottestLocks((), dict.fromkeys(map(PartitionId, (0, 1)), never), {})
    _, text, _ = got("/locks", {HottestLocksOf: none})
    assert "No append was refused since the servers have opened the partitions." in text
    some = HottestLocks((), {ZERO: never}, {PartitionId(1): "no server has it now"})
    _, text, _ = got("/locks", {HottestLocksOf: some})
    assert "No append was refused in the partitions that could be asked, since" in text
    assert "Partition 1: unknown: no server has it now." in text
    nobody = HottestLocks((), {}, dict.fromkeys(map(PartitionId, (0, 1)), "gone"))
    _, text, _ = got("/locks", {HottestLocksOf: nobody})
    assert "No append was refused" not in text
    assert "Partitions 0-1: unknown: gone." in text
    _, text, _ = got("/locks", {HottestLocksOf: UnavailableError("no answer in 30 s")})
    assert "Unknown: no answer in 30 s." in text
    assert "No append was refused" not in text


def test_without_a_coordinator_no_partition_is_asked_and_no_lock_is_said_to_be_cold() -> None:
    silent = cluster()
    silent = replace(silent, coordinator=Told(trouble="connection refused"))
    status, text, asked = got("/locks", answers=silent)
    assert (status, asked) == (200, [])
    assert "It is not known which partitions there are:" in text
    assert "No append was refused" not in text


def test_many_partitions_that_cannot_be_asked_take_few_lines() -> None:
    unasked = {PartitionId(2 * each): f"server h:{each % 9} is gone" for each in range(5_000)}
    _, text, _ = got("/locks", {HottestLocksOf: HottestLocks((), {}, unasked)})
    assert text.count("is gone.") == 5
    assert "Partitions 0, 18, 36" in text
    assert "and others, 556 in all: unknown: server h:0 is gone." in text
    assert "more partitions, for other reasons" in text
    assert len(text) < 10_000


def test_the_more_partitions_there_are_the_less_often_their_locks_are_asked_for() -> None:
    """A server's work per second is bounded, whatever the number of partitions and viewers."""
    for count in (1, 2, 50, 100, 5_000):
        assert count / HottestLocksOf(count).pause <= HOT_PARTITIONS_PER_SECOND
        assert HottestLocksOf(count).fresh >= HottestLocksOf(count).pause >= 5


def test_a_transaction_shows_author_copies_times_and_refusals() -> None:
    status, text, asked = got("/transaction?partition=0&id=17")
    assert status == 200
    assert asked == [LifeOf(ZERO, TransactionId(17))]
    for part in (
        "Committed; 2 of 3 copies were read", "12:3:0:4711", "orders-7", "10.0.0.5:41234",
        "has it, read and checked now", "unknown: connection refused", "between 2026-",
        "3 that the server remembers", "id=16", "id=18", "Show the data",
    ):  # fmt: skip
        assert part in text, part
    assert "a transaction<" not in text, "data is shown only if it is asked for"


@pytest.mark.parametrize(
    ("changes", "status", "parts"),
    [
        (
            {"high_water_mark": None, "mark_trouble": "no server"},
            200,
            ("Nobody can say whether it is committed: no server", "state unknown"),
        ),
        (
            {
                "high_water_mark": TransactionId(9),
                "copies": tuple(
                    Copy(node_id(each), CopyStanding.MISSING, "its log ends before")
                    for each in range(3)
                ),
            },
            404,
            ("There is none: the partition ends with transaction 9",),
        ),
        (
            {"author": None, "author_trouble": "it is not mounted now"},
            200,
            ("whose name is unknown: it is not mounted now",),
        ),
        (
            {"refusals": None, "refusals_trouble": "the server does not answer"},
            200,
            ("Unknown: the server does not answer",),
        ),
        (
            {"copies": (Copy(node_id(0), CopyStanding.DIFFERENT, "it is another record"),)},
            200,
            ("state down", "differs: it is another record"),
        ),
    ],
)
def test_what_is_not_known_of_a_transaction_is_said(
    changes: dict[str, Any], status: int, parts: tuple[str, ...]
) -> None:
    found, text, _ = got(
        "/transaction?partition=0&id=17", {LifeOf: life_of(explanation(**changes))}
    )
    assert found == status
    for part in parts:
        assert part in text, part


def test_a_transaction_that_takes_long_comes_with_the_stream() -> None:
    made_up = MadeUpCluster(cluster())
    answered = asyncio.Event()

    class Slow(MadeUpCluster):
        async def ask(self, question: Any) -> Any:
            await answered.wait()
            return await made_up.ask(question)

    async def story(browser: Browser) -> None:
        target = "/transaction?partition=0&id=17"
        loop = asyncio.get_running_loop()
        before = loop.time()
        page = await browser.get(target)
        assert loop.time() - before < 2 * INQUIRY_SECONDS_MAX + 1
        assert "Asking the server and every storage node" in page.text
        assert 'data-events="/transaction?partition=0&amp;id=17"' in page.text
        answered.set()
        events = await browser.events(f"/events?page={target.replace('&', '%26')}", 3)
        shown = [event["regions"]["found"] for event in events if "found" in event["regions"]]
        assert "Committed; 2 of 3" in shown[-1]

    browse(story, Slow(cluster()))


def test_a_stream_alone_explains_no_transaction() -> None:
    made_up = MadeUpCluster(cluster())

    async def story(browser: Browser) -> None:
        await browser.events("/events?page=/transaction?partition=0%26id=17", 3)
        assert made_up.inquired == []

    browse(story, made_up)


def test_a_time_leads_to_the_transactions_around_it() -> None:
    status, text, asked = got("/transaction?partition=0&id=2026-11-24+03:21:16")
    assert status == 200
    assert asked == [PlaceOf(ZERO, 1_795_490_476_000)]
    assert "Every transaction before 17 was on a majority of its storage nodes by then" in text
    assert "id=16" in text
    assert "id=23" in text
    status, location, asked = got("/transaction?partition=0&id=10+min+ago")
    assert (status, asked) == (303, [])
    assert location.startswith("/transaction?partition=0&id=")


def test_a_request_id_leads_to_its_transaction_if_that_is_among_the_newest() -> None:
    request_id = RequestId(ClientId(12), Generation(3), ZERO, 4711)
    status, location, asked = got("/transaction?request=12:3:0:4711")
    assert (status, location) == (303, "/transaction?partition=0&id=17")
    assert asked == [RequestOf(request_id)]
    _, text, _ = got(
        "/transaction?request=12:3:0:4711", {RequestOf: RequestTold(None, 100, 200, 3)}
    )
    assert "Not among transactions 100 to 200" in text
    assert "waltz outcome 12:3:0:4711" in text
    assert "refused for a lock 3 times" in text
    _, text, _ = got(
        "/transaction?request=12:3:0:4711", {RequestOf: RequestTold(None, 0, 41, None)}
    )
    assert "It may still come" in text
    assert "is unknown: the server does not answer" in text


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("partition=x&id=1", "A partition is a whole number."),
        ("partition=0&id=soon", "or an age, such as 10 min ago"),
        ("partition=0&id=99999999-99-99", "A time is a date"),
        ("partition=2&id=1", "There is no partition 2: the cluster has 0 to 1."),
        ("request=1:2:3", "A request ID has four whole numbers"),
        ("request=1:2:7:4", "There is no partition 7"),
        ("request=1:2:0:99999999999", "A request ID has four whole numbers"),
        ("&".join(f"a{n}=1" for n in range(40)), "Request ID"),
    ],
)
def test_what_cannot_be_asked_is_said_and_nobody_is_asked(query: str, part: str) -> None:
    _, text, asked = got(f"/transaction?{query}")
    assert part in text
    assert asked == []


def test_request_ids_are_four_numbers() -> None:
    assert parse_request_id("-1:0:2:3") == RequestId(ClientId(-1), Generation(0), PartitionId(2), 3)
    for text in ("", "1:2:3", "1:2:3:4:5", "1:2:3:x", "1:2:3:--4", "1:2:3:2147483648"):
        assert parse_request_id(text) is None


def test_pipelines_show_what_is_known_and_say_what_is_not() -> None:
    status, text, asked = got("/pipelines")
    assert status == 200
    assert {*asked} == {SinksOf(), PipelinesOf()}
    for part in (
        "archive.yaml", "12", "there is no target", "a task has begun 3 s ago",
        "no task has begun in the last 60 s", "lock account:7 is held", "and 4 more",
        "Whether a query still runs",
    ):  # fmt: skip
        assert part in text, part
    _, text, _ = got("/pipelines", {SinksOf: SinksTold(())})
    assert "None has left a note." in text
    _, text, _ = got("/pipelines", {SinksOf: UnavailableError("the coordinator is away")})
    assert "Unknown: the coordinator is away." in text
    assert "None has left a note." not in text
