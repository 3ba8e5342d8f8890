"""One run of a scenario and its judgement.

Owns the course of a run: start, work while faults strike, then peace: every context must end, every
partition must take appends, every client must be fed everything, every replica must hold the log.
Whatever is missing by then is a violation, and so is an exception that was not handled.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.errors import NoNodeError, WaltzError
from waltz.host import Host, Inspectable
from waltz.operators.explanation_shell import explain_transaction
from waltz.operators.named_consumers_shell import read_named_consumers
from waltz.reader.reader_shell import AsyncLogReader
from waltz.server.server_partition import ServerPartition
from waltz.sim.applications.application import Application, Draft, Intent, submit
from waltz.sim.applications.archivist import Archivist
from waltz.sim.applications.clients import SimulatedClient
from waltz.sim.applications.cutter import Cutter
from waltz.sim.applications.databases import DatabaseApplication, SimulatedDatabase
from waltz.sim.applications.historian import ask_journals_of
from waltz.sim.applications.postponing import PostponingApplication
from waltz.sim.applications.restoration import Restoration
from waltz.sim.applications.transfers import TransferApplication
from waltz.sim.applications.workloads import ARCHIVED
from waltz.sim.faults.kinds import AddedPartitions, ChangedPolicy, ClockDrift, DiskFailure
from waltz.sim.faults.plans import PLANS
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.anomalies import check_anomalies
from waltz.sim.judges.causality import check_cuts
from waltz.sim.judges.checkers import Log, check_users
from waltz.sim.judges.consumer_watch import ConsumerWatch
from waltz.sim.judges.durable_times import DurableTimes
from waltz.sim.judges.explanation_watch import ExplanationWatch, Held
from waltz.sim.judges.history import ContextVerdict, History
from waltz.sim.judges.overseer import Overseer
from waltz.sim.judges.payload import EntryKind
from waltz.sim.judges.replicas import MarkWatch, agreement, held_by_enough, settledness, tidiness
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.knobs import turned
from waltz.sim.loop import PROCESS, Process, SimulatedLoop, SimulationError
from waltz.sim.scenario import Scenario, draw_scenario
from waltz.sim.simulated_cluster import (
    SimulatedCluster,
    replica_id_of,
    server_addresses,
)
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_protocol import CLIENT_CODEC
from waltz.wire.lifecycle_protocol import LIFECYCLE_SINCE
from waltz.wire.storage_protocol import STORAGE_CODEC

RUN_SECONDS_MAX: Final = 10_000.0
"""Virtual time of an ordinary run; the longest back-offs and pauses sum up to far less."""

WRITABLE_SECONDS_MAX: Final = 120.0
"""I12: virtual time after the last fault until every partition has taken an append."""

LATE_SECONDS_MAX: Final = 4.5
"""Virtual time, in a run without faults and once all other clients are done, until every partition
has taken an append: many times what the slowest network takes, and less than what makes a client
ask again."""

CONVERGENCE_SECONDS_MAX: Final = 300.0
"""I12: virtual time after that until every replica holds the log."""

LOOKS_MAX: Final = 4
"""Looks at the disks during the run."""

JUDGE: Final = "judge"
HISTORIAN: Final = "historian"

OPERATOR: Final = "operator"

ASK_PAUSE_SECONDS: Final = 0.3
"""Between two questions of the operator about consumers."""

CUTTER: Final = "cutter"
ARCHIVIST: Final = "archivist"
IDLE_SECONDS: Final = 60.0
"""Seconds in which nothing is appended before the last question about consumers."""

ASK_SECONDS_MAX: Final = 2.0
"""The operator waits at most this long for a server."""

EXPLAIN_SECONDS_MAX: Final = 20.0
"""The operator waits at most this long for an explanation, while faults strike."""

EXPLAINED_BEYOND: Final = 2
"""Transactions after the last committed one that are asked about, too."""

EXPLAINED: Final = 12
"""Transactions per partition that are explained in the end."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run. Without violations it was clean."""

    scenario: Scenario
    violations: tuple[str, ...]
    digest: str
    """Equal for equal scenarios, or the simulation itself is broken."""
    transactions: int
    """Contexts submitted."""
    faults: Counter[str]
    """Faults that have struck, by kind."""
    effects: Counter[str]
    """Pieces of bytes, calls and disk operations that faults and the weather met, by kind."""
    virtual_seconds: float
    writable_seconds: float
    """Seconds after the last fault until every partition had taken an append."""
    converged_seconds: float
    """Seconds after that until every replica held the log."""
    callbacks: int
    trace: RunTrace
    times_told: Counter[str] = field(default_factory=Counter)
    """Answers of storage nodes about the times of their copies, by kind."""
    cuts: Counter[str] = field(default_factory=Counter)
    """Attempts at cuts, by what came of them."""
    explained: Counter[str] = field(default_factory=Counter)
    """Statements of explanations, by kind."""
    lags_told: Counter[str] = field(default_factory=Counter)
    """Statements on the lag of consumers, by their width."""


