"""Kills attempts of a sink's task at random moments, or stops them and lets them go on much later.

    python -c 'from tests.spark.sink_kills import main; main()' --kills 500 --seed 7

Batch after batch is written by two tasks, each by as many attempts as it takes: processes that get
SIGKILL, or SIGSTOP and, once their successor has ended or is at work, SIGCONT: zombies. Every other
batch is a write without a name, whose notes are gone when its zombies wake up. Servers and storage
nodes are killed meanwhile. In the end the log must have every row once. Without Spark, whose part
here is to start attempts: what it does to a whole pipeline is in `kills.py`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

import waltz
from tests.clusters import RunningCluster, running_cluster
from tests.live.journal import read_all
from waltz.errors import ConfigurationError
from waltz.spark.sink import SinkAccess, end_once, write_rows
from waltz.spark.sink_progress import TaskIdentity

TASKS = 2
ROWS = 300
ATTEMPT_SECONDS_MAX = 600.0
LOCKS = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))
Row = tuple[int, int, bytes]


def rows_of(batch: int, task: int) -> list[Row]:
    """The rows of a task: the same each time; some are equal."""
    drawn = random.Random(1000 * batch + task)
    return [
        (drawn.randrange(2), task, b"%d of %d" % (drawn.randrange(4 * ROWS), batch))
        for _ in range(ROWS)
    ]


def identity_of(batch: int, task: int) -> TaskIdentity:
    if batch % 2:
        return TaskIdentity(f"once-{batch}", 0, task, "run", is_once=True)
    return TaskIdentity("killed", batch, task, "run")


def attempt(coordinator: str, batch: int, task: int, number: int) -> None:
    """One attempt; the order of the rows is its own, and which are written row by row: those with
    locks. Exits with 3 if the batch is over."""
    rows = rows_of(batch, task)
    drawn = random.Random(number)
    drawn.shuffle(rows)

    def batches() -> Iterator[Any]:
        for start in range(0, len(rows), 50):
            partitions, headers, data = zip(*rows[start : start + 50], strict=True)
            columns = {
                "partition": pa.array(partitions, pa.int32()),
                "header": pa.array(headers, pa.int32()),
                "data": pa.array(data, pa.binary()),
            }
            if drawn.random() < 0.3:
                locks = [[{"name": "row", "id": number}]] * len(data)
                columns["append_locks"] = pa.array(locks, LOCKS)
            yield pa.RecordBatch.from_pydict(columns)
            time.sleep(0.005)

    try:
        write_rows(SinkAccess(coordinator), identity_of(batch, task), batches())
    except ConfigurationError as error:
        if not str(error).startswith("WALTZ-2011 "):
            raise
        raise SystemExit(3) from None


class Run:
    """One cluster and the attempts on it."""

    def __init__(self, cluster: RunningCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["tests.spark.sink_kills"])
        self._zombies: list[BaseProcess] = []
        self._attempts = 0
        self._batches = 0
        self.kills: Counter[str] = Counter()

    def kill(self, count: int) -> None:
        """Write batches until `count` more parts have been hit. Raises AssertionError."""
        wanted = sum(self.kills.values()) + count
        while sum(self.kills.values()) < wanted:
            access, identity = SinkAccess(self._cluster.coordinator), identity_of(self._batches, 0)
            if identity.is_once:
                access.bound(once=identity)
            for task in range(TASKS):
                self._write(self._batches, task)
            if identity.is_once:
                end_once(access, identity)
            self._batches += 1
        for zombie in self._zombies:
            self._wake(zombie)
            assert self._ended(zombie) in (0, 3), "a zombie has failed"
        self._zombies.clear()
        self._judge()

    def _write(self, batch: int, task: int) -> None:
        """Start attempts until one has ended."""
        while True:
            process = self._start(batch, task)
            fate = self._random.choice(("killed", "killed", "stopped", "left alone", "node"))
            process.join(self._random.uniform(0.0, 0.4))
            if process.exitcode is None and fate == "killed":
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                self.kills[fate] += 1
            elif process.exitcode is None and fate == "stopped":
                assert process.pid is not None
                os.kill(process.pid, signal.SIGSTOP)
                self._zombies.append(process)
                self.kills[fate] += 1
            else:
                if fate == "node":
                    self._kill_node()
                if self._zombies and self._random.random() < 0.5:
                    self._wake(self._random.choice(self._zombies))
                code = self._ended(process)
                assert code == 0, f"an attempt ended with {code}"
                return

    def _start(self, batch: int, task: int) -> BaseProcess:
        self._attempts += 1
        arguments = (self._cluster.coordinator, batch, task, self._attempts)
        process = self._processes.Process(target=attempt, args=arguments)
        process.start()
        return process

    def _wake(self, zombie: BaseProcess) -> None:
        if zombie.exitcode is None and zombie.pid is not None:
            os.kill(zombie.pid, signal.SIGCONT)

    def _ended(self, process: BaseProcess) -> int | None:
        process.join(ATTEMPT_SECONDS_MAX)
        return process.exitcode

    def _kill_node(self) -> None:
        name = self._random.choice(self._cluster.names("server", "storage"))
        self._cluster.kill_and_await(name)
        self.kills[name.partition("-")[0]] += 1

    def _judge(self) -> None:
        wanted = Counter(
            row
            for batch in range(self._batches)
            for task in range(TASKS)
            for row in rows_of(batch, task)
        )
        found: Counter[Row] = Counter()
        with waltz.open_reader(self._cluster.coordinator) as log:
            for partition in range(2):
                found.update((partition, r.header, r.data) for r in read_all(log, partition))
        assert found - wanted == Counter(), "rows that are there too often"
        assert wanted - found == Counter(), "rows that are missing"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill attempts of a sink, and count its rows.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with (
        TemporaryDirectory(prefix="waltz-kills-") as directory,
        running_cluster(Path(directory) / "data", "--partitions", "2") as cluster,
    ):
        run = Run(cluster, chosen.seed)
        began = time.monotonic()
        while (done := sum(run.kills.values())) < chosen.kills:
            run.kill(min(20, chosen.kills - done))
            seconds = time.monotonic() - began
            print(f"seed {chosen.seed}: {dict(run.kills)} in {seconds:.0f} s, equal", flush=True)
