"""Clients wait for their own application, and every wait of a sound client ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from random import Random
from typing import Any, cast

from waltz.errors import ClientClosedError, PartitionInactiveError
from waltz.sim.applications.application import Application
from waltz.sim.applications.waits import CALLERS, PEACE_SECONDS_MAX, Waits
from waltz.sim.judges.history import FedRecord, History, WaitTold
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import Process, SimulatedLoop
from waltz.types import ClientId, Generation, PartitionId, RequestId, TransactionId

P = PartitionId(0)
Q = PartitionId(1)


class Client:
    """Waits as `wait` does, for what the application has applied."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.chosen: list[list[PartitionId]] = []
        self.wait: Callable[[], Any] = lambda: asyncio.sleep(0.01)

    def active_partitions(self) -> list[PartitionId]:
        return [P, Q]

    async def set_partitions(self, partitions: Collection[PartitionId]) -> None:
        self.chosen.append(list(partitions))

    async def wait_until_applied(
        self, *, partitions: Collection[PartitionId]
    ) -> dict[PartitionId, TransactionId]:
        assert partitions == [P, Q]
        await self.wait()
        return dict(self.application.marks)


class Run:
    """Ten transactions are applied, then there is peace."""

    def __init__(self, *, leaves: bool = False) -> None:
        self.leaves = leaves
        self.loop = SimulatedLoop(1)
        self.history = History()
        self.application = Application("a", self.history, RunTrace(), self.loop.time)
        self.client = Client(self.application)

    def play(self) -> list[WaitTold]:
        try:
            self.loop.run_until_complete(self.loop.spawn(Process("a"), self._play()))
            return self.history.waits
        finally:
            self.loop.shut_down()

    async def _play(self) -> None:
        peace = asyncio.Event()
        waits = Waits(cast(Any, self.client), self.application, peace, Random(1))
        running = asyncio.create_task(waits.run(leaves=self.leaves))
        for number in range(10):
            await asyncio.sleep(1.0)
            request_id = RequestId(ClientId(1), Generation(1), P, number)
            self.application.take(P, FedRecord(TransactionId(number), request_id, 0, b""))
        await asyncio.sleep(1.0)
        peace.set()
        await running


def test_calls_are_made_as_something_is_applied() -> None:
    waits = Run().play()
    assert {wait.before[P] for wait in waits} == {*range(10)}
    assert all(wait.told == {P: wait.after[P]} for wait in waits)


def test_a_call_that_does_not_return_in_peace_is_noted() -> None:
    run = Run()
    run.client.wait = lambda: asyncio.sleep(3 * PEACE_SECONDS_MAX)
    assert run.play() == []
    assert len(run.history.endless) == CALLERS


def test_a_partition_that_has_left_is_waited_for_again_later_and_a_closed_client_is_not() -> None:
    run = Run()
    errors = [ClientClosedError("closed")] * CALLERS
    calls = []

    async def fail() -> None:
        calls.append(run.loop.time())
        raise PartitionInactiveError("left") if len(calls) < 2 * CALLERS else errors.pop()

    run.client.wait = fail
    assert run.play() == []
    assert not errors


def test_partitions_leave_and_come_back() -> None:
    run = Run(leaves=True)
    run.play()
    away, back = run.client.chosen[::2], run.client.chosen[1::2]
    assert {len(each) for each in away} == {1}
    assert {tuple(each) for each in back} == {(P, Q)}
    assert len(away) == len(back)
