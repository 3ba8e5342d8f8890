"""Clients go on with their plan after every death, with what their application remembers."""

from __future__ import annotations

import asyncio
from random import Random
from uuid import UUID

import pytest

from waltz.host import Host
from waltz.sim.applications.application import Application, Draft, Intent, submit
from waltz.sim.applications.clients import SimulatedClient
from waltz.sim.applications.workloads import ClientPlan
from waltz.sim.faults.kinds import Crash, Stop
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.history import ContextVerdict, History
from waltz.sim.judges.payload import EntryKind
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster, server_addresses
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites
from waltz.types import PartitionId

SHAPE = ClusterShape(
    partition_count=1,
    storage_count=3,
    server_count=1,
    segment_bytes_threshold=20_000,
)
WRITER = ClientPlan(work="append", transactions=30, concurrency=4, think_seconds_max=0.1)
P = PartitionId(0)


class Field:
    """A cluster and clients that follow their plans in it."""

    partition_count = 1
    grows = False
    server_addresses = server_addresses(SHAPE)

    def __init__(self, *plans: ClientPlan) -> None:
        self.loop = SimulatedLoop(1)
        self.sites = Sites(self.loop, 1, RunTrace())
        self.strikes = Strikes(self.sites)
        self.cluster = SimulatedCluster(self.sites, SHAPE, UUID(int=1))
        self.progress = asyncio.Event()
        self.history = History(on_end=self.progress.set)
        self.total = sum(plan.transactions for plan in plans)
        self.tide = asyncio.Event()
        self.peace = asyncio.Event()
        self.client_count = len(plans)
        self.clients = [
            SimulatedClient(self, f"client-{number}", plan, Random(number))
            for number, plan in enumerate(plans)
        ]

    def next_version(self, _: str) -> int:
        return 5

    def application(self, name: str, kind: str = "plain") -> Application:
        return Application(name, self.history, RunTrace(), self.loop.time)

    async def reached(self, progress: float) -> None:
        while self.history.ended_count < progress * self.total:
            self.progress.clear()
            await self.progress.wait()

    def play(self, *faults: Crash | Stop) -> None:
        try:
            self.loop.run_until_complete(self._play(faults))
            assert self.loop.failures() == []
        finally:
            self.loop.shut_down()

    async def _play(self, faults: tuple[Crash | Stop, ...]) -> None:
        await self.cluster.start()
        for client in self.clients:
            self.sites.add(
                client.name, client.main, SimulatedDisk(), may_end=True, on_death=client.die
            )
        for fault in faults:
            await self.reached(fault.progress)
            await self.strikes.strike(fault)
        while not all(client.is_done for client in self.clients):
            self.progress.clear()
            await self.progress.wait()
        await asyncio.sleep(30.0)
        assert not self.sites.broken.done()
        self.peace.set()
        await asyncio.sleep(10.0)
        assert all(site.dead for site in map(self.sites.process, self.names) if site is not None)

    @property
    def names(self) -> list[str]:
        return [client.name for client in self.clients]

    def verdicts(self) -> set[ContextVerdict]:
        return {e.verdict for s in self.history.submissions.values() for e in s.endings}


def crash(progress: float) -> Crash:
    return Crash(
        progress=progress,
        names=("client-0",),
        disk_operations=(0,),
        power_lost=False,
        pause_seconds=(1.0,),
    )


def stop(progress: float) -> Stop:
    return Stop(progress=progress, names=("client-0",), pause_seconds=(1.0,), one_by_one=False)


def test_a_client_works_off_its_plan_and_looks_on() -> None:
    field = Field(WRITER, ClientPlan(work="append"))
    field.play()
    assert len(field.history.submissions) == 30
    assert field.verdicts() == {ContextVerdict.COMMITTED}
    feeds = [field.history.feed(name, P) for name in field.names]
    assert len(feeds[0]) == 30
    assert feeds[0] == feeds[1]


@pytest.mark.parametrize("forgets", [True, False])
def test_a_client_that_dies_goes_on_with_what_its_application_remembers(forgets: bool) -> None:
    plan = ClientPlan(
        work="count", transactions=30, concurrency=10, think_seconds_max=0.01, forgets=forgets
    )
    field = Field(plan)
    field.play(crash(0.3), crash(0.7))
    assert len(field.history.submissions) == 30
    assert ContextVerdict.LOST in field.verdicts()
    names = ["client-0", "client-0~2", "client-0~3"] if forgets else ["client-0"]
    assert [*field.history.feeds] == names
    for name in names:
        ids = [fed.transaction_id for fed in field.history.feed(name, P)]
        assert ids == list(range(len(ids)))


def test_a_client_that_is_ended_tells_its_contexts() -> None:
    field = Field(ClientPlan(work="append", transactions=30, concurrency=10))
    field.play(stop(0.3))
    assert len(field.history.submissions) == 30
    assert ContextVerdict.LOST not in field.verdicts()


def test_a_client_that_has_not_come_yet_can_be_ended() -> None:
    late = ClientPlan(work="append", transactions=10, starts_at=0.5)
    field = Field(late, WRITER)
    field.play(stop(0.1))
    assert field.strikes.processes.stubborn == []
    assert len(field.history.submissions) == 40


def test_a_reader_that_comes_late_reads_everything_from_the_start() -> None:
    reader = ClientPlan(work="read", starts_at=0.5)
    field = Field(reader, WRITER)
    field.play(crash(0.8))
    assert field.history.feed("client-0", P) == field.history.feed("client-1", P)
    assert len(field.history.feed("client-0", P)) == 30


def test_a_context_that_is_refused_has_ended_too() -> None:
    field = Field(ClientPlan(work="append"))
    user = field.application("user")
    unknown = PartitionId(9)
    intent = Intent(user, unknown, lambda _, __: Draft(EntryKind.NOTE), header=0, padding=b"")

    async def main(host: Host) -> None:
        from waltz.client.client_shell import AsyncWaltzClient

        async with AsyncWaltzClient(host, user) as client:
            await submit(client, intent)

    async def scene() -> None:
        await field.cluster.start()
        await field.sites.run("guest", main)

    field.loop.run_until_complete(scene())
    field.loop.shut_down()
    assert intent.submission.has_ended(ContextVerdict.UNWRITTEN)


def test_clients_ask_what_became_of_their_appends_and_the_answers_are_written_down() -> None:
    """I13: also of the last life's, which nobody else would ever learn."""
    field = Field(WRITER)
    field.play(crash(0.3), crash(0.7))
    outcomes = field.history.outcomes
    assert {told.client for told in outcomes} == {"client-0"}
    assert len({told.request_id.client_id for told in outcomes}) > 1
    log = {fed.request_id: fed.transaction_id for fed in field.history.feed("client-0", P)}
    assert [told.transaction_id for told in outcomes] == [
        log.get(told.request_id) for told in outcomes
    ]
