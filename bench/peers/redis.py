"""Redis, one node that syncs its log before each answer; driven by its own redis-benchmark."""

from __future__ import annotations

import csv
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.peer import Load, Peer, free_ports, program, succeeds, wait_for

TRIAL_CALLS = 500
"""Calls from which the number of calls for the wanted time is estimated."""


class Redis(Peer):
    name = "Redis, one node, appendfsync always"
    durability = "in the log of one node, synced; no replica"
    driver = "redis-benchmark (C)"
    batching = "100 XADD in a pipeline"

    def __init__(self) -> None:
        super().__init__()
        self._port = 0

    @contextmanager
    def running(self, directory: Path) -> Iterator[None]:
        server = program("redis-server", "redis-server")
        client = program("redis-cli", "redis-tools")
        (self._port,) = free_ports(1)
        arguments = [
            *(server, "--port", str(self._port), "--dir", str(directory), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always"),
        ]
        log = directory / "log"
        with self.process(arguments, log):
            wait_for(lambda: succeeds(client, "-p", str(self._port), "ping"), self.name, log)
            yield

    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        trial = self._run(load, TRIAL_CALLS * load.batch)
        return self._run(load, max(TRIAL_CALLS * load.batch, int(trial[0] / trial[1] * seconds)))

    def _run(self, load: Load, count: int) -> tuple[int, float, float, float]:
        start = time.perf_counter()
        done = subprocess.run(
            [
                *(program("redis-benchmark", "redis-tools"), "-p", str(self._port), "--csv"),
                *("-c", str(load.outstanding), "-P", str(load.batch), "-n", str(count)),
                *("XADD", "log", "*", "data", load.data.decode()),
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        taken = time.perf_counter() - start
        (row,) = csv.DictReader(done.stdout.splitlines())
        return (
            count,
            min(taken, count / float(row["rps"])),
            float(row["p50_latency_ms"]) / 1e3,
            float(row["p99_latency_ms"]) / 1e3,
        )
