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

from waltz.cluster.paths import ClusterPaths
from waltz.errors import NoNodeError
from waltz.host import Inspectable
from waltz.server.server_partition import ServerPartition
from waltz.sim.applications.archivist import Archivist
from waltz.sim.applications.asking_operators import ConsumerOperator, ExplanationOperator
from waltz.sim.applications.clients import SimulatedClient
from waltz.sim.applications.cutter import Cutter
from waltz.sim.applications.historian import ask_journals_of
from waltz.sim.applications.judge_client import JUDGE, JudgeClient
from waltz.sim.applications.restoration import Restoration
from waltz.sim.applications.scenario_field import ScenarioField
from waltz.sim.applications.workloads import ARCHIVED
from waltz.sim.faults.kinds import ChangedPolicy, ClockDrift, DiskFailure
from waltz.sim.faults.plans import PLANS
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.anomalies import check_anomalies
from waltz.sim.judges.causality import check_cuts
from waltz.sim.judges.checkers import Log, check_users
from waltz.sim.judges.consumer_watch import ConsumerWatch
from waltz.sim.judges.durable_times import DurableTimes
from waltz.sim.judges.history import History
from waltz.sim.judges.overseer import Overseer
from waltz.sim.judges.replicas import MarkWatch, agreement, held_by_enough, settledness, tidiness
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.knobs import turned
from waltz.sim.loop import PROCESS, Process, SimulatedLoop, SimulationError
from waltz.sim.scenario import Scenario, draw_scenario
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites
from waltz.types import PartitionId, TransactionId
from waltz.wire.lifecycle_protocol import LIFECYCLE_SINCE

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

HISTORIAN: Final = "historian"

OPERATOR: Final = "operator"

