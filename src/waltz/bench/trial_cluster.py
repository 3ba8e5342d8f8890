"""A cluster of processes for a measurement: `waltz up` in a directory of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from waltz.bench import commit_times, slow_disk
from waltz.bench.hook import write_hook
from waltz.bench.workload import Workload
from waltz.errors import ConfigurationError
from waltz.types import TlsSettings

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 60.0
POLL_SECONDS: Final = 0.02
SLOW_STORAGE: Final = "storage-3"


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """A running cluster; `pids`: the role of each of its processes, none if unknown. `commits`: the
    file in which its server notes commits (`commit_times.py`), None if it does not."""

    cluster: str
    tls: TlsSettings | None
    pids: Mapping[int, str]
    commits: Path | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """The requirements of a workload on a cluster that is started for it."""

    partitions: int
    tls: bool
    slow_sync_seconds: float
    is_fresh: bool
    """Whether no other workload may have used the cluster."""
    notes_commits: bool = False


def shape_of(workload: Workload) -> Shape:
    return Shape(
        workload.partitions,
        workload.tls,
        workload.slow_sync_seconds,
        is_fresh=workload.verb == "idle",
        # A late consumer waits on itself; commit times of what it missed mean nothing.
        notes_commits=workload.consumers > 0 and not workload.consumers_after_seconds,
    )


@contextmanager
def trial_cluster(directory: Path, shape: Shape) -> Iterator[BenchTarget]:
    """Run a cluster in `directory`, which must not exist, until the block ends.

    Raises ConfigurationError with the output of `waltz up`, if it does not start.
    """
    installed = {}
    if shape.slow_sync_seconds:
        installed[slow_disk.__name__] = slow_disk.told(SLOW_STORAGE, shape.slow_sync_seconds)
    commits = None
    if shape.notes_commits:
        commits = directory.with_name(f"{directory.name}-commits")
        installed[commit_times.__name__] = str(commits.absolute())
    environment = dict(os.environ)
    if installed:
        environment = write_hook(directory.with_name(f"{directory.name}-hook"), installed)
    said = directory.with_name(f"{directory.name}.log")
    with said.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [
                *(sys.executable, "-m", "waltz.cli.main", "up", "--directory", str(directory)),
                *("--port", "0", "--partitions", str(shape.partitions)),
                *("--no-console", "--end-with-stdin"),
                *(["--tls"] if shape.tls else []),
            ],
            stdin=subprocess.PIPE,  # ends with this process, in whatever way it ends
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us; we stop it in order
        )
    try:
        state = _wait_until_ready(process, directory, said)
        pids = {int(each["pid"]): str(each["role"]) for each in state["processes"]}
        tls = _client_tls(directory) if shape.tls else None
        yield BenchTarget(str(state["coordinator"]), tls, pids, commits)
    finally:
        _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], directory: Path, said: Path
) -> dict[str, Any]:
    deadline = time.monotonic() + START_SECONDS_MAX
    file = directory / "cluster.json"
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if file.exists():
            state: dict[str, Any] = json.loads(file.read_text())
            if state["ready"]:
                return state
        time.sleep(POLL_SECONDS)
    words = said.read_text(errors="replace").strip()
    raise ConfigurationError(f"no cluster could be started in {directory}: {words or 'no word'}")


def _client_tls(directory: Path) -> TlsSettings:
    tls = directory / "tls"
    return TlsSettings(certificate=str(tls / "client.pem"), authorities=str(tls / "ca.pem"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()  # its children end with it: their standard input does
        process.wait()
    assert process.stdin is not None
    process.stdin.close()
