"""Operators of a run ask while clients work, and once more when nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from uuid import UUID

from waltz.operators.named_consumers_shell import ConsumersView
from waltz.sim.applications.asking_operators import (
    EXPLAINED,
    IDLE_SECONDS,
    ConsumerOperator,
)
from waltz.sim.applications.judge_client import JUDGE
from waltz.sim.judges.consumer_watch import ConsumerWatch
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape, draw_scenario
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulation import _Run
from waltz.sim.sites import Sites

SHAPE = ClusterShape(
    partition_count=1, storage_count=3, server_count=1, segment_bytes_threshold=20_000
)


class SeenViews(ConsumerWatch):
    """A judge that keeps when operators asked and when they were answered."""

    def __init__(self) -> None:
        super().__init__(lambda _: {})
        self.seen: list[tuple[float, float]] = []

    def see_view(self, view: ConsumersView, asked_at: float, answered_at: float) -> None:
        self.seen.append((asked_at, answered_at))


Scene = Callable[[ConsumerOperator, SimulatedCluster], Coroutine[Any, Any, None]]


def asked(scene: Scene) -> list[tuple[float, float]]:
    """Return when the operator asked, and was answered, in a cluster that has started."""
    loop = SimulatedLoop(1)
    cluster = SimulatedCluster(Sites(loop, 1, RunTrace()), SHAPE, UUID(int=1))
    watch = SeenViews()

    async def course() -> None:
        await cluster.start()
        await asyncio.sleep(10.0)
        await scene(ConsumerOperator(watch, loop.time), cluster)

    try:
        loop.run_until_complete(course())
        assert loop.failures() == []
        return watch.seen
    finally:
        loop.shut_down()


def test_an_operator_asks_of_consumers_until_the_work_is_over_whatever_fails() -> None:
    async def scene(operator: ConsumerOperator, cluster: SimulatedCluster) -> None:
        over = asyncio.Event()
        asking = asyncio.ensure_future(
            cluster.sites.run("operator", partial(operator.run, over.is_set))
        )
        await asyncio.sleep(10.0)
        cluster.sites.coordinator.begin_outage()
        await asyncio.sleep(20.0)
        cluster.sites.coordinator.end_outage()
        await asyncio.sleep(10.0)
        over.set()
        await asking

    seen = asked(scene)
    assert len([each for each, _ in seen if each < 20.0]) > 5
    assert len([each for each, _ in seen if each > 40.0]) > 5


def test_the_last_question_of_consumers_comes_when_nothing_was_appended_for_long() -> None:
    async def scene(operator: ConsumerOperator, cluster: SimulatedCluster) -> None:
        await cluster.sites.run("operator", operator.ask_of_idle)

    (when,) = asked(scene)
    assert when[0] >= 10.0 + IDLE_SECONDS


def test_transactions_are_explained_during_a_run_and_in_the_end() -> None:
    run = _Run(draw_scenario(3, "explained", "none"), 1_000.0)
    outcome = run.outcome()
    assert outcome.violations == ()
    assert run.explained is not None
    told = run.explained.watch._told
    in_the_end = 0
    for partition_id, records in run.history.feeds[JUDGE].items():
        of_it = [each for each in told if each.partition_id == partition_id]
        assert of_it[-1].transaction_id == len(records), "one that is not there is asked about, too"
        in_the_end += min(len(records), EXPLAINED) + 1
    assert len(told) > in_the_end
