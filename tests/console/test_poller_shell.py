"""The poller: whatever the number of viewers, the cluster is asked the same; nobody looks, nothing
is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.console.served import MadeUpCluster
from tests.console.states import cluster, gone, node_id, server_address, with_node
from waltz.console.answers import ConsumersTold, ServerTold, Told
from waltz.console.picture import ClusterPicture, Health
from waltz.console.poller_shell import COORDINATOR_SECONDS, LINGER_SECONDS, ClusterPoller
from waltz.sim.loop import SimulatedClock, SimulatedLoop
from waltz.types import Address, PartitionId

Story = Callable[[ClusterPoller], Coroutine[Any, Any, None]]


def play(made_up: MadeUpCluster, story: Story) -> None:
    loop = SimulatedLoop(1)
    poller = ClusterPoller(SimulatedClock(loop, Random(1)), made_up, {})

    async def main() -> None:
        try:
            await story(poller)
        finally:
            await poller.stop()

    try:
        loop.run_until_complete(main())
    finally:
        loop.shut_down()


async def watch(poller: ClusterPoller, count: int) -> list[ClusterPicture]:
    found = []
    async with contextlib.aclosing(poller.pictures()) as pictures:
        async for picture in pictures:
            found.append(picture)
            if len(found) == count:
                break
    return found


def test_fifty_viewers_ask_no_more_than_one() -> None:
    asked = []
    for viewers in (1, 50):
        made_up = MadeUpCluster(cluster(partitions=4))

        async def story(poller: ClusterPoller, viewers: int = viewers) -> None:
            await asyncio.gather(*(watch(poller, 30) for _ in range(viewers)))

        play(made_up, story)
        asked.append(dict(made_up.asked))
    assert asked[0] == asked[1]
    assert asked[0]["server"] <= 31
    assert asked[0]["node"] <= 3 * 16
    assert asked[0]["coordinator"] <= 1 + 30 / COORDINATOR_SECONDS


def test_nothing_is_asked_once_nobody_looks() -> None:
    made_up = MadeUpCluster(cluster())

    async def story(poller: ClusterPoller) -> None:
        assert sum(made_up.asked.values()) == 0
        await watch(poller, 3)
        await asyncio.sleep(LINGER_SECONDS + 2)
        before = dict(made_up.asked)
        await asyncio.sleep(100)
        assert made_up.asked == before
        assert (await poller.look()).health is Health.WELL, "the next viewer gets fresh answers"
        assert made_up.asked != before

    play(made_up, story)


def test_the_first_page_has_the_answers() -> None:
    async def story(poller: ClusterPoller) -> None:
        picture = await poller.look()
        assert (picture.health, len(picture.partitions)) == (Health.WELL, 2)

    play(MadeUpCluster(cluster()), story)


def test_rates_follow_from_marks() -> None:
    async def story(poller: ClusterPoller) -> None:
        rates = [each.rate for each in (await watch(poller, 9))[-1].partitions]
        assert rates == [pytest.approx(70, rel=0.2), pytest.approx(140, rel=0.2)]
        assert len(poller.history.total()) > 3

    play(MadeUpCluster(cluster(), step=70), story)


class Hanging(MadeUpCluster):
    """A cluster whose second server never answers."""

    async def server(self, address: Address, owned: Sequence[PartitionId]) -> ServerTold:
        if address == server_address(1):
            self.asked["server"] += 1
            await asyncio.get_running_loop().create_future()
        return await super().server(address, owned)


def test_a_process_that_hangs_holds_up_no_other_and_is_not_asked_twice() -> None:
    made_up = Hanging(cluster(partitions=2, servers=2))

    async def story(poller: ClusterPoller) -> None:
        picture = (await watch(poller, 12))[-1]
        assert [each.health for each in picture.partitions] == [Health.WELL, Health.UNKNOWN]
        assert picture.partitions[0].age_seconds is not None
        assert picture.partitions[0].age_seconds < 3
        assert made_up.asked["server"] <= 14, "the hanging one was asked once"

    play(made_up, story)


def test_a_coordinator_that_goes_is_told_with_the_age_of_what_is_shown() -> None:
    made_up = MadeUpCluster(cluster())

    async def story(poller: ClusterPoller) -> None:
        await watch(poller, 2)
        made_up.answers = replace(
            made_up.answers, coordinator=replace(made_up.answers.coordinator, trouble="refused")
        )
        picture = (await watch(poller, 10))[-1]
        assert picture.coordinator.text.startswith("The coordinator does not answer (refused)")
        assert picture.coordinator_age_seconds is not None
        assert picture.coordinator_age_seconds > 8
        assert [each.health for each in picture.partitions] == [Health.WELL] * 2

    play(made_up, story)


def test_a_server_or_node_that_has_left_is_not_shown_nor_asked() -> None:
    made_up = MadeUpCluster(cluster(nodes=4, servers=2))

    async def story(poller: ClusterPoller) -> None:
        await watch(poller, 2)
        made_up.answers = cluster(nodes=3, servers=1)
        picture = (await watch(poller, 10))[-1]
        assert (len(picture.nodes), len(picture.servers)) == (3, 1)
        assert set(poller.answers().servers) == {server_address(0)}

    play(made_up, story)


def test_a_question_that_fails_by_a_bug_is_unknown_and_not_the_end() -> None:
    class Faulty(MadeUpCluster):
        async def server(self, address: Address, owned: Sequence[PartitionId]) -> ServerTold:
            raise KeyError("a bug")

    async def story(poller: ClusterPoller) -> None:
        picture = (await watch(poller, 3))[-1]
        assert picture.partitions[0].health is Health.UNKNOWN
        assert "a bug" in picture.partitions[0].sentence

    play(Faulty(cluster()), story)


def test_a_node_that_dies_is_seen() -> None:
    made_up = MadeUpCluster(cluster())

    async def story(poller: ClusterPoller) -> None:
        assert (await poller.look()).nodes[0].health is Health.WELL
        made_up.answers = with_node(made_up.answers, 0, gone())
        picture = (await watch(poller, 5))[-1]
        assert picture.node(node_id(0)) is picture.nodes[0]
        assert picture.nodes[0].health is Health.DOWN

    play(made_up, story)


def test_consumers_are_known_once_somebody_tells_of_them() -> None:
    made_up = MadeUpCluster(cluster())

    async def story(poller: ClusterPoller) -> None:
        await watch(poller, 2)
        assert poller.answers().consumers is None
        told = ConsumersTold((), {"127.0.0.1:7100": "refused"})
        made_up.answers = replace(made_up.answers, consumers=Told(told, 0.0))
        await watch(poller, 5)
        found = poller.answers().consumers
        assert found is not None
        assert found.answer == told

    play(made_up, story)


def test_an_answer_is_as_old_as_its_question() -> None:
    told: Told[str] = Told("answer", 10.0, fresh_seconds=5.0)
    assert (told.age(12.0), told.known(12.0)) == (2.0, "answer")
    assert told.known(16.0) is None
    assert told.why_unknown(16.0) == "it has not answered for 6 s"


def test_a_node_that_was_away_and_is_back_is_told_for_a_while() -> None:
    """A supervisor starts a dead node at once: who looks up a moment later must still see it."""
    made_up = MadeUpCluster(cluster())

    async def story(poller: ClusterPoller) -> None:
        whole = made_up.answers
        await watch(poller, 3)
        made_up.answers = with_node(whole, 0, gone())
        await watch(poller, 4)
        made_up.answers = whole
        picture = (await watch(poller, 4))[-1]
        (notice,) = picture.notices
        assert notice.text.startswith("Storage node 127.0.0.1:7200 is back: it did not answer")
        assert (notice.health, picture.health) == (Health.WELL, Health.WELL)
        assert picture.headline == "All 2 partitions take appends on all their replicas."
        assert (await watch(poller, 620))[-1].notices == ()

    play(made_up, story)


def test_a_server_or_node_counts_for_as_long_as_it_is_not_asked_again() -> None:
    """One that is given more partitions, and nodes that are joined by others, are asked less often
    than when they were seen first."""
    made_up = MadeUpCluster(cluster(partitions=4, nodes=3))

    async def story(poller: ClusterPoller) -> None:
        await watch(poller, 3)
        made_up.answers = cluster(partitions=1_000, nodes=100)
        for picture in await watch(poller, 60):
            assert {each.health for each in picture.servers} == {Health.WELL}, picture.headline
        told = poller.answers()
        assert told.servers[server_address(0)].fresh_seconds > 10
        assert {each.fresh_seconds > 10 for each in told.nodes.values()} == {True}

    play(made_up, story)
