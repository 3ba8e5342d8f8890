"""One run: a cluster, a workload and a fault plan, all drawn from one seed, and its judgement.

Owns the course of a run: start, work while faults strike, then peace: every context must end, every
client must be fed everything, every replica must hold the log. What is missing by then is a
violation, and so is an exception that nobody looked at.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from uuid import UUID

from waltz.client.shell import AsyncWaltzClient
from waltz.errors import CoordinatorLostError, WaltzError
from waltz.host import Host
from waltz.sim.checkers import Log, agreement, check_users, held_by_majority
from waltz.sim.cluster import SimulatedCluster, draw_shape
from waltz.sim.faults import PLANS, Crash, Members
from waltz.sim.history import History
from waltz.sim.loop import PROCESS, SimulatedLoop, SimulationError
from waltz.sim.sites import RESTART_SECONDS, Sites
from waltz.sim.trace import Trace
from waltz.sim.workloads import WORKLOADS, Application, Intent, Plan, draw_intent
from waltz.types import PartitionId

RUN_SECONDS_MAX: Final = 3_000.0
"""Virtual time of a whole run; the longest back-offs and pauses sum up to far less."""

CONVERGENCE_SECONDS_MAX: Final = 300.0
"""Virtual time after the last fault until every replica holds the log."""

JUDGE: Final = "judge"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. No violations: it was clean."""

    seed: int
    workload: str
    faults: str
    violations: tuple[str, ...]
    digest: str
    """Equal for equal seeds, or the simulation itself is broken."""
    transactions: int
    faults_count: int
    """Processes killed or isolated."""
    virtual_seconds: float
    callbacks: int
    trace: Trace


def simulate(
    seed: int,
    workload: str = "append",
    faults: str = "none",
    *,
    syncs_late: bool = False,
    with_log: bool = False,
    virtual_seconds_max: float = RUN_SECONDS_MAX,
) -> Outcome:
    """Run `seed` and judge it. `with_log` puts the product's log lines into the trace.

    `syncs_late` is a seeded bug: storage nodes acknowledge what is not durable yet. A simulator
    that is worth its name finds it.
    """
    collecting = gc.isenabled()
    gc.disable()  # when garbage is found must not depend on what ran before
    run = _Run(
        seed, workload, faults, syncs_late=syncs_late, virtual_seconds_max=virtual_seconds_max
    )
    try:
        with _logging_to(run) if with_log else _silence():
            return run.outcome()
    finally:
        del run
        gc.collect(0)  # all that the run has left; nothing of it has grown older
        if collecting:
            gc.enable()


