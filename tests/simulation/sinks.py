"""The Spark sink in a simulated cluster: attempts of its tasks, zombies among them, row by row.

What runs is `waltz.spark.sink.write_rows`, with the notes of the coordinator and the client that it
opens, in threads to which the simulated loop hands over. Spark's part is played here: it starts
attempts, two of a task at a time, again when one fails, and the next batch once every task of one
has succeeded. Some batches are writes without a name, whose notes a driver makes before them and
deletes after them, while second attempts are still at it. Attempts die with their machines as the
fault plan says; the rows of the batches and where each begins are drawn from the seed. The judge
sees the log alone: every row is in it once.

    python -m tests.simulation.sinks --seed 7 --seeds 100 --faults client_crash
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from proofs.patches import Patch, patched
from tests.simulation.batons import Baton, on_the_loop
from waltz.client import notes_shell as notes_shell
from waltz.client.client_options import options_from
from waltz.client.client_shell import AsyncWaltzClient
from waltz.cluster.cluster_shell import read_store_params
from waltz.cluster.histories import Histories
from waltz.cluster.paths import DEFAULT_ROOT, ClusterPaths
from waltz.errors import WaltzError
from waltz.host import Host, Workers
from waltz.reader.reader_shell import AsyncLogReader
from waltz.sim.applications.application import Application, Draft, Intent, submit
from waltz.sim.applications.clients import fed_in
from waltz.sim.faults.drawing import FaultStage
from waltz.sim.faults.plans import PLANS
from waltz.sim.faults.strikes import Strikes
from waltz.sim.judges.history import History
from waltz.sim.judges.overseer import Overseer
from waltz.sim.judges.payload import EntryKind
from waltz.sim.judges.run_trace import RunTrace
from waltz.sim.loop import SimulatedLoop, SimulationError
from waltz.sim.scenario import ClusterShape
from waltz.sim.simulated_cluster import SimulatedCluster
from waltz.sim.simulated_disk import SimulatedDisk
from waltz.sim.sites import Sites, until_stopped
from waltz.spark import sink, sink_state
from waltz.spark.codes import ROWS_CHANGED
from waltz.spark.sink import SinkAccess, TaskRows, end_once, write_rows
from waltz.spark.sink_progress import TaskIdentity
from waltz.types import PartitionId

TASKS: Final = 2
BATCHES: Final = 4
ROWS_MAX: Final = 16
PARTITIONS: Final = 2
COPIES: Final = 2
"""Machines per task: both are at it at once."""

WORK_SECONDS: Final = 1.0
"""Within which all faults begin."""

RUN_SECONDS_MAX: Final = 1_000.0

LOCKS: Final = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))

Row = tuple[int, int, bytes]


class _Workers:
    """Runs functions in threads that may ask something of the loop."""

    def __init__(self, usual: Workers, batons: list[Baton]) -> None:
        self._usual = usual
        self._batons = batons

    def start(self, function: Callable[[], Callable[[], object]]) -> None:
        self._usual.start(function)

    async def run_blocking(self, function: Callable[[], Any]) -> Any:
        await self._usual.run_blocking(lambda: None)
        baton = Baton(function)
        self._batons.append(baton)
        return await baton.run()


class _Notes:
    """The cluster's notes, read and changed by the product's own code."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._paths = ClusterPaths(DEFAULT_ROOT)

    def read(self, name: str) -> bytes | None:
        path = self._paths.note(name)
        return on_the_loop(lambda: notes_shell._read(self._host.coordinator, path))

    def read_cluster_key(self) -> UUID:
        coordinator = self._host.coordinator
        return on_the_loop(lambda: read_store_params(coordinator, DEFAULT_ROOT)).cluster_key

    def read_histories(self) -> Histories:
        coordinator = self._host.coordinator
        return on_the_loop(lambda: notes_shell._read_histories(coordinator, self._paths))

    def change(self, name: str, change: Callable[[bytes | None], bytes]) -> bytes:
        path = self._paths.note(name)
        return on_the_loop(
            lambda: notes_shell._change(self._host.coordinator, self._paths, path, change)
        )

    def remove(self, name: str) -> None:
        path = self._paths.note(name)
        on_the_loop(lambda: notes_shell._remove(self._host.coordinator, path))

    def __enter__(self) -> _Notes:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Client:
    """A client for threads."""

    def __init__(self, client: AsyncWaltzClient) -> None:
        self._client = client

    def __enter__(self) -> _Client:
        on_the_loop(self._client.start)
        return self

    def __exit__(self, *_: object) -> None:
        on_the_loop(self._client.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_high_water_mark(self, partition_id: int) -> int:
        return on_the_loop(lambda: self._client.get_high_water_mark(partition_id))

    def set_partitions(self, partitions: set[int]) -> None:
        on_the_loop(lambda: self._client.set_partitions(partitions))

    def append_many(self, *arguments: Any, **columns: Any) -> Any:
        return on_the_loop(lambda: self._client.append_many(*arguments, **columns))

    def submit(self, context: Any) -> None:
        on_the_loop(lambda: self._client.submit(context))

    def flush(self, timeout_seconds: float) -> None:
        on_the_loop(lambda: self._client.flush(timeout_seconds))


class _Condition(threading.Condition):
    """Waiting takes virtual time, and lets everybody else go on."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        saved = self._release_save()  # type: ignore[attr-defined]
        try:
            on_the_loop(lambda: asyncio.sleep(timeout))
        finally:
            self._acquire_restore(saved)  # type: ignore[attr-defined]
        return False


class _Threading:
    Condition = _Condition


class SinkRun:
    """One run. `violations` after `play`: none if all went well."""

    def __init__(self, seed: int, plan: str) -> None:
        self.source = f"{seed}/sink/{plan}"
        self.violations: list[str] = []
        self.written: list[TaskRows] = []
        self.failures: Counter[str] = Counter()
        self.attempts = 0
        self.killed = 0
        """Machines that died while one of their attempts was under way."""
        self._under_way: Counter[str] = Counter()
        self._random = Random(f"{self.source}/run")
        self._rows = [
            [self._draw_rows(batch, task) for task in range(TASKS)] for batch in range(BATCHES)
        ]
        self._loop = SimulatedLoop(self.source, virtual_seconds_max=RUN_SECONDS_MAX)
        self._trace = RunTrace()
        self._sites = Sites(self._loop, self.source, self._trace, Overseer().look)
        self._shape = ClusterShape(
            partition_count=PARTITIONS,
            storage_count=3,
            server_count=max(2, PLANS[plan].server_count_min),
            segment_bytes_threshold=20_000,
        )
        key = UUID(int=self._random.getrandbits(128), version=4)
        self._cluster = SimulatedCluster(self._sites, self._shape, key)
        self._strikes = Strikes(self._sites, self._cluster.is_outdated)
        self._names = [f"executor-{task}-{copy}" for task in range(TASKS) for copy in range(COPIES)]
        stage = FaultStage(self._shape.storages, self._shape.servers, [*self._names, "stranger"])
        self._plan = PLANS[plan]
        self._faults = self._plan.draw(Random(f"{self.source}/faults"), stage)
        self._strikes.expect(self._faults)
        self._batons: list[Baton] = []
        self._batch: int | None = None
        """The batch to be written now; None: the driver is between two of them."""
        drawn = Random(f"{self.source}/once")
        self._once = [drawn.random() < 0.5 for _ in range(BATCHES)]
        """Whether each batch is a write without a name."""
        self._succeeded: set[tuple[int, int]] = set()
        self._batch_is_over = asyncio.Event()
        self._is_over = False
        self._stranger = Application("stranger", History(), self._trace, self._loop.time)

    def _draw_rows(self, batch: int, task: int) -> list[Row]:
        """Some rows of a task are equal."""
        random = self._random
        return [
            (random.randrange(PARTITIONS), task, b"%d.%d.%d" % (batch, task, random.randrange(8)))
            for _ in range(random.randint(1, ROWS_MAX))
        ]

    @property
    def wanted(self) -> Counter[Row]:
        return Counter(row for batch in self._rows for rows in batch for row in rows)

    def play(self) -> SinkRun:
        collecting, before = gc.isenabled(), logging.root.manager.disable
        gc.disable()
        logging.disable(logging.CRITICAL)
        try:
            with _virtual(self._loop):
                self._loop.run_until_complete(self._sites.unless_broken(self._course()))
        except SimulationError as error:
            self.violations.append(str(error))
        finally:
            for baton in self._batons:
                baton.abandon()
            self.violations += self._loop.failures()
            self._loop.shut_down()
            logging.disable(before)
            if collecting:
                gc.enable()
        return self

    @property
    def digest(self) -> str:
        return self._trace.digest()

    async def _course(self) -> None:
        await self._cluster.start()
        for name in self._names:
            task = int(name.split("-")[1])
            self._sites.add(
                name,
                partial(self._run_executor, task, name),
                SimulatedDisk(),
                may_end=True,
                on_death=partial(self._died, name),
            )
        self._sites.add(
            "stranger",
            lambda host: until_stopped(self._write_beside(host)),
            SimulatedDisk(),
            may_end=True,
        )
        driving = self._loop.create_task(self._sites.run("driver", self._drive))
        await self._strike()
        await driving
        while not all(self._sites.site(name).process.dead for name in self._names):
            await asyncio.sleep(0.1)  # zombies may still write
        self._judge(Counter(await self._sites.run("judge", self._read)))

    async def _strike(self) -> None:
        began = self._loop.time()
        async with asyncio.TaskGroup() as group:
            for fault in self._faults:
                due = began + fault.progress * WORK_SECONDS
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                striking = group.create_task(self._strikes.strike(fault))
                if not self._plan.overlapping:
                    await striking

    def _died(self, name: str) -> None:
        self.killed += self._under_way.pop(name, 0)

    # Spark's part

    async def _run_executor(self, task: int, name: str, host: Host) -> None:
        await until_stopped(self._execute(host, task, name))

    async def _drive(self, host: Host) -> None:
        """One batch after the other, until the last one or the first violation."""
        for batch, is_once in enumerate(self._once):
            identity, access = self._identity(batch, 0), self._access(host)
            if is_once:
                await self._insist(lambda a=access, i=identity: a.bound(once=i))  # type: ignore[misc]
            self._batch_is_over.clear()
            self._batch = batch
            await self._batch_is_over.wait()
            self._batch = None
            if self.violations:
                break
            if is_once:
                await self._insist(lambda a=access, i=identity: end_once(a, i))  # type: ignore[misc]
        self._is_over = True

    async def _insist(self, function: Callable[[], object]) -> None:
        """Call a function of the driver until it succeeds."""
        while True:
            baton = Baton(function)
            self._batons.append(baton)
            with suppress(WaltzError):
                await baton.run()
                return
            await asyncio.sleep(0.1)

    async def _execute(self, host: Host, task: int, name: str) -> None:
        """One attempt after the other."""
        random = Random(f"{self.source}/{name}/{self.attempts}")
        while not self._is_over:
            await asyncio.sleep(random.choice((0.0, random.uniform(0.0, 0.5))))
            batch = self._batch
            if batch is None or (batch, task) in self._succeeded:
                await asyncio.sleep(0.1)
                continue
            self.attempts += 1
            self._under_way[name] = 1
            try:
                self.written.append(await self._attempt(host, batch, task, random))
            except WaltzError as error:
                self.failures[type(error).__name__] += 1
                if ROWS_CHANGED in str(error):
                    self.violations.append(f"the rows are the same each time: {error}")
                    self._batch_is_over.set()
                continue
            finally:
                self._under_way[name] = 0
            self._succeeded.add((batch, task))
            done = all((batch, each) in self._succeeded for each in range(TASKS))
            if batch == self._batch and done:
                self._batch_is_over.set()

    def _identity(self, batch: int, task: int) -> TaskIdentity:
        if self._once[batch]:
            return TaskIdentity(f"once-{batch}", 0, task, "run", is_once=True)
        return TaskIdentity("sink", batch, task, "run")

    async def _attempt(self, host: Host, batch: int, task: int, random: Random) -> TaskRows:
        rows = self._rows[batch][task].copy()
        random.shuffle(rows)
        host = replace(host, workers=_Workers(host.workers, self._batons))
        access, identity = self._access(host), self._identity(batch, task)
        baton = Baton(lambda: write_rows(access, identity, _arrow(rows, random)))
        self._batons.append(baton)
        written: TaskRows = await baton.run()
        if written.appended + written.found != len(rows):
            self.violations.append(f"{identity}: {written} of {len(rows)} rows")
        return written

    def _access(self, host: Host) -> SinkAccess:
        def open_client(_: str, callbacks: Any, *, tls: object, **options: Any) -> _Client:
            return _Client(AsyncWaltzClient(host, callbacks, options_from(options)))

        def open_notes(_: str, *, tls: object) -> _Notes:
            return _Notes(host)

        return SinkAccess("simulated", open_client=open_client, open_notes=open_notes)  # type: ignore[arg-type]

    async def _write_beside(self, host: Host) -> None:
        """Somebody else uses the log, too."""
        random = Random(f"{self.source}/stranger")
        async with AsyncWaltzClient(host, self._stranger) as client:
            while not self._is_over:
                await asyncio.sleep(random.uniform(0.0, 0.3))
                partition_id = PartitionId(random.randrange(PARTITIONS))
                await submit(
                    client,
                    Intent(
                        self._stranger,
                        partition_id,
                        lambda application, partition_id: Draft(EntryKind.NOTE),
                        header=-1,
                        padding=b"",
                    ),
                )

    # The end

    async def _read(self, host: Host) -> list[Row]:
        async with AsyncLogReader(host) as reader:
            rows: list[Row] = []
            for number in range(PARTITIONS):
                while True:
                    with suppress(WaltzError):
                        end = await reader.high_water_mark(number) + 1
                        found = [
                            (number, fed.header, fed.data)
                            async for columns in reader.read(number, 0, end)
                            for fed in fed_in(columns)
                            if fed.header >= 0
                        ]
                        break
                    await asyncio.sleep(0.1)
                rows += [(row[0], row[1], bytes(row[2])) for row in found]
            return [row for row in rows if not row[2].startswith(b"WSIM")]

    def _judge(self, log: Counter[Row]) -> None:
        wanted = self.wanted
        self.violations += [f"missing in the log: {row}" for row in (wanted - log).elements()]
        self.violations += [f"too often in the log: {row}" for row in (log - wanted).elements()]


@contextmanager
def _virtual(loop: SimulatedLoop) -> Iterator[None]:
    """Let the sink wait on virtual time."""

    class Time:
        monotonic = staticmethod(loop.time)

    with patched(
        (
            Patch(sink, "time", lambda _: Time),
            Patch(sink_state, "threading", lambda _: _Threading),
        )
    ):
        yield


def _arrow(rows: list[Row], random: Random) -> Iterator[Any]:
    """Yield the rows in batches. A batch with a lock of its own, which nothing else has, is written
    row by row, and the others as columns; another attempt may do the other."""
    start = 0
    while start < len(rows):
        end = start + random.randint(1, ROWS_MAX)
        partitions, headers, data = zip(*rows[start:end], strict=True)
        columns = {
            "partition": pa.array(partitions, pa.int32()),
            "header": pa.array(headers, pa.int32()),
            "data": pa.array(data, pa.binary()),
        }
        if random.random() < 0.3:
            columns["append_locks"] = pa.array([[{"name": "row", "id": 0}]] * len(data), LOCKS)
        yield pa.RecordBatch.from_pydict(columns)
        start = end


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line per run that failed, and how many there were; return 0 if none did."""
    parser = argparse.ArgumentParser("python -m tests.simulation.sinks")
    parser.add_argument("--seed", type=int, default=1, help="the first seed (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds (default 1)")
    parser.add_argument("--faults", choices=PLANS, help="the fault plan; default: all, by seed")
    options = parser.parse_args(arguments)
    plans = [options.faults] if options.faults else [*PLANS]
    failed = rows = attempts = killed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        plan = plans[seed % len(plans)]
        run = SinkRun(seed, plan).play()
        rows += run.wanted.total()
        attempts += run.attempts
        killed += run.killed
        failed += bool(run.violations)
        for violation in run.violations:
            sys.stdout.write(f"seed {seed} {plan}: {violation}\n")
    sys.stdout.write(
        f"{options.seeds} seeds, {failed} failed: {rows} rows, {attempts} attempts,"
        f" {killed} of them killed\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