def simulate(
    seed: int, workload: str = "append", plan: str = "none", *, length: int = 1
) -> RunOutcome:
    """Draw a run and judge it."""
    return play(draw_scenario(seed, workload, plan, length=length))


def play(
    scenario: Scenario, *, with_log: bool = False, virtual_seconds_max: float = RUN_SECONDS_MAX
) -> RunOutcome:
    """Run `scenario` and judge it. `with_log` puts the product's log lines into the trace."""
    collecting = gc.isenabled()
    gc.disable()  # when garbage is found must not depend on what ran before
    run = _Run(scenario, virtual_seconds_max * scenario.length)
    try:
        with turned(scenario.knobs), _logging_to(run) if with_log else _silence():
            return run.outcome()
    finally:
        del run
        gc.collect(0)  # everything that the run has left; nothing of it has grown older
        if collecting:
            gc.enable()


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
    """A scenario under way; the field of its clients."""

    def __init__(self, scenario: Scenario, virtual_seconds_max: float) -> None:
        self.scenario = scenario
        self.shape = scenario.shape
        self.server_addresses = server_addresses(scenario.shape)
        source = scenario.source
        self._versions = {name: [*versions] for name, versions in scenario.versions.items()}
        self._storage_versions = {
            name: [*versions] for name, versions in scenario.storage_versions.items()
        }
        self.loop = SimulatedLoop(source, virtual_seconds_max=virtual_seconds_max)
        self.trace = RunTrace()
        self.random = Random(f"{source}/run")
        self.plan = PLANS[scenario.plan]
        self.overseer = Overseer()
        self.times = DurableTimes()
        self.consumers = self._watch_of_consumers()
        self.history = History()
        self.explained = self._watch_of_explanations()
        self.sites = Sites(self.loop, source, self.trace, self._look_at_machine, self.times)
        cluster_key = UUID(int=self.random.getrandbits(128), version=4)
        self.cluster = SimulatedCluster(
            *(self.sites, self.shape, cluster_key, self.next_version, self.next_storage_version),
            follows_policy=scenario.has(ChangedPolicy),
        )
        self.strikes = Strikes(self.sites, self.cluster.is_outdated, lambda: self.partition_count)
        self.strikes.expect(scenario.faults)
        self.progress = asyncio.Event()
        self.history.on_end = self.progress.set
        self.applications: list[Application] = []
        self.databases: dict[str, SimulatedDatabase] = {}
        self.clients = [
            SimulatedClient(self, name, plan, Random(f"{source}/{name}"))
            for name, plan in zip(scenario.client_names, scenario.clients, strict=True)
        ]
        self.tide = asyncio.Event()
        self.cutter = Cutter(Random(f"{source}/cuts"), self.trace, self.loop.time, self._raise_tide)
        self.archivist: Archivist | None = None
        if scenario.workload in ARCHIVED:
            known = self.cluster, self.loop.time, self.overseer.committed
            self.archivist = Archivist(source, *known)
        self.restoration: Restoration | None = None
        self.judge = self.application(JUDGE)
        self.marks = MarkWatch()
        self.peace = asyncio.Event()
        self.violations: list[str] = []
        self.writable_seconds = 0.0
        self.converged_seconds = 0.0
        self.has_converged = False
        """Whether every replica holds the log, harmed ones too."""

    def outcome(self) -> RunOutcome:
        violations = self.violations
        try:
            self.loop.run_until_complete(self.sites.unless_broken(self._course()))
        except SimulationError as error:
            violations.append(f"{error}\n{self._unfinished()}")
        except Exception as error:
            violations.append(f"a client failed: {error!r}")
        if self.restoration is None:
            self._look_at_disks()
        violations += self._false_alarms()
        violations += [error for user in self.applications for error in user.errors]
        violations += self.loop.failures()
        if self.strikes.stubborn and not self.plan.overlapping:
            violations.append(f"did not stop in time: {self.strikes.stubborn}")
        seconds = self.loop.time()
        self.loop.shut_down()
        for database in self.databases.values():
            database.close()
        return RunOutcome(
            self.scenario,
            violations=tuple(violations),
            digest=self.trace.digest(),
            transactions=len(self.history.submissions),
            faults=self.strikes.record.counts,
            effects=self.sites.effects,
            virtual_seconds=seconds,
            writable_seconds=self.writable_seconds,
            converged_seconds=self.converged_seconds,
            callbacks=self.loop.callbacks_count,
            trace=self.trace,
            times_told=self.times.counts,
            cuts=self.cutter.counts,
            lags_told=Counter() if self.consumers is None else self.consumers.told,
            explained=Counter() if self.explained is None else self.explained.counts,
        )

    # The field

    def application(self, name: str, kind: str = "plain") -> Application:
        known = name, self.history, self.trace, self.loop.time
        application: Application
        match kind:
            case "plain":
                application = Application(*known)
            case "postponing":
                application = PostponingApplication(*known, self._random_of(name))
            case "transfers":
                application = TransferApplication(*known)
            case _:
                if kind not in self.databases:
                    self.databases[kind] = SimulatedDatabase()
                application = DatabaseApplication(
                    *known, self._random_of(name), self.databases[kind]
                )
        self.applications.append(application)
        return application

    def _random_of(self, name: str) -> Random:
        return Random(f"{self.scenario.source}/{name}/application {len(self.applications)}")

    def next_version(self, name: str) -> int:
        """An upgrade is a restart with another version; the last one stays."""
        return _next(self._versions.get(name, [CLIENT_CODEC.versions[-1]]))

    def next_storage_version(self, name: str) -> int:
        """Return like `next_version`, for the storage protocol."""
        return _next(self._storage_versions.get(name, [STORAGE_CODEC.versions[-1]]))

    @property
    def partition_count(self) -> int:
        return len(self.cluster.partition_ids)

    @property
    def client_count(self) -> int:
        return len(self.clients)

    @property
    def grows(self) -> bool:
        return self.scenario.has(AddedPartitions)

    async def reached(self, progress: float) -> None:
        ended_count = int(progress * self.scenario.transactions)
        while self.history.ended_count < ended_count:
            self.progress.clear()
            await self.progress.wait()

    # The course

    async def _course(self) -> None:
        await self.cluster.start()
        for client in self.clients:
            self.sites.add(
                client.name, client.main, SimulatedDisk(), may_end=True, on_death=client.die
            )
            if client.plan.slowest_call_seconds:
                self.sites.site(client.name).hindrances.append(client.plan.slowest_call_seconds)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_now_and_then())
            group.create_task(self._strike())
            if self.consumers is not None:
                ask = partial(self._ask_of_consumers, self.consumers)
                group.create_task(self.sites.run(OPERATOR, ask))
            if any(client.work == "transfer" for client in self.scenario.clients):
                group.create_task(self.sites.run(CUTTER, self._take_cuts))
            if self.archivist is not None:
                archive = partial(self.archivist.run, self._is_work_over)
                group.create_task(self.sites.run(ARCHIVIST, archive))
            if self.explained is not None:
                explain = partial(self._explain_now_and_then, self.explained)
                group.create_task(self.sites.run(OPERATOR, explain))
            while not self._is_work_over():
                self.progress.clear()
                await self.progress.wait()
        await self.sites.run(JUDGE, self._judge)
        log = self.history.feeds.get(JUDGE, {})
        self.violations += check_users(self.history, log)
        self.violations += check_anomalies(self.history)
        self.violations += self.marks.judge(log)
        self.violations += check_cuts(self.cutter.cuts, self.history, log)
        self.violations += [] if self.consumers is None else self.consumers.violations
        if self.writable_seconds > WRITABLE_SECONDS_MAX:
            self.violations.append(
                f"I12 convergence: {self.writable_seconds:.0f} s after the last fault there was"
                " still a partition that had taken no append"
            )
        if not self.scenario.faults and self.writable_seconds > LATE_SECONDS_MAX:
            self.violations.append(
                f"lateness: without any fault it took {self.writable_seconds:.1f} s until every"
                " partition had taken an append"
            )
        await self._converge(log)
        if self.archivist is not None:
            judge = partial(self.archivist.judge, self.cutter.cuts, log)
            self.violations += await self.sites.run(ARCHIVIST, judge)
        ask_journals = partial(ask_journals_of, self.scenario.source, log, self.times)
        self.violations += await self.sites.run(HISTORIAN, ask_journals)
        if self.consumers is not None:
            await self.sites.run(HISTORIAN, partial(self._ask_of_idle, self.consumers))
            self.violations += self.consumers.violations
        if self.explained is not None:
            await self.sites.run(HISTORIAN, partial(self._explain_in_the_end, self.explained))
            self.violations += self.explained.judge(log)
        if self.archivist is not None and not self.violations:
            await self._restore(self.archivist, log)

    async def _restore(self, archivist: Archivist, log: Log) -> None:
        """Lose the cluster, restore it from its archive, and go on with the restored one."""
        self._look_at_disks()
        self.restoration = Restoration(
            self.scenario.source,
            self.cluster,
            archivist.target,
            log,
            self._begin_history,
            tells_key=all(self._versions[name][-1] >= LIFECYCLE_SINCE for name in self._versions),
        )
        self.violations += await self.restoration.run()

    def _begin_history(self) -> None:
        """Forget who has committed what: the restored log goes on from earlier marks."""
        self.overseer = Overseer()

    async def _strike(self) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in self.scenario.faults:
                await self.reached(fault.progress)
                strike = group.create_task(self.strikes.strike(fault))
                if not self.plan.overlapping:
                    await strike

    async def _look_now_and_then(self) -> None:
        random = Random(f"{self.scenario.source}/looks")
        for progress in sorted(random.random() for _ in range(random.randint(0, LOOKS_MAX))):
            await self.reached(progress)
            await asyncio.sleep(random.uniform(0.0, 0.1))
            self._look_at_disks()

    def _look_at_disks(self) -> None:
        """Check that what users know to be committed is on a majority of disks now."""
        replicas = self.cluster.replicas(durable=True)
        harmed_count = 0 if self.has_converged else len(self.strikes.harmed)
        members = self.cluster.members()
        self.violations += held_by_enough(self.history, replicas, members, harmed_count)
        self.marks.look(replicas, self.strikes.harmed, self.cluster.written_off(replicas))

    def _false_alarms(self) -> list[str]:
        """Return damage that a node has noted on a disk that no fault has harmed: what was promised
        to be durable is not there, or the promise is wrong."""
        if self.scenario.has(DiskFailure):
            return []
        return [
            f"I1 durability: {name} takes records for damaged, and no fault has harmed its disk"
            for name in self.sites.damage_noted
            if name not in self.strikes.harmed
        ]

    # Consumers

    def _watch_of_consumers(self) -> ConsumerWatch | None:
        """Return the watch of a run that has named consumers."""
        if not any(client.is_consumer for client in self.scenario.clients):
            return None
        return ConsumerWatch(self._applied_by, knows_times=not self.scenario.has(ClockDrift))

    def _applied_by(self, name: str) -> Mapping[PartitionId, TransactionId]:
        return next(each for each in self.clients if each.name == name).application.marks

    def _look_at_machine(self, process: Process, machine: Inspectable) -> None:
        self.overseer.look(process, machine)
        watch = self.consumers
        if watch is None:
            return
        if isinstance(machine, ServerPartition) and machine.high_water_mark is not None:
            watch.see_commits(machine.partition_id, machine.high_water_mark, self.loop.time())
        for name in self.scenario.client_names:
            with suppress(NoNodeError):
                node = self.sites.coordinator.tree.read(ClusterPaths().consumer(name))
                watch.see_node(name, node.data or b"", node.version)

    async def _ask_of_consumers(self, watch: ConsumerWatch, host: Host) -> None:
        """Ask as an operator does, as long as clients are at work."""
        while not self._is_work_over():
            asked_at = self.loop.time()
            with suppress(WaltzError):  # the coordinator is away
                view = await read_named_consumers(host, DEFAULT_ROOT, seconds=ASK_SECONDS_MAX)
                watch.see_view(view, asked_at, self.loop.time())
            await asyncio.sleep(ASK_PAUSE_SECONDS)

    # Cuts

    async def _take_cuts(self, host: Host) -> None:
        await self.cutter.run(host, self._is_work_over)

    def _is_work_over(self) -> bool:
        return all(client.is_done for client in self.clients)

    def _raise_tide(self) -> None:
        self.tide.set()
        self.tide = asyncio.Event()

    async def _ask_of_idle(self, watch: ConsumerWatch, host: Host) -> None:
        """Ask once nobody has appended anything for a while, and all consumers are gone."""
        await asyncio.sleep(IDLE_SECONDS)
        asked_at = self.loop.time()
        view = await read_named_consumers(host, DEFAULT_ROOT, seconds=ASK_SECONDS_MAX)
        watch.see_view(view, asked_at, self.loop.time())
        await host.coordinator.close()

    # Explanations

    def _watch_of_explanations(self) -> ExplanationWatch | None:
        """Return the watch of a run whose transactions are explained."""
        if not any(client.is_named for client in self.scenario.clients):
            return None
        return ExplanationWatch(
            self.history,
            self.times,
            self._held,
            self.overseer.committed,
            has_old=bool(self.scenario.versions),
        )

    def _held(self, partition_id: PartitionId, transaction_id: TransactionId) -> Held:
        """Return the durable copies of a transaction, on disks that no fault has harmed."""
        harmed = () if self.has_converged else self.strikes.harmed
        found = {}
        for name, replica in self.cluster.replicas(durable=True).items():
            records = replica.records[partition_id]
            if name not in harmed:
                is_there = transaction_id < len(records)
                found[name] = records[transaction_id] if is_there else None
        return found

    async def _explain_now_and_then(self, watch: ExplanationWatch, host: Host) -> None:
        """Have transactions explained, as an operator does, as long as clients are at work."""
        random = Random(f"{self.scenario.source}/explained")
        while not self._is_work_over():
            await asyncio.sleep(random.uniform(0.0, ASK_PAUSE_SECONDS))
            partition_id = random.choice(self.cluster.partition_ids)
            last = self.overseer.committed(partition_id) + EXPLAINED_BEYOND
            number = TransactionId(random.randint(max(0, last - 20), last))
            with suppress(WaltzError, TimeoutError):  # nobody answers
                async with asyncio.timeout(EXPLAIN_SECONDS_MAX):
                    await self._explain(watch, host, partition_id, number)

    async def _explain_in_the_end(self, watch: ExplanationWatch, host: Host) -> None:
        """Have some transactions explained once nothing happens any more."""
        random = Random(f"{self.scenario.source}/explained in the end")
        for partition_id in self.cluster.partition_ids:
            count = len(self.history.feeds.get(JUDGE, {}).get(partition_id, ()))
            for number in [*random.sample(range(count), min(count, EXPLAINED)), count]:
                await self._explain(watch, host, partition_id, TransactionId(number))
        await host.coordinator.close()

    async def _explain(
        self,
        watch: ExplanationWatch,
        host: Host,
        partition_id: PartitionId,
        transaction_id: TransactionId,
    ) -> None:
        with self.times.looking() as synced:
            question = watch.asked(partition_id, transaction_id, self.cluster.storages, synced)
            async with AsyncLogReader(host, timeout_seconds=ASK_SECONDS_MAX) as reader:
                told = await explain_transaction(
                    host, DEFAULT_ROOT, reader, partition_id, transaction_id
                )
            watch.answered(question, told, {replica_id_of(n): n for n in self.cluster.storages})

    # Peace

    async def _judge(self, host: Host) -> None:
        """Append to every partition, and read the whole log up to these appends, and then what
        clients that are gone had still under way."""
        began = self.loop.time()
        async with AsyncWaltzClient(host, self.judge) as client:
            async with asyncio.TaskGroup() as group:
                appending = [
                    group.create_task(self._append_mark(client, partition_id))
                    for partition_id in self.cluster.partition_ids
                ]
            self.writable_seconds = self.loop.time() - began
            last = {task.result() for task in appending}
            while not all(last <= user.contexts_seen for user in self._users()):
                await asyncio.sleep(0.1)
            self.peace.set()
            while not self._has_read_all():
                await asyncio.sleep(0.1)

    def _has_read_all(self) -> bool:
        """Return whether the other clients are gone, and none was fed anything that the judge was
        not."""
        return all(self.sites.site(client.name).process.dead for client in self.clients) and all(
            mark <= self.judge.marks.get(partition_id, mark - 1)
            for user in self.applications
            for partition_id, mark in user.marks.items()
        )

    def _users(self) -> Collection[Application]:
        return [self.judge, *(client.application for client in self.clients)]

    async def _append_mark(self, client: AsyncWaltzClient, partition_id: PartitionId) -> int:
        """Append a last transaction, however often it takes, and return its context."""
        while True:
            mark = Intent(
                self.judge,
                partition_id,
                lambda application, partition_id: Draft(EntryKind.NOTE),
                header=0,
                padding=b"the end",
            )
            await submit(client, mark)
            if mark.submission.has_ended(ContextVerdict.COMMITTED):
                return mark.number
            await asyncio.sleep(0.1)  # a client that has failed returns at once, for ever

    async def _converge(self, log: Log) -> None:
        """I12: give every assigned replica time to hold the log and nothing else; note violations
        for those that do not.

        Replicas with harmed disks count, too: damage is repaired, a blank or outdated replica is
        filled up again. `Strikes` does not do what is not promised to be told from a crash.
        """
        began, pause_seconds = self.loop.time(), 0.01
        while True:
            replicas = self.cluster.replicas(durable=False)
            assigned = self.cluster.assigned()
            violations = [
                *agreement(replicas, log, assigned),
                *tidiness(replicas, assigned),
                *settledness(self.cluster.members(), assigned),
            ]
            self.converged_seconds = self.loop.time() - began
            if not violations or self.converged_seconds > CONVERGENCE_SECONDS_MAX:
                self.has_converged = not violations
                self.violations += violations
                return
            await asyncio.sleep(pause_seconds)
            pause_seconds *= 2

    def _unfinished(self) -> str:
        open_contexts = [
            f"context {context} of {submission.client} in partition {submission.partition_id}"
            for context, submission in self.history.submissions.items()
            if not submission.endings
        ]
        return "still open: " + ("; ".join(open_contexts) or "nothing")


def _next(versions: list[int]) -> int:
    return versions.pop(0) if len(versions) > 1 else versions[0]