CUTTER: Final = "cutter"
ARCHIVIST: Final = "archivist"


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
    """A scenario under way."""

    def __init__(self, scenario: Scenario, virtual_seconds_max: float) -> None:
        self.scenario = scenario
        source = scenario.source
        self.loop = SimulatedLoop(source, virtual_seconds_max=virtual_seconds_max)
        self.trace = RunTrace()
        self.random = Random(f"{source}/run")
        self.plan = PLANS[scenario.plan]
        self.overseer = Overseer()
        self.times = DurableTimes()
        self.consumers = self._asks_of_consumers()
        self.history = History()
        self.field = ScenarioField(
            *(scenario, self.history, self.trace, self.loop.time),
            lambda: len(self.cluster.partition_ids),
        )
        self.sites = Sites(self.loop, source, self.trace, self._look_at_machine, self.times)
        cluster_key = UUID(int=self.random.getrandbits(128), version=4)
        self.cluster = SimulatedCluster(
            *(self.sites, scenario.shape, cluster_key),
            *(self.field.next_version, self.field.next_storage_version),
            follows_policy=scenario.has(ChangedPolicy),
        )
        self.strikes = Strikes(
            self.sites, self.cluster.is_outdated, lambda: len(self.cluster.partition_ids)
        )
        self.strikes.expect(scenario.faults)
        self.clients = [
            SimulatedClient(self.field, name, plan, Random(f"{source}/{name}"))
            for name, plan in zip(scenario.client_names, scenario.clients, strict=True)
        ]
        self.cutter = Cutter(
            Random(f"{source}/cuts"), self.trace, self.loop.time, self.field.raise_tide
        )
        self.archivist: Archivist | None = None
        if scenario.workload in ARCHIVED:
            known = self.cluster, self.loop.time, self.overseer.committed
            self.archivist = Archivist(source, *known)
        self.restoration: Restoration | None = None
        self.explained: ExplanationOperator | None = None
        if any(client.is_named for client in scenario.clients):
            watched = self.history, self.times, self.overseer.committed
            self.explained = ExplanationOperator(
                scenario, self.cluster, *watched, lambda: self._harmed
            )
        self.judge = JudgeClient(self.field, self.cluster, self.clients)
        self.marks = MarkWatch()
        self.violations: list[str] = []
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
        violations += [error for user in self.field.applications for error in user.errors]
        violations += self.loop.failures()
        if self.strikes.processes.stubborn and not self.plan.overlapping:
            violations.append(f"did not stop in time: {self.strikes.processes.stubborn}")
        seconds = self.loop.time()
        self.loop.shut_down()
        self.field.close()
        return RunOutcome(
            self.scenario,
            violations=tuple(violations),
            digest=self.trace.digest(),
            transactions=len(self.history.submissions),
            faults=self.strikes.record.counts,
            effects=self.sites.effects,
            virtual_seconds=seconds,
            writable_seconds=self.judge.writable_seconds,
            converged_seconds=self.converged_seconds,
            callbacks=self.loop.callbacks_count,
            trace=self.trace,
            times_told=self.times.counts,
            cuts=self.cutter.counts,
            lags_told=Counter() if self.consumers is None else self.consumers.watch.told,
            explained=Counter() if self.explained is None else self.explained.watch.counts,
        )

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
                ask = partial(self.consumers.run, self._is_work_over)
                group.create_task(self.sites.run(OPERATOR, ask))
            if any(client.work == "transfer" for client in self.scenario.clients):
                take_cuts = partial(self.cutter.run, is_over=self._is_work_over)
                group.create_task(self.sites.run(CUTTER, take_cuts))
            if self.archivist is not None:
                archive = partial(self.archivist.run, self._is_work_over)
                group.create_task(self.sites.run(ARCHIVIST, archive))
            if self.explained is not None:
                explain = partial(self.explained.run, self._is_work_over)
                group.create_task(self.sites.run(OPERATOR, explain))
            while not self._is_work_over():
                self.field.progress.clear()
                await self.field.progress.wait()
        await self.sites.run(JUDGE, self.judge.run)
        log = self.history.feeds.get(JUDGE, {})
        self.violations += check_users(self.history, log)
        self.violations += check_anomalies(self.history)
        self.violations += self.marks.judge(log)
        self.violations += check_cuts(self.cutter.cuts, self.history, log)
        self.violations += [] if self.consumers is None else self.consumers.watch.violations
        writable_seconds = self.judge.writable_seconds
        if writable_seconds > WRITABLE_SECONDS_MAX:
            self.violations.append(
                f"I12 convergence: {writable_seconds:.0f} s after the last fault there was"
                " still a partition that had taken no append"
            )
        if not self.scenario.faults and writable_seconds > LATE_SECONDS_MAX:
            self.violations.append(
                f"lateness: without any fault it took {writable_seconds:.1f} s until every"
                " partition had taken an append"
            )
        await self._converge(log)
        if self.archivist is not None:
            judge = partial(self.archivist.judge, self.cutter.cuts, log)
            self.violations += await self.sites.run(ARCHIVIST, judge)
        ask_journals = partial(ask_journals_of, self.scenario.source, log, self.times)
        self.violations += await self.sites.run(HISTORIAN, ask_journals)
        if self.consumers is not None:
            await self.sites.run(HISTORIAN, self.consumers.ask_of_idle)
            self.violations += self.consumers.watch.violations
        if self.explained is not None:
            explain = partial(self.explained.explain_in_the_end, log)
            await self.sites.run(HISTORIAN, explain)
            self.violations += self.explained.watch.judge(log)
        if self.archivist is not None and not self.violations:
            await self._restore(self.archivist, log)

    def _is_work_over(self) -> bool:
        return all(client.is_done for client in self.clients)

    async def _restore(self, archivist: Archivist, log: Log) -> None:
        """Lose the cluster, restore it from its archive, and go on with the restored one."""
        self._look_at_disks()
        self.restoration = Restoration(
            self.scenario.source,
            self.cluster,
            archivist.target,
            log,
            self._begin_history,
            tells_key=all(
                versions[-1] >= LIFECYCLE_SINCE for versions in self.scenario.versions.values()
            ),
        )
        self.violations += await self.restoration.run()

    def _begin_history(self) -> None:
        """Forget who has committed what: the restored log goes on from earlier marks."""
        self.overseer = Overseer()

    async def _strike(self) -> None:
        async with asyncio.TaskGroup() as group:
            for fault in self.scenario.faults:
                await self.field.reached(fault.progress)
                strike = group.create_task(self.strikes.strike(fault))
                if not self.plan.overlapping:
                    await strike

    async def _look_now_and_then(self) -> None:
        random = Random(f"{self.scenario.source}/looks")
        for progress in sorted(random.random() for _ in range(random.randint(0, LOOKS_MAX))):
            await self.field.reached(progress)
            await asyncio.sleep(random.uniform(0.0, 0.1))
            self._look_at_disks()

    def _look_at_disks(self) -> None:
        """Check that what users know to be committed is on a majority of disks now."""
        replicas = self.cluster.replicas(durable=True)
        members = self.cluster.members()
        self.violations += held_by_enough(self.history, replicas, members, len(self._harmed))
        self.marks.look(replicas, self.strikes.disks.harmed, self.cluster.written_off(replicas))

    @property
    def _harmed(self) -> Collection[str]:
        """The machines whose disks need not hold the log now: a fault has harmed them, and they are
        not known to be repaired."""
        return () if self.has_converged else self.strikes.disks.harmed

    def _false_alarms(self) -> list[str]:
        """Return damage that a node has noted on a disk that no fault has harmed: what was promised
        to be durable is not there, or the promise is wrong."""
        if self.scenario.has(DiskFailure):
            return []
        return [
            f"I1 durability: {name} takes records for damaged, and no fault has harmed its disk"
            for name in self.sites.damage_noted
            if name not in self.strikes.disks.harmed
        ]

    # Consumers

    def _asks_of_consumers(self) -> ConsumerOperator | None:
        """Return the operator of a run that has named consumers."""
        if not any(client.is_consumer for client in self.scenario.clients):
            return None
        watch = ConsumerWatch(self._applied_by, knows_times=not self.scenario.has(ClockDrift))
        return ConsumerOperator(watch, self.loop.time)

    def _applied_by(self, name: str) -> Mapping[PartitionId, TransactionId]:
        return next(each for each in self.clients if each.name == name).application.marks

    def _look_at_machine(self, process: Process, machine: Inspectable) -> None:
        self.overseer.look(process, machine)
        if self.consumers is None:
            return
        watch = self.consumers.watch
        if isinstance(machine, ServerPartition) and machine.high_water_mark is not None:
            watch.see_commits(machine.partition_id, machine.high_water_mark, self.loop.time())
        for name in self.scenario.client_names:
            with suppress(NoNodeError):
                node = self.sites.coordinator.tree.read(ClusterPaths().consumer(name))
                watch.see_node(name, node.data or b"", node.version)

    # Peace

    async def _converge(self, log: Log) -> None:
        """I12: give every assigned replica time to hold the log and nothing else; note violations
        for those that do not.

        Replicas with harmed disks count, too: damage is repaired, a blank or outdated replica is
        filled up again. `DiskStrikes` does not do what is not promised to be told from a crash.
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
