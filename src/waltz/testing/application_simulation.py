"""The simulator for an application's own code: its callbacks and contexts against every fault.

Owns the course of a run: the application works while faults strike, then the faults end, and every
client must apply the whole log. What an application has promised Waltz is judged here, what it has
promised its users by its own `check`. What Waltz promises is judged by `waltz.sim`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias
from uuid import UUID

from waltz.client.applying.callbacks import WaltzClientCallbacks
from waltz.client.client_options import options_from
from waltz.client.client_shell import AsyncWaltzClient
from waltz.errors import ConfigurationError, WaltzError
from waltz.host import Host
from waltz.reader.reader_shell import AsyncLogReader
from waltz.sim.applications.clients import fed_in
from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.plans import PLANS
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.history import FedRecord
from waltz.sim.judges.overseer import Overseer
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.knobs import draw_knobs, turned
from waltz.sim.loop import SimulatedLoop, SimulationError
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulated_disk import DiskOperation, SimulatedDisk
from waltz.sim.sites import Sites, until_stopped
from waltz.testing.watching import WatchedCallbacks
from waltz.types import PartitionId, TransactionId

FAULT_PLANS: Final = tuple(PLANS)
"""The names of all fault plans; `waltz.sim.faults.plans` describes each."""

SETTLING_SECONDS_MAX: Final = 300.0
"""Virtual seconds after the last fault and the last work within which everything must be applied
everywhere. While work proceeds, a transaction may fail to be applied for as long."""

RUN_SECONDS_MAX: Final = 10_000.0
"""Virtual seconds that work may take after the faults are over."""

Log = Mapping[PartitionId, Sequence[FedRecord]]


class SimulatedApplication(ABC):
    """The application of one client of a run.

    It outlives its process, as a database does: state that is lost when the process dies belongs in
    the object that `callbacks` returns. Applications that share a database share an object.
    """

    @abstractmethod
    def callbacks(self) -> WaltzClientCallbacks:
        """Return the callbacks of a process that is about to start, also after a crash."""

    @abstractmethod
    async def work(self, client: AsyncWaltzClient, random: Random) -> None:
        """Submit the work of this run, and return.

        When the process dies this is called again in the next process, from its beginning. Numbers
        drawn from `random`, and nothing else, are the same in every run of a seed; wait with
        `asyncio`, which takes no real time.
        """

    def check(self, log: Log) -> None:  # noqa: B027 - marks and verdicts are judged without it
        """Judge the end, when everything is applied everywhere; raise AssertionError.

        `log`: by partition, all transactions, with transaction_id, request_id, header and data.
        """


NewApplication = Callable[[str], SimulatedApplication]
"""Makes the application of a client from its name: client-0, client-1, ..."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """A run without violations."""

    seed: int
    faults: str
    digest: str
    """Equal for equal runs, unless the application depends on anything but the seed."""
    transactions: int
    """Transactions in the log at the end."""
    struck: Counter[str]
    """The number of faults that struck, by kind."""
    virtual_seconds: float


class SimulationFailedError(AssertionError):
    """A run with violations; the text has all of them, and last the line that repeats the run."""

    def __init__(self, violations: Sequence[str], replay: str) -> None:
        super().__init__("\n".join([*violations, f"replay: {replay}"]))
        self.violations = tuple(violations)
        self.replay = replay


def simulate(
    new_application: NewApplication,
    *,
    seed: int,
    faults: str = "everything",
    clients: int = 2,
    partitions: int = 2,
    storages: int = 3,
    servers: int = 2,
    seconds: float = 30.0,
    replay: str | None = None,
    **options: Any,
) -> SimulationOutcome:
    """Run an application on virtual time; one seed is one run, on every machine.

    `faults` is one of FAULT_PLANS; they strike within the first `seconds` of virtual time.
    `options` are those of the clients that `SimulatedApplication.work` gets, as for
    `waltz.open_client`. Raises SimulationFailedError, which shows `replay`; ConfigurationError: no
    such plan.
    """
    if faults not in PLANS:
        raise ConfigurationError(f"faults is {faults!r}; expected one of {', '.join(PLANS)}")
    shape = ClusterShape(
        partition_count=partitions,
        storage_count=storages,
        server_count=max(servers, PLANS[faults].server_count_min),
        segment_bytes_threshold=20_000,
    )
    replay = replay or (
        f"simulate({getattr(new_application, '__qualname__', new_application)}, seed={seed},"
        f" faults={faults!r}, clients={clients}, partitions={partitions}, storages={storages},"
        f" servers={servers}, seconds={seconds!r}"
        f"{''.join(f', {name}={value!r}' for name, value in options.items())})"
    )
    collecting = gc.isenabled()
    gc.disable()  # when garbage is found must not depend on what ran before
    logging_before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    run = _Run(new_application, seed, faults, clients, shape, seconds, options)
    try:
        with turned(draw_knobs(Random(f"{run.source}/knobs"))):
            return run.outcome(replay)
    finally:
        del run
        logging.disable(logging_before)
        gc.collect(0)
        if collecting:
            gc.enable()


_Blocked: TypeAlias = tuple[str, PartitionId, TransactionId]
"""The name of a client, and the transaction that it cannot apply."""


class _Client:
    """One client through all lives of its process."""

    def __init__(self, run: _Run, name: str, application: SimulatedApplication) -> None:
        self.name = name
        self.application = application
        self.random = Random(f"{run.source}/{name}")
        self.watched: WatchedCallbacks | None = None
        self.present: AsyncWaltzClient | None = None
        """The client of the living process."""
        self.has_worked = False
        self._run = run

    async def main(self, host: Host) -> None:
        await until_stopped(self._live(host))

    def die(self) -> None:
        self.present = None
        self.has_worked = False

    async def _live(self, host: Host) -> None:
        site = self._run.sites.site(self.name)
        self.watched = WatchedCallbacks(
            self.application.callbacks(), self.name, partial(_pass_operation, site.disk),
            self.watched,
        )  # fmt: skip
        options = options_from(dict(self._run.options))
        async with AsyncWaltzClient(host, self.watched, options) as client:
            self.present = client
            await self.application.work(client, self.random)
            self.has_worked = True
            self._run.progress.set()
            await self._run.peace.wait()

    def blocked(self) -> set[_Blocked]:
        """Return the transactions that cannot be applied at the moment."""
        blocked = self.present.blocked_partitions() if self.present is not None else {}
        return {(self.name, number, each.transaction_id) for number, each in blocked.items()}

    def lacks(self, log: Log) -> str | None:
        """Return what the client has not applied yet, in words; None if it has applied
        everything."""
        if self.present is None:
            return f"{self.name} has not started"
        for partition_id, transactions in log.items():
            chosen = self.present.options.partitions
            if chosen is not None and partition_id not in chosen:
                continue
            mark, end = self.present.client_high_water_mark(partition_id), len(transactions) - 1
            if mark != end:  # the log may have grown since it was read
                assert self.watched is not None
                error = self.watched.errors.get(partition_id)
                return (
                    f"{self.name} has applied partition {partition_id} through {mark}, and the log"
                    f" goes to {end}" + (f"; its last error was {error!r}" if error else "")
                )
        if not self.has_worked:
            return f"{self.name} has not ended its work"
        if self.present.has_pending_transactions():
            return f"{self.name} has contexts that have not ended"
        return None


class _Run:
    def __init__(
        self,
        new_application: NewApplication,
        seed: int,
        faults: str,
        clients: int,
        shape: ClusterShape,
        seconds: float,
        options: Mapping[str, Any],
    ) -> None:
        self.source = f"{seed}/testing/{faults}"
        self.options = options
        self._seed = seed
        self._faults = faults
        self._plan = PLANS[faults]
        self._shape = shape
        self._seconds = seconds
        self._loop = SimulatedLoop(self.source, virtual_seconds_max=seconds + RUN_SECONDS_MAX)
        self._trace = RunTrace()
        self.sites = Sites(self._loop, self.source, self._trace, Overseer().look)
        key = UUID(int=Random(f"{self.source}/key").getrandbits(128), version=4)
        self._cluster = SimulatedCluster(self.sites, shape, key)
        self._strikes = Strikes(self.sites, self._cluster.is_outdated)
        names = [f"client-{number}" for number in range(clients)]
        stage = FaultStage(
            shape.storages, shape.servers, names, partition_count=shape.partition_count
        )
        self._planned = self._plan.draw(Random(f"{self.source}/faults"), stage)
        self._strikes.expect(self._planned)
        self._clients = [_Client(self, name, new_application(name)) for name in names]
        self._violations: list[str] = []
        self._guests_count = 0
        self._transactions = 0
        self.peace = asyncio.Event()
        self.progress = asyncio.Event()

    def outcome(self, replay: str) -> SimulationOutcome:
        try:
            self._loop.run_until_complete(self.sites.unless_broken(self._course()))
        except SimulationError as error:
            self._violations.append(str(error))
        for client in self._clients:
            self._violations += client.watched.violations if client.watched else []
        self._violations += self._loop.failures()
        seconds = self._loop.time()
        self._loop.shut_down()
        if self._violations:
            raise SimulationFailedError(self._violations, replay)
        return SimulationOutcome(
            self._seed,
            self._faults,
            self._trace.digest(),
            self._transactions,
            self._strikes.record.counts,
            seconds,
        )

    async def _course(self) -> None:
        await self._cluster.start()
        for client in self._clients:
            self.sites.add(
                client.name, client.main, SimulatedDisk(), may_end=True, on_death=client.die
            )
        await self._strike()
        await self._worked()
        log = await self._settled()
        self._transactions = sum(map(len, log.values()))
        for client in self._clients:
            try:
                client.application.check(log)
            except Exception as error:  # whatever the error is, it is the application's verdict
                self._violations.append(f"{client.name}: {type(error).__name__}: {error}")
        self.peace.set()

    async def _strike(self) -> None:
        began = self._loop.time()
        async with asyncio.TaskGroup() as group:
            for fault in self._planned:
                due = began + fault.progress * self._seconds
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                striking = group.create_task(self._strikes.strike(fault))
                if not self._plan.overlapping:
                    await striking

    async def _worked(self) -> None:
        """Return once every client has ended its work, or when one never will: contexts that wait
        behind a transaction that cannot be applied keep their room, and submits wait for it."""
        blocked: set[_Blocked] = set()
        while True:
            until = self._loop.time() + SETTLING_SECONDS_MAX
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    while not all(client.has_worked for client in self._clients):
                        self.progress.clear()
                        await self.progress.wait()
                    return
            before = blocked
            blocked = {each for client in self._clients for each in client.blocked()}
            if before & blocked:
                return

    async def _settled(self) -> Log:
        """Return the log once every client has applied it; note a violation for a client that does
        not."""
        until, pause_seconds = self._loop.time() + SETTLING_SECONDS_MAX, 0.01
        while True:
            log: Log = {}
            lacking = ["the log cannot be read"]
            with suppress(WaltzError):
                log = await self._read_log()
                lacking = [lack for each in self._clients if (lack := each.lacks(log)) is not None]
            if not lacking or self._loop.time() > until:
                self._violations += lacking
                return log
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, 5.0)

    async def _read_log(self) -> Log:
        async def main(host: Host) -> Log:
            try:
                async with AsyncLogReader(host) as reader:
                    return {
                        number: [
                            fed
                            async for columns in reader.read(
                                number, 0, await reader.high_water_mark(number) + 1
                            )
                            for fed in fed_in(columns)
                        ]
                        for number in self._cluster.partition_ids
                    }
            finally:
                await host.coordinator.close()

        self._guests_count += 1
        return await self.sites.run(f"reader-{self._guests_count}", main)


def _pass_operation(disk: SimulatedDisk) -> None:
    """Let the process die here, if it is to die in the middle of its work."""
    if disk.fault is not None:
        disk.fault(DiskOperation.WRITE, "application")
