"""One smoke run from its start to its judgement.

Owns what happens in which order: load under faults, then quiet; everything stops, the replicas are
compared on disk, everything starts again, and the log is read and judged.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import waltz
from tests.smoke.faults import ZOOKEEPER, Fault, Harm, schedule
from tests.smoke.journal import encode_fed, fed_path
from tests.smoke.judge import LOG, Judgement, judge
from tests.smoke.processes import Cluster, memory_bytes, running_cluster
from waltz.record import request_id_from
from waltz.sim.judges.history import Fed
from waltz.types import TransactionId

SERVERS = 3
CLIENTS = 4
PARTITIONS = 16
SESSION_MILLISECONDS = 4000

READ_SECONDS_MAX = 120.0
"""Without progress of a reader; the machine may have much else to do."""

READERS = 4
"""Partitions read at a time, in the end."""

LOOK_SECONDS = 0.25
PICTURE_SECONDS = 10.0
"""Between two lines of the picture while nothing changes."""

STALL_SECONDS = 60.0
"""Without one ended context, after the last fault has ended: then the run has failed."""

SETTLE_SECONDS = 180.0
"""From the end of the load until all replicas take part in their sessions again."""

MEMORY_BYTES_MAX = 512 * 1024**2
"""More than this no server and no storage node may have had at any moment."""


@dataclass(frozen=True, slots=True)
class Settings:
    transactions: int
    seed: str
    seconds: float
    """After so long nothing more is submitted."""
    directory: Path
    faults: bool = True
    forgetful: bool = False
    """Whether the first client does not apply one transaction: the run has to fail then."""


@dataclass
class Client:
    name: str
    process: asyncio.subprocess.Process
    log: Path
    said: dict[str, Any] = field(default_factory=dict)

    async def follow(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said = json.loads(line)

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


class Run:
    """What is known of a run while it goes on."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        clients: Sequence[Client],
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.clients = clients
        self.harmed: dict[str, Harm] = {}
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.client_memory_peak_bytes = 0
        self._say = say
        self._began = time.monotonic()
        self._pictured = (self._began, 0)
        self._owners = cluster.owners()
        self._errands: set[asyncio.Task[None]] = set()

    # The picture

    def total(self, name: str) -> int:
        return sum(client.said.get(name, 0) for client in self.clients)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_submitting(self) -> bool:
        return any(client.said.get("submitting", True) for client in self.clients)

    def picture(self, what: str) -> None:
        """Say one line: what has changed, who has which part, how fast it goes."""
        at, committed_then = self._pictured
        now, committed = time.monotonic(), self.total("committed")
        rate = (committed - committed_then) / max(now - at, 0.001)
        self._pictured = (now, committed)
        owned = self.cluster.owners()
        nodes = [
            f"{name[0] + name[-1]}:{self._mark(name) or len(owned.get(name, ())) or '-'}"
            for name in self.cluster.servers
        ]
        storages = [
            f"{name[0].upper() + name[-1]}:{self._mark(name) or 'up'}"
            for name in self.cluster.storages
        ]
        zookeeper = f"zk:{self._mark(ZOOKEEPER) or 'up'}"
        pending = self.total("submitted") - self.total("ended")
        self._say(
            f"{what:<50} {' '.join([*nodes, *storages, zookeeper]):<57}"
            f" {rate:>6,.0f}/s {pending:>5} pending {committed:>9,} committed"
        )

    def _mark(self, name: str) -> str:
        harm = self.harmed.get(name)
        return "" if harm is None else harm.name.lower()

    async def watch(self) -> None:
        """Say every change of owners, and something now and then; look at the processes."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            owners = self.cluster.owners()
            if owners != self._owners:
                self._owners = owners
                self.picture("partitions have moved")
            elif time.monotonic() - self._pictured[0] > PICTURE_SECONDS:
                self.picture("")
            for node in self.cluster.nodes.values():
                node.note_memory()
                if not node.runs and node.name not in self.harmed:
                    assert node.process is not None
                    self.violations.append(
                        f"{node.name} ended by itself: {node.process.returncode}"
                    )
                    self.harmed[node.name] = Harm.ENDED
            for client in self.clients:
                peak = memory_bytes(client.process.pid)[1]
                self.client_memory_peak_bytes = max(self.client_memory_peak_bytes, peak)

    # Faults

    async def break_things(self) -> None:
        """Let the schedule's faults happen, one target at a time, until cancelled."""
        cluster = self.cluster
        for fault in schedule(self.settings.seed, list(cluster.servers), list(cluster.storages)):
            await asyncio.sleep(fault.gap_seconds)
            while fault.target in self.harmed:
                await asyncio.sleep(LOOK_SECONDS)
            self.faults[f"{fault.target.partition('-')[0]} {fault.harm.value}"] += 1
            self.harmed[fault.target] = fault.harm
            errand = asyncio.create_task(self._suffer(fault))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def heal(self) -> None:
        """Return once what the last faults have begun has ended."""
        while self._errands:
            await asyncio.gather(*self._errands)

    async def _suffer(self, fault: Fault) -> None:
        self.picture(f"{fault.target} {fault.harm.value} for {fault.seconds:.1f} s")
        try:
            if fault.target == ZOOKEEPER:
                await self._harm_zookeeper(fault)
            elif fault.harm in (Harm.CUT, Harm.SILENT):
                await self._harm_link(fault)
            else:
                await self._harm_node(fault)
        except Exception as error:
            self.violations.append(f"{fault.target} did not come back: {error!r}")
            return
        del self.harmed[fault.target]
        self.picture(f"{fault.target} is back")

    async def _harm_node(self, fault: Fault) -> None:
        node = self.cluster.nodes[fault.target]
        node.note_memory()
        if fault.harm is Harm.STOPPED:
            node.signal(signal.SIGSTOP)
            await asyncio.sleep(fault.seconds)
            node.signal(signal.SIGCONT)
            return
        if fault.harm is Harm.KILLED:
            await node.kill()
        elif (status := await node.end()) != 0:
            self.violations.append(f"{fault.target} was told to end, and ended with {status}")
        await asyncio.sleep(fault.seconds)
        await node.start_in_the_end()

    async def _harm_link(self, fault: Fault) -> None:
        link = self.cluster.links[fault.target]
        if fault.harm is Harm.CUT:
            link.cut()
            return
        link.requests.clear()
        link.answers.clear()
        await asyncio.sleep(fault.seconds)
        link.requests.set()
        link.answers.set()

    async def _harm_zookeeper(self, fault: Fault) -> None:
        zookeeper = self.cluster.zookeeper
        if fault.harm is Harm.KILLED:
            await zookeeper.kill()
            await asyncio.sleep(fault.seconds)
            await zookeeper.start()
            return
        assert zookeeper.pid is not None
        os.kill(zookeeper.pid, signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        os.kill(zookeeper.pid, signal.SIGCONT)

    # The load

    async def load(self) -> None:
        """Return once every context has ended. Raises RuntimeError: they do not."""
        breaking = asyncio.create_task(self.break_things()) if self.settings.faults else None
        told = False
        while self.is_submitting:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_at_clients()
            if breaking is not None and breaking.done():
                await breaking
            if not told and self.seconds > self.settings.seconds:
                told = True
                self.picture("time is up: nothing more is submitted")
                for client in self.clients:
                    client.tell("stop")
        if breaking is not None:
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)
        await self.heal()
        self.picture("everything is submitted, nothing breaks any more")
        ended, since = -1, time.monotonic()
        while self.total("ended") < self.total("submitted"):
            await asyncio.sleep(LOOK_SECONDS)
            self._look_at_clients()
            if self.total("ended") != ended:
                ended, since = self.total("ended"), time.monotonic()
            if time.monotonic() - since > STALL_SECONDS:
                raise RuntimeError(
                    f"{self.total('submitted') - ended} contexts have not ended, and none ended"
                    f" for {STALL_SECONDS:.0f} s"
                )
        self.picture("every context has ended")

    def _look_at_clients(self) -> None:
        for client in self.clients:
            if client.process.returncode is not None:
                raise RuntimeError(f"{client.name} has ended; see {client.log}")
        if self.violations:
            raise RuntimeError("; ".join(self.violations))

    async def finish(self) -> dict[str, list[int]]:
        """Let the clients see all of the log, and return what they have summed up of it."""
        # Not on this loop, which carries what the servers say to the ZooKeeper.
        marks = await asyncio.to_thread(read_marks, self.cluster.coordinator)
        for client in self.clients:
            client.tell(json.dumps(marks))
        async with asyncio.timeout(STALL_SECONDS):
            for client in self.clients:
                if await client.process.wait() != 0:
                    raise RuntimeError(f"{client.name} has failed; see {client.log}")
                while not client.said.get("done"):
                    await asyncio.sleep(LOOK_SECONDS / 10)
        return {client.name: client.said["checksums"] for client in self.clients}


