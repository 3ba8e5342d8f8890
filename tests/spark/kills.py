"""Kills the parts of a streaming pipeline at random moments and compares what came of it.

    python -m tests.spark.kills --kills 100 --seed 7

Each round appends to the log, kills one part with SIGKILL while it works (the driver, its Java
process, a Python worker of an executor, a server, a storage node), lets everything start again, and
waits until the pipeline has caught up. Then the files must be the log to the last row, and the
copies in the log the rows they were made of: none missing, none twice.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.parquet as pq

import waltz
from tests.clusters import ROOT, RunningCluster, running_cluster
from tests.live.journal import read_all
from tests.spark.killed_driver import COPY
from waltz.client.transaction import PlainAppend

CATCH_UP_SECONDS_MAX = 900.0
VICTIMS = ("driver", "java", "worker", "server", "storage")
Row = tuple[int, int, bytes]
KeptRow = tuple[int, int, int, bytes]


class Pipeline:
    """The driver as a process; started again whenever it has ended."""

    def __init__(
        self,
        coordinator: str,
        directory: Path,
        program: str = "tests.spark.killed_driver",
        *arguments: str,
    ) -> None:
        self._command = [
            *(sys.executable, "-m", program),
            *(coordinator, str(directory)),
            *arguments,
        ]
        self._log = (directory / "driver.log").open("ab")
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.keep_running()

    def keep_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        # A second driver on the same checkpoint ends; the Java process outlives a killed one.
        for each in self._java:
            _wait_until_gone(each)
        self.starts += 1
        self._process = subprocess.Popen(
            self._command, stdout=self._log, stderr=self._log, cwd=ROOT
        )

    _java: Sequence[int] = ()

    def parts(self, kind: str) -> list[int]:
        """Return the processes of a kind that there are now."""
        assert self._process is not None
        driver = self._process.pid
        self._java = [each for each in _children(driver) if "java" in _command_of(each)]
        if kind == "driver":
            return [driver]
        if kind == "java":
            return self._java
        daemons = [each for java in self._java for each in _children(java)]
        return [worker for daemon in daemons for worker in _children(daemon)]

    def stop(self) -> None:
        if self._process is not None:
            self.parts("java")
            self._process.kill()
            self._process.wait()
            self._process = None
        for each in self._java:
            _wait_until_gone(each)
        self._log.close()


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def _command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""


def _wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + 60
    while "java" in _command_of(process):
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


class Run:
    """One cluster, one pipeline, many kills."""

    def __init__(self, cluster: RunningCluster, directory: Path, seed: int) -> None:
        self._cluster = cluster
        self._directory = directory
        self._random = random.Random(seed)
        self._number = 0
        self.pipeline = Pipeline(cluster.coordinator, directory)
        self.kills: Counter[str] = Counter()

    def append(self, client: waltz.WaltzClient, count: int) -> None:
        for _ in range(count):
            self._number += 1
            data = b"%d" % (self._number // 2)  # some rows have the same content
            partition = self._random.randrange(2)
            client.submit(PlainAppend(partition, data, header=self._number // 2 % 5))

    def kill(self, kind: str) -> bool:
        """Kill a part of that kind; False if there is none now."""
        if kind in ("server", "storage"):
            self._cluster.kill_and_await(self._random.choice(self._cluster.names(kind)))
        else:
            found = self.pipeline.parts(kind)
            if not found:
                return False
            try:
                os.kill(self._random.choice(found), signal.SIGKILL)
            except ProcessLookupError:
                return False
        self.kills[kind] += 1
        return True

    def round(self, client: waltz.WaltzClient, kind: str) -> None:
        """Append, kill in the middle of it, and judge once all is quiet. Raises AssertionError."""
        self.append(client, self._random.randrange(50, 400))
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        if kind in ("driver", "java", "worker"):
            while not self.pipeline.parts("worker"):  # until it works at all
                assert time.monotonic() < deadline, f"no worker; see {self._directory}"
                self.pipeline.keep_running()
                time.sleep(0.1)
        time.sleep(self._random.uniform(0.0, 1.0))
        while not self.kill(kind):
            assert time.monotonic() < deadline, f"no {kind} to kill"
            self.pipeline.keep_running()
            time.sleep(0.05)
        self.append(client, self._random.randrange(50))
        client.flush()
        self.judge()

    def judge(self) -> None:
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while True:
            self.pipeline.keep_running()
            logged, copies = self._log_rows()
            kept = self._kept_rows()
            wanted = Counter((p + 2, header, COPY.encode() + data) for p, _, header, data in logged)
            doubles = copies - wanted
            assert not doubles, f"copies that nobody asked for: {list(doubles.items())[:5]}"
            if copies == wanted and kept == Counter(logged):
                return
            assert time.monotonic() < deadline, (
                f"{sum(copies.values())} copies and {sum(kept.values())} rows of {len(logged)};"
                f" the driver's log is in {self._directory}"
            )
            time.sleep(0.2)

    def _log_rows(self) -> tuple[list[KeptRow], Counter[Row]]:
        logged: list[KeptRow] = []
        copies: Counter[Row] = Counter()
        with waltz.open_reader(self._cluster.coordinator) as log:
            # The copies first: what is copied later is no double.
            for partition in (2, 3):
                copies.update((partition, r.header, r.data) for r in read_all(log, partition))
            for partition in (0, 1):
                logged += [
                    (partition, int(r.transaction_id), r.header, r.data)
                    for r in read_all(log, partition)
                ]
        return logged, copies

    def _kept_rows(self) -> Counter[KeptRow]:
        kept: Counter[KeptRow] = Counter()
        for done in sorted((self._directory / "rows").glob("batch=*/_SUCCESS")):
            for path in sorted(done.parent.glob("part-*.parquet")):
                try:
                    table = pq.read_table(path, partitioning=None)
                except OSError:
                    return Counter()  # it is being written again
                names = ("partition", "transaction_id", "header", "data")
                kept.update(zip(*(table.column(name).to_pylist() for name in names), strict=True))
        return kept


@contextmanager
def started(directory: Path, seed: int) -> Iterator[tuple[Run, waltz.WaltzClient]]:
    with running_cluster(directory / "data", "--partitions", "4") as cluster:
        run = Run(cluster, directory, seed)
        try:
            with waltz.open_client(
                cluster.coordinator,
                waltz.NoCallbacks(),
                partitions=(0, 1),
                max_concurrent_transactions=500,
                mount_seconds_max=120.0,
            ) as client:
                yield run, client
        finally:
            run.pipeline.stop()


def kill_in_rounds(
    play: Callable[[str], None], victims: Sequence[str], kills: int, seed: int
) -> None:
    """Call `play` with a victim that `seed` draws, `kills` times, and print the seconds of each."""
    order = random.Random(seed)
    for number in range(1, kills + 1):
        began = time.monotonic()
        victim = order.choice(victims)
        play(victim)
        print(f"{number}: {victim} {time.monotonic() - began:.1f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the parts of a pipeline, and compare.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with (
        TemporaryDirectory(prefix="waltz-kills-") as directory,
        started(Path(directory), chosen.seed) as (run, client),
    ):
        kill_in_rounds(partial(run.round, client), VICTIMS, chosen.kills, chosen.seed)
        print(f"seed {chosen.seed}: {dict(run.kills)}, {run.pipeline.starts} starts, all equal")


if __name__ == "__main__":
    main()
