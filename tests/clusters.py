"""Real clusters for tests: `waltz up` as a process, in a directory of its own, on free ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from waltz.cli.commands import waltz
from waltz.errors import WaltzError

ROOT = Path(__file__).parent.parent
START_SECONDS_MAX = 60.0


@dataclass
class RunningCluster:
    """A started `waltz up`; `directory` holds its files and logs."""

    process: subprocess.Popen[str]
    directory: Path

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.directory / "cluster.json").read_text())
        return state

    @property
    def coordinator(self) -> str:
        return str(self.state["coordinator"])

    def pid(self, name: str) -> int:
        return next(int(p["pid"]) for p in self.state["processes"] if p["name"] == name)

    def restarts(self, name: str) -> int:
        return next(int(p["restarts"]) for p in self.state["processes"] if p["name"] == name)

    def names(self, *kinds: str) -> list[str]:
        """Return the names of the processes that are `server` or `storage`, say."""
        names = [str(process["name"]) for process in self.state["processes"]]
        return [name for name in names if name.partition("-")[0] in kinds]

    def kill(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGKILL)

    def kill_and_await(self, name: str) -> None:
        """Kill the process, and return once it was started again."""
        before = self.restarts(name)
        self.kill(name)
        self.wait_until_restarted(name, before + 1)

    def wait_until_restarted(self, name: str, restarts: int = 1) -> None:
        def is_back() -> bool:  # while it is away, it is not on the list
            return any(
                p["name"] == name and p["restarts"] >= restarts for p in self.state["processes"]
            )

        wait_until(is_back, f"{name} was not started again")

    def stop(self) -> str:
        """Stop it as Ctrl-C does and return what it had said. Raises TimeoutExpired."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=60)
        return said


def wait_until(condition: Any, otherwise: str, seconds_max: float = START_SECONDS_MAX) -> None:
    """Return once `condition()` holds; fail with `otherwise` after a minute, or `seconds_max`."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def run_waltz(
    *arguments: str, seconds_max: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the `waltz` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "waltz.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
        **options,
    )


def wait_until_healthy(*arguments: str, **options: Any) -> None:
    """Return once `waltz status` finds the cluster healthy: a replica may take a moment for that
    after a start, or after its coordinator was away."""
    said = ""

    def is_healthy() -> bool:
        nonlocal said
        done = run_waltz("status", *arguments, "--json", **options)
        said = f"{done.stdout}{done.stderr}"
        return done.stdout != "" and bool(json.loads(done.stdout)["healthy"])

    try:
        wait_until(is_healthy, "the cluster is not healthy")
    except AssertionError as error:
        raise AssertionError(f"{error}:\n{said}") from None


@dataclass(frozen=True)
class Said:
    """The exit code of a tool, and its output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_tool(*arguments: str | Path, stdin: str | None = None) -> Said:
    """Run the command in this process, to its end, with the codes of `waltz.cli.main.main`."""
    result = CliRunner().invoke(waltz, list(map(str, arguments)), input=stdin)
    error = result.exception
    if isinstance(error, WaltzError):
        return Said(1, result.stdout, result.stderr + str(error))
    if error is not None and not isinstance(error, SystemExit):
        raise error
    return Said(result.exit_code, result.stdout, result.stderr)


def start_node(
    *arguments: str, python: str = sys.executable, **options: Any
) -> subprocess.Popen[str]:
    """Start a `waltz` command that runs until it is stopped, and that ends with this process.

    Its standard input ends when this process does, by whatever signal.
    """
    return subprocess.Popen(
        [python, "-m", "waltz.cli.main", *arguments, "--end-with-stdin"],
        stdin=subprocess.PIPE,
        text=True,
        **options,
    )


def start_cluster(directory: Path, *arguments: str, python: str = sys.executable) -> RunningCluster:
    """Start `waltz up` of the release that `python` has on `directory`; return once it is ready."""
    process = start_node(
        *("up", "--directory", str(directory), "--port", "0", "--no-console", *arguments),
        python=python,
        stderr=subprocess.PIPE,
    )
    cluster = RunningCluster(process, directory)

    def is_ready() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"waltz up ended: {process.communicate()[1]}")
        return (directory / "cluster.json").exists() and bool(cluster.state["ready"])

    wait_until(is_ready, "waltz up is not ready")
    return cluster


@contextmanager
def running_cluster(directory: Path, *arguments: str) -> Iterator[RunningCluster]:
    cluster = start_cluster(directory, *arguments)
    try:
        yield cluster
    finally:
        cluster.stop()


def partition_at(coordinator: str, number: int) -> tuple[str, bool]:
    """The server of the partition, and whether it takes appends."""
    found = run_tool("status", "--cluster", coordinator, "--json").json["partitions"][number]
    return found["server"], found["writable"]


@contextmanager
def running_server(config: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run `waltz server` until the block ends and stop it; its log lies next to its file."""
    with (config.parent / "log").open("a") as log:
        node = start_node("server", str(config), *options, stdout=subprocess.PIPE, stderr=log)
    try:
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        yield node
        node.send_signal(signal.SIGTERM)
        node.communicate(timeout=60)
    finally:
        node.kill()
        node.communicate()