@asynccontextmanager
async def running_clients(
    settings: Settings, cluster: Cluster, journals: Path
) -> AsyncIterator[list[Client]]:
    clients: list[Client] = []
    followers: list[asyncio.Task[None]] = []
    try:
        for index in range(CLIENTS):
            name = f"client-{index + 1}"
            log = cluster.logs / f"{name}.log"
            count = len(range(index, settings.transactions, CLIENTS))
            with log.open("wb") as errors:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.smoke.client"),
                    *("--cluster", cluster.coordinator, "--name", name),
                    *("--first", str(index + 1), "--step", str(CLIENTS), "--count", str(count)),
                    *("--partitions", str(PARTITIONS), "--seed", settings.seed),
                    *("--journals", str(journals)),
                    *(["--forgetful"] if settings.forgetful and not index else []),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            clients.append(Client(name, process, log))
            followers.append(asyncio.create_task(clients[-1].follow()))
        yield clients
    finally:
        for client in clients:
            if client.process.returncode is None:
                with suppress(ProcessLookupError):
                    client.process.kill()
                await client.process.wait()
        await asyncio.gather(*followers, return_exceptions=True)


async def run_waltz(*arguments: str) -> Any:
    """Run a `waltz` command and return the JSON it prints. Raises RuntimeError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "waltz.cli.main", *arguments, "--json"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    if not said:
        raise RuntimeError(f"waltz {' '.join(arguments)}: {errors.decode()}")
    return json.loads(said)


async def settle(cluster: Cluster) -> None:
    """Return once every replica takes part in its partition's session. Raises TimeoutError."""
    async with asyncio.timeout(SETTLE_SECONDS):
        while True:
            status = await run_waltz("status", "--cluster", cluster.coordinator)
            partitions = status["partitions"]
            if all(each["replicas_current"] == len(cluster.storages) for each in partitions):
                return
            await asyncio.sleep(LOOK_SECONDS)


