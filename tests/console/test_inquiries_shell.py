"""The bounds on what pages inquire: whatever viewers do, the cluster is asked at a pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from random import Random
from typing import Any

from waltz.console.answers import Told
from waltz.console.inquiries import HottestLocksOf, Inquiry, LifeOf, LocksOf
from waltz.console.inquiries_shell import (
    KEPT_MAX,
    SECONDS_MAX,
    TOO_MANY,
    UNDER_WAY_MAX,
    WAITING_MAX,
    Inquiries,
)
from waltz.errors import UnavailableError
from waltz.sim.loop import SimulatedClock, SimulatedLoop
from waltz.types import PartitionId, TransactionId


class Cluster:
    """Answers each question after `seconds`, with its number; `error` is raised instead."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.asked: list[tuple[float, Inquiry]] = []
        self.under_way = self.under_way_most = 0
        self.error: Exception | None = None

    async def ask(self, question: Inquiry) -> Any:
        self.asked.append((asyncio.get_running_loop().time(), question))
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.under_way -= 1
        if self.error is not None:
            raise self.error
        return len(self.asked)


def play(cluster: Cluster, story: Callable[[Inquiries], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop(1)
    inquiries = Inquiries(SimulatedClock(loop, Random(1)), cluster.ask)

    async def main() -> None:
        try:
            await story(inquiries)
        finally:
            await inquiries.stop()

    try:
        loop.run_until_complete(main())
    finally:
        loop.shut_down()


def locks(number: int) -> LocksOf:
    return LocksOf(PartitionId(number))


def test_viewers_of_one_page_share_an_answer_while_it_is_fresh() -> None:
    cluster = Cluster()

    async def story(inquiries: Inquiries) -> None:
        told = await asyncio.gather(*(inquiries.first(locks(0), 5.0) for _ in range(50)))
        assert {each.answer for each in told} == {1}
        assert (await inquiries.first(locks(0), 5.0)).answer == 1
        await asyncio.sleep(LocksOf.fresh + 0.1)
        assert inquiries.told(locks(0), asks=False).answer == 1
        assert len(cluster.asked) == 1, "nobody has wanted a newer one"
        assert inquiries.told(locks(0)).answer == 1, "the old one is shown meanwhile"
        await asyncio.sleep(1)
        assert inquiries.told(locks(0)).answer == 2

    play(cluster, story)


def test_what_was_read_for_an_earlier_page_is_not_shown_while_it_is_read_for_this_one() -> None:
    """A transaction's page says that its copies were read for it."""
    cluster, life = Cluster(), LifeOf(PartitionId(0), TransactionId(7))

    async def story(inquiries: Inquiries) -> None:
        assert (await inquiries.first(life, 5.0)).answer == 1
        assert (await inquiries.first(life, 5.0)).answer == 1, "a moment later it is the same"
        cluster.seconds = 20.0
        await asyncio.sleep(3600)
        assert (await inquiries.first(life, 2.0)).answer is None
        await asyncio.sleep(60)
        assert inquiries.told(life, asks=False).answer == 2
        cluster.error = UnavailableError("away")
        told = await inquiries.first(life, 30.0)
        assert (told.answer, told.trouble) == (None, "away")

    play(cluster, story)


def test_a_page_that_is_too_much_does_not_say_that_it_is_being_asked_for() -> None:
    """The page of a transaction looks at what is known, and has it asked only when it is opened."""
    life = LifeOf(PartitionId(0), TransactionId(7))

    async def story(inquiries: Inquiries) -> None:
        for number in range(WAITING_MAX + 1):
            inquiries.told(locks(number))
        assert (await inquiries.first(life, 0.0)).trouble == TOO_MANY
        assert inquiries.told(life, asks=False).trouble == TOO_MANY
        await asyncio.sleep(60)
        assert inquiries.told(life).trouble is None, "now it is being asked for"

    play(Cluster(), story)


def test_a_kind_of_question_has_a_pace_whatever_the_number_of_viewers() -> None:
    cluster = Cluster()

    async def story(inquiries: Inquiries) -> None:
        for _ in range(600):
            for number in range(50):
                inquiries.told(locks(number))
            await asyncio.sleep(0.1)

    play(cluster, story)
    times = [at for at, _ in cluster.asked]
    assert 60 / LocksOf.pause - 2 <= len(times) <= 60 / LocksOf.pause + 2
    assert min(b - a for a, b in pairwise(times)) > LocksOf.pause - 0.01
    counts = [sum(question == locks(n) for _, question in cluster.asked) for n in range(50)]
    assert max(counts) - min(counts) <= 1, "nobody is asked for twice before others are once"


def test_fifty_viewers_have_the_locks_of_a_hundred_partitions_asked_for_once_in_ten_seconds() -> (
    None
):
    """And not at all once nobody looks."""
    cluster = Cluster()

    async def story(inquiries: Inquiries) -> None:
        for _ in range(60):
            for _ in range(50):
                inquiries.told(HottestLocksOf(100))
            await asyncio.sleep(1)
        asked = len(cluster.asked)
        await asyncio.sleep(60)
        assert len(cluster.asked) == asked

    play(cluster, story)
    assert 5 <= len(cluster.asked) <= 7


def test_few_questions_are_under_way_and_a_slow_kind_holds_up_no_other() -> None:
    cluster = Cluster(seconds=8.0)

    async def story(inquiries: Inquiries) -> None:
        for number in range(30):
            inquiries.told(LifeOf(PartitionId(0), TransactionId(number)))
        await asyncio.sleep(40)

    play(cluster, story)
    assert cluster.under_way_most == UNDER_WAY_MAX


def test_what_is_beyond_the_queue_is_told_to_be_too_much() -> None:
    cluster = Cluster()

    async def story(inquiries: Inquiries) -> None:
        told = [inquiries.told(locks(number)) for number in range(WAITING_MAX + 5)]
        assert [each.trouble for each in told[-6:]] == [None, *[TOO_MANY] * 5]
        await asyncio.sleep(WAITING_MAX * LocksOf.pause + 2)
        assert inquiries.told(locks(WAITING_MAX - 1), asks=False).answer is not None

    play(cluster, story)


def test_answers_that_nobody_wants_are_forgotten() -> None:
    async def story(inquiries: Inquiries) -> None:
        for number in range(KEPT_MAX + 20):
            await inquiries.first(locks(number), 5.0)
        assert inquiries.told(locks(0), asks=False) == Told()
        assert inquiries.told(locks(KEPT_MAX + 19), asks=False).answer is not None

    play(Cluster(), story)


def test_an_error_is_told_with_the_last_answer_and_asked_again_at_the_same_pace() -> None:
    cluster = Cluster()

    async def story(inquiries: Inquiries) -> None:
        await inquiries.first(locks(0), 5.0)
        for error, text in (
            (UnavailableError("gone"), "gone"),
            (KeyError("a bug"), "the console failed to ask: KeyError('a bug')"),
        ):
            cluster.error = error
            await asyncio.sleep(LocksOf.fresh + 0.1)
            told = await inquiries.first(locks(0), 5.0)
            assert (told.answer, told.trouble) == (1, text)
            assert told.known(0.0) is None
            asked = len(cluster.asked)
            for _ in range(20):
                inquiries.told(locks(0))
            await asyncio.sleep(0.5)
            assert len(cluster.asked) == asked
        cluster.error, cluster.seconds = None, 2 * SECONDS_MAX
        await asyncio.sleep(LocksOf.fresh + 0.1)
        told = await inquiries.first(locks(0), 2 * SECONDS_MAX)
        assert told.trouble == f"no answer in {SECONDS_MAX:g} s"

    play(cluster, story)


def test_a_page_does_not_wait_longer_than_it_says() -> None:
    async def story(inquiries: Inquiries) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        assert (await inquiries.first(locks(0), 2.0)).answer is None
        assert loop.time() - before < 2.1
        await asyncio.sleep(8)
        assert inquiries.told(locks(0), asks=False).answer == 1

    play(Cluster(seconds=5.0), story)
