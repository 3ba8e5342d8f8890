"""One smoke run from its start to its judgement.

Owns what happens in which order: load under faults, then quiet; everything stops, the replicas are
compared on disk, everything starts again, and the log is read and judged.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.live.ending import end_and_judge, telling_what_stands
from tests.live.faults import Act, Deed
from tests.live.judge import Judgement
from tests.live.launch import ZooKeeperCluster, running
from tests.live.writers import Writers
from tests.smoke.faults import ZOOKEEPER, Fault, Harm, schedule

SERVERS = 3
CLIENTS = ("client-1", "client-2", "client-3", "client-4")
PARTITIONS = 16
SESSION_MILLISECONDS = 4000

LOOK_SECONDS = 0.25
PICTURE_SECONDS = 10.0
"""Between two lines of the picture while nothing changes."""

MEMORY_BYTES_MAX = 512 * 1024**2
"""More than this no server and no storage node may have had at any moment."""


@dataclass(frozen=True, slots=True)
class Settings:
    transactions: int
    seed: str
    seconds: float
    """After these seconds nothing more is submitted."""
    directory: Path
    faults: bool = True
    forgetful: bool = False
    """Whether the first client does not apply one transaction: the run has to fail then."""


class Run:
    """A run under way: its picture, its faults, its load."""

    def __init__(
        self,
        settings: Settings,
        cluster: ZooKeeperCluster,
        writers: Writers,
        say: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.writers = writers
        self.harmed: dict[str, Harm] = {}
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self._say = say
        self._began = time.monotonic()
        self._pictured = (self._began, 0)
        self._owners = cluster.owners()
        self._errands: set[asyncio.Task[None]] = set()

    # The picture

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def picture(self, what: str) -> None:
        """Say one line: what has changed, who has which part, how fast it goes."""
        at, committed_then = self._pictured
        now, committed = time.monotonic(), self.writers.total("committed")
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
        pending = self.writers.total("submitted") - self.writers.total("ended")
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
            for process in self.cluster.processes.values():
                process.note_memory()
            for node in self.cluster.nodes.values():
                if not node.runs and node.name not in self.harmed:
                    self.violations.append(f"{node.name} ended by itself: {node.status}")
                    self.harmed[node.name] = Harm.ENDED

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
            node.stop()
            await asyncio.sleep(fault.seconds)
            node.resume()
            return
        if fault.harm is Harm.KILLED:
            await node.kill()
        elif (status := await node.end()) != 0:
            self.violations.append(f"{fault.target} was told to end, and ended with {status}")
        await asyncio.sleep(fault.seconds)
        await node.start_in_the_end()

    async def _harm_link(self, fault: Fault) -> None:
        deed = Deed.CUT if fault.harm is Harm.CUT else Deed.DELAY
        await self.cluster.links[fault.target].perform(Act(deed, seconds=fault.seconds))

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
        while self.writers.are_submitting:
            await asyncio.sleep(LOOK_SECONDS)
            self.writers.check()
            if self.violations:
                raise RuntimeError("; ".join(self.violations))
            if breaking is not None and breaking.done():
                await breaking
            if not told and self.seconds > self.settings.seconds:
                told = True
                self.picture("time is up: nothing more is submitted")
                self.writers.stop()
        if breaking is not None:
            breaking.cancel()
            await asyncio.gather(breaking, return_exceptions=True)
        await self.heal()
        self.picture("everything is submitted, nothing breaks any more")
        await self.writers.settle()
        if self.violations:
            raise RuntimeError("; ".join(self.violations))
        self.picture("every context has ended")


async def smoke(settings: Settings, say: Callable[[str], None]) -> dict[str, Any]:
    """Do a whole run and return its result. Raises RuntimeError: it did not get to its end."""
    cluster = ZooKeeperCluster(
        settings.directory / "cluster",
        servers=SERVERS,
        partitions=PARTITIONS,
        session_milliseconds=SESSION_MILLISECONDS,
        has_links=True,
    )
    writers = Writers(
        cluster,
        CLIENTS,
        manner="fast",
        contexts=settings.transactions,
        partitions=PARTITIONS,
        seed=settings.seed,
        forgetful=settings.forgetful,
    )
    async with running(cluster), telling_what_stands(cluster, say):
        await writers.start()
        run = Run(settings, cluster, writers, say)
        watching = asyncio.create_task(run.watch())
        try:
            run.picture("the load begins")
            await run.load()
            load_seconds = run.seconds
            memory = {name: node.note_memory() for name, node in cluster.nodes.items()}
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        judgement = await end_and_judge(cluster, writers, run.violations, say)
    peaks = {name: process.memory_peak_bytes for name, process in cluster.processes.items()}
    judgement.violations += [
        f"memory: {name} has had {peak} bytes, more than {MEMORY_BYTES_MAX}"
        for name, peak in peaks.items()
        if name in cluster.nodes and peak > MEMORY_BYTES_MAX
    ]
    return result_of(settings, run, judgement, load_seconds, memory, peaks)


def result_of(
    settings: Settings,
    run: Run,
    judgement: Judgement,
    load_seconds: float,
    memory: dict[str, int],
    peaks: dict[str, int],
) -> dict[str, Any]:
    committed = run.writers.total("committed")
    return {
        "seed": settings.seed,
        "transactions_wanted": settings.transactions,
        "submitted": run.writers.total("submitted"),
        "committed": committed,
        "in_the_log": judgement.transactions,
        "verdicts": dict(judgement.verdicts),
        "attempts": judgement.attempts,
        "refusals": run.writers.total("refusals"),
        "seconds": round(load_seconds, 1),
        "commits_per_second": round(committed / load_seconds),
        "faults": dict(sorted(run.faults.items())),
        "fault_count": run.faults.total(),
        "memory_bytes": memory,
        "memory_bytes_peak": {name: peaks[name] for name in memory},
        "client_memory_bytes_peak": max(peaks[name] for name in run.cluster.clients),
        "checksums": [f"{judgement.checksums[each]:08x}" for each in sorted(judgement.checksums)],
        "violations": judgement.violations,
    }