async def compare_replicas(cluster: Cluster) -> list[str]:
    """Compare what the stopped storage nodes have on disk."""
    found = await asyncio.gather(
        *(run_waltz("disk", "checksum", str(cluster.directory / name)) for name in cluster.storages)
    )
    digests = {
        name: {
            each["partition_id"]: f"up to {each['last_transaction_id']}: {each['sha256']}"
            for each in partitions
        }
        for name, partitions in zip(cluster.storages, found, strict=True)
    }
    first, *others = digests
    return [
        f"replicas: partition {partition} of {other} has {digests[other].get(partition)}, of"
        f" {first} {digest}"
        for other in others
        for partition, digest in digests[first].items()
        if digests[other].get(partition) != digest
    ]


def open_reader(coordinator: str) -> waltz.LogReader:
    return waltz.open_reader(coordinator, timeout_seconds=READ_SECONDS_MAX)


def read_marks(coordinator: str) -> list[int]:
    with open_reader(coordinator) as log:
        return [log.high_water_mark(number) for number in range(log.partition_count)]


def read_log(coordinator: str, journals: Path) -> None:
    """Write down all that a reader finds."""
    with open_reader(coordinator) as log, ThreadPoolExecutor(READERS) as pool:
        for _ in pool.map(partial(read_partition, log, journals), range(log.partition_count)):
            pass


