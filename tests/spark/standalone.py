"""A standalone cluster of Spark: a master and workers, each a process of its own on this machine.

A worker and what it starts (executors, their Python workers) are one session of the operating
system, so that a test can stop, continue or kill them together, as a machine that is lost.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.clusters import wait_until
from tests.spark.test_front_doors import environment, java_home

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
MASTER = re.compile(r"Starting Spark master at (spark://\S+)")


@dataclass(frozen=True)
class Worker:
    """A worker's process, which leads its session."""

    process: subprocess.Popen[bytes]

    def processes(self) -> list[int]:
        """Return the worker and all that it has started, as far as they live."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            number = int(path.parent.name)
            if int(session) == self.process.pid and state != "Z":
                found.append(number)
        return found

    def executors(self) -> list[str]:
        """Return the numbers that the driver has for this worker's executors."""
        found = []
        for each in self.processes():
            try:
                words = Path(f"/proc/{each}/cmdline").read_text().split("\0")
            except OSError:
                continue
            if "--executor-id" in words:
                found.append(words[words.index("--executor-id") + 1])
        return found

    def signal(self, number: int) -> None:
        """Send the signal to the worker and all that it has started."""
        for each in self.processes():
            try:
                os.kill(each, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        """Kill all of it, as often as something is left: a process may just have started one."""
        while self.processes():
            self.signal(signal.SIGKILL)
        self.process.wait()


class Standalone:
    """A master that runs, and the workers that were started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.workers: list[Worker] = []
        log = directory / "master.log"
        with log.open("wb") as file:
            self._master = self._started("master.Master", "--port", "0", log=file.fileno())
        wait_until(
            lambda: self._master.poll() is not None or MASTER.search(log.read_text()),
            "the master does not say where it is",
        )
        address = MASTER.search(log.read_text())
        assert address is not None, log.read_text()[-2000:]
        self.url = address[1]

    def start_worker(self, cores: int = 1) -> Worker:
        """Start a worker, and return once the master knows it."""
        number = len(self.workers)
        place = self._directory / f"worker-{number}"
        place.mkdir()
        log = self._directory / f"worker-{number}.log"
        with log.open("wb") as file:
            process = self._started(
                *("worker.Worker", "--cores", str(cores), "--memory", "1g"),
                *("--work-dir", str(place / "work"), self.url),
                log=file.fileno(),
                SPARK_LOCAL_DIRS=str(place),
            )
        worker = Worker(process)
        self.workers.append(worker)
        wait_until(
            lambda: process.poll() is not None or "Successfully registered" in log.read_text(),
            "the worker does not find the master",
        )
        assert process.poll() is None, log.read_text()[-2000:]
        return worker

    def _started(
        self, kind: str, *arguments: str, log: int, **more: str
    ) -> subprocess.Popen[bytes]:
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        return subprocess.Popen(
            (
                str(Path(spec.origin).parent / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{kind}",
                *("--host", "127.0.0.1", "--webui-port", "0", *arguments),
            ),
            env=standalone_environment(SPARK_DAEMON_JAVA_OPTS=JAVA_OPTIONS, **more),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # A test that is killed leaves nothing: executors end with their worker.
            preexec_fn=_end_with_parent,
        )

    def stop(self) -> None:
        for each in self.workers:
            each.kill()
        self._master.kill()
        self._master.wait()


def _end_with_parent() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def standalone_environment(**more: str) -> dict[str, str]:
    """Return the environment of every process of Spark here, also of the driver."""
    return environment(
        JAVA_HOME=java_home(),
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
        **more,
    )


@contextmanager
def standalone(directory: Path, workers: int) -> Iterator[Standalone]:
    directory.mkdir()
    cluster = Standalone(directory)
    try:
        for _ in range(workers):
            cluster.start_worker()
        yield cluster
    finally:
        cluster.stop()