@asynccontextmanager
async def _client_of(host: Host, application: Application) -> AsyncIterator[AsyncWaltzClient]:
    """A client; one that finds the coordinator away is started again."""
    client = AsyncWaltzClient(host, application)
    while True:
        try:
            await client.start()
            break
        except CoordinatorLostError:
            await asyncio.sleep(RESTART_SECONDS)
            client = AsyncWaltzClient(host, application)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def _silence() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _logging_to(run: _Run) -> Iterator[None]:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            process = PROCESS.get(None)
            name = process.name if process else "-"
            run.trace.comment(run.loop.time(), f"{name} {record.name} {record.getMessage()}")

    logger, handler = logging.getLogger("waltz"), Handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _Run:
    def __init__(
        self,
        seed: int,
        workload: str,
        faults: str,
        *,
        syncs_late: bool,
        virtual_seconds_max: float,
    ) -> None:
        self.name = (seed, workload, faults)
        source = f"{seed}/{workload}/{faults}"
        self.loop = SimulatedLoop(source, virtual_seconds_max=virtual_seconds_max)
        self.trace = Trace()
        self.random = Random(f"{source}/run")
        self.plan = PLANS[faults]
        self.shape = draw_shape(
            self.random, syncs_late=syncs_late, server_count_min=self.plan.server_count_min
        )
        self.sites = Sites(self.loop, source, self.trace)
        cluster_key = UUID(int=self.random.getrandbits(128), version=4)
        self.cluster = SimulatedCluster(self.sites, self.shape, cluster_key)
        self.plans: tuple[Plan, ...] = WORKLOADS[workload](self.random)
        self.clients = [f"client-{number}" for number in range(len(self.plans))]
        members = Members(self.cluster.storages, self.cluster.servers, self.clients)
        self.faults = self.plan.draw(self.random, members)
        self.history = History(on_end=self._ended)
        self.applications: list[Application] = []
        self.peace = asyncio.Event()
        """Set once the workload is done and the judge has read everything."""
        self.judge = self._application(JUDGE)
        self.progress = asyncio.Event()

    def outcome(self) -> Outcome:
        violations: list[str] = []
        try:
            violations += self.loop.run_until_complete(self._course_unless_broken())
        except SimulationError as error:
            violations.append(f"{error}\n{self._unfinished()}")
        except Exception as error:
            violations.append(f"a client failed: {error!r}")
        violations += held_by_majority(self.history, self.cluster.replicas())
        violations += [error for user in self.applications for error in user.errors]
        violations += self.loop.failures()
        seconds = self.loop.time()
        self.loop.shut_down()
        return Outcome(
            *self.name,
            violations=tuple(violations),
            digest=self.trace.digest(),
            transactions=len(self.history.submissions),
            faults_count=sum(
                len(fault.names) if isinstance(fault, Crash) else 1 for fault in self.faults
            ),
            virtual_seconds=seconds,
            callbacks=self.loop.callbacks_count,
            trace=self.trace,
        )

    async def _course_unless_broken(self) -> list[str]:
        course = self.loop.create_task(self._course())
        ends: list[asyncio.Future[Any]] = [course, self.sites.broken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.sites.broken.done():
            self.sites.broken.result()
        violations: list[str] = course.result()
        return violations

    async def _course(self) -> list[str]:
        await self.cluster.start()
        async with asyncio.TaskGroup() as group:
            striking = group.create_task(self._strike())
            working = []
            for name, plan in zip(self.clients, self.plans, strict=True):
                application = self._application(name)
                done = asyncio.Event()
                working.append(done)
                group.create_task(self._client(application, plan, done))
            for done in working:
                await done.wait()
            await striking
            group.create_task(self._judge())
        log = self.history.feeds.get(JUDGE, {})
        return check_users(self.history, log) + await self._converge(log)

    async def _strike(self) -> None:
        total = sum(plan.transactions for plan in self.plans)
        async with asyncio.TaskGroup() as group:
            for fault in self.faults:
                await self._reached(int(fault.progress * total))
                strike = group.create_task(self.sites.strike(fault))
                if not self.plan.overlapping:
                    await strike

    async def _reached(self, ended_count: int) -> None:
        while self.history.ended_count < ended_count:
            self.progress.clear()
            await self.progress.wait()

    def _ended(self) -> None:
        self.progress.set()

    async def _client(self, application: Application, plan: Plan, done: asyncio.Event) -> None:
        """A client that works off its plan and then looks on until the run ends."""
        random = Random(self.random.getrandbits(64))

        async def main(host: Host) -> None:
            async with _client_of(host, application) as client:
                room = asyncio.Semaphore(plan.concurrency)
                async with asyncio.TaskGroup() as group:
                    for _ in range(plan.transactions):
                        await room.acquire()
                        await asyncio.sleep(random.uniform(0.0, plan.think_seconds_max))
                        intent = draw_intent(
                            random, application, self.shape.partition_count, counts=plan.counts
                        )
                        submitting = group.create_task(self._submit(client, intent))
                        submitting.add_done_callback(lambda _: room.release())
                done.set()
                await self.peace.wait()

        await self.sites.run(application.name, main)

    async def _submit(self, client: AsyncWaltzClient, intent: Intent) -> None:
        with suppress(WaltzError):  # its context was told
            await client.submit(intent)
        await intent.ended.wait()

    async def _judge(self) -> None:
        """Read the whole log after everybody is done; a last transaction marks its end."""

        async def main(host: Host) -> None:
            async with AsyncWaltzClient(host, self.judge) as client:
                last = [
                    await self._append_mark(client, partition_id)
                    for partition_id in self.shape.partition_ids
                ]
                while not all(user.contexts_seen.issuperset(last) for user in self.applications):
                    await asyncio.sleep(0.1)
                self.peace.set()

        await self.sites.run(JUDGE, main)

    async def _append_mark(self, client: AsyncWaltzClient, partition_id: PartitionId) -> int:
        """Append a last transaction, however often it takes, and return its context."""
        while True:
            mark = Intent(
                self.judge,
                partition_id,
                key=0,
                counts=False,
                locked=False,
                header=0,
                padding=b"the end",
            )
            await self._submit(client, mark)
            if True in self.history.submissions[mark.number].endings:
                return mark.number

    async def _converge(self, log: Log) -> list[str]:
        """I12: give every replica time to hold the log, and return where one does not."""
        deadline = self.loop.time() + CONVERGENCE_SECONDS_MAX
        pause_seconds = 0.01
        while True:
            violations = agreement(self.cluster.replicas(), log)
            if not violations or self.loop.time() > deadline:
                return violations
            await asyncio.sleep(pause_seconds)
            pause_seconds *= 2

    def _application(self, name: str) -> Application:
        application = Application(name, self.history, self.trace, self.loop.time)
        self.applications.append(application)
        return application

    def _unfinished(self) -> str:
        open_contexts = [
            f"context {context} of {submission.client} in partition {submission.partition_id}"
            for context, submission in self.history.submissions.items()
            if not submission.endings
        ]
        return "still open: " + ("; ".join(open_contexts) or "nothing")