def read_partition(log: waltz.LogReader, journals: Path, partition: int) -> None:
    with fed_path(journals, LOG, partition).open("wb") as file:
        for run in log.read(partition, 0, log.high_water_mark(partition) + 1):
            file.write(
                encode_fed(
                    Fed(
                        TransactionId(run.first_transaction_id + index),
                        request_id_from(run.request_ids[16 * index : 16 * index + 16]),
                        int(run.headers[index]),
                        data,
                    )
                    for index, data in enumerate(run.data)
                )
            )


@asynccontextmanager
async def telling_what_stands(cluster: Cluster, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Say which partitions take no appends, and why, if the block fails."""
    try:
        yield
    except Exception:
        status = await run_waltz("status", "--cluster", cluster.coordinator)
        for each in status["partitions"]:
            if each["problem"] is not None or each["high_water_mark"] is None:
                say(f"partition {each['partition_id']}: {each}")
        raise


async def smoke(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Do a whole run and return its result. Raises RuntimeError: it did not get to its end."""
    journals = settings.directory / "journals"
    journals.mkdir()
    async with (
        running_cluster(
            settings.directory / "cluster",
            servers=SERVERS,
            partitions=PARTITIONS,
            session_milliseconds=SESSION_MILLISECONDS,
            has_links=True,
        ) as cluster,
        telling_what_stands(cluster, say),
    ):
        async with running_clients(settings, cluster, journals) as clients:
            run = Run(settings, cluster, clients, say)
            watching = asyncio.create_task(run.watch())
            try:
                run.picture("the load begins")
                await run.load()
                load_seconds = run.seconds
                memory = {name: node.note_memory() for name, node in cluster.nodes.items()}
                checksums = await run.finish()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        violations = run.violations
        say("waiting until all replicas take part again")
        await settle(cluster)
        say(
            "stopping everything in order, comparing the replicas' files, starting everything again"
        )
        for name, status in (await cluster.end_nodes()).items():
            if status:
                violations.append(f"{name} was told to end, and ended with {status}")
        violations += await compare_replicas(cluster)
        await cluster.start_nodes()
        say("reading the log")
        await asyncio.to_thread(read_log, cluster.coordinator, journals)
        violations += cluster.complaints()
        peaks = {name: node.memory_peak_bytes for name, node in cluster.nodes.items()}
    violations += [
        f"memory: {name} has had {peak} bytes, more than {MEMORY_BYTES_MAX}"
        for name, peak in peaks.items()
        if peak > MEMORY_BYTES_MAX
    ]
    say("judging")
    judgement = await asyncio.to_thread(judge, journals, PARTITIONS, checksums)
    judgement.violations[:0] = violations
    return result_of(settings, run, judgement, load_seconds, memory, peaks)


def result_of(
    settings: Settings,
    run: Run,
    judgement: Judgement,
    load_seconds: float,
    memory: dict[str, int],
    peaks: dict[str, int],
) -> dict[str, Any]:
    committed = run.total("committed")
    return {
        "seed": settings.seed,
        "transactions_wanted": settings.transactions,
        "submitted": run.total("submitted"),
        "committed": committed,
        "in_the_log": judgement.transactions,
        "verdicts": dict(judgement.verdicts),
        "attempts": judgement.attempts,
        "refusals": run.total("refusals"),
        "seconds": round(load_seconds, 1),
        "commits_per_second": round(committed / load_seconds),
        "faults": dict(sorted(run.faults.items())),
        "fault_count": run.faults.total(),
        "memory_bytes": memory,
        "memory_bytes_peak": peaks,
        "client_memory_bytes_peak": run.client_memory_peak_bytes,
        "checksums": [f"{judgement.checksums[each]:08x}" for each in sorted(judgement.checksums)],
        "violations": judgement.violations,
    }
