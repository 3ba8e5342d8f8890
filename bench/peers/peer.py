"""Shared by all peers: the loads, their drivers, and the figures."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Final

from waltz.bench.processes import TICKS_PER_SECOND

START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """Appends of `data_bytes` each; `outstanding` calls at a time with `batch` appends each."""

    name: str
    data_bytes: int
    outstanding: int
    batch: int

    @property
    def data(self) -> bytes:
        """Letters and digits, so that it can stand in a statement."""
        return os.urandom((self.data_bytes + 1) // 2).hex().encode()[: self.data_bytes]


LOADS: Final = tuple(
    Load(f"{name}, {size} B", size, outstanding, batch)
    for size in (128, 1024)
    for name, outstanding, batch in (
        ("one at a time", 1, 1),
        ("64 outstanding", 64, 1),
        ("batched", 8, 100),
    )
)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a load: seconds; latency of a call; processor time of all processes together,
    the driver's too, in seconds."""

    transactions: int
    seconds: float
    p50_seconds: float
    p99_seconds: float
    processor_seconds: float


class UnavailableHereError(Exception):
    """The peer cannot be run on this machine; the text says what is missing."""


class Peer(ABC):
    """A system that is started in a directory, and given loads. It keeps the processes it has
    started."""

    name: str
    durability: str
    """The promise of an answer to an append, with the settings used here."""
    driver: str
    """The program that makes the load."""
    batching: str
    """The meaning of a batch."""

    def __init__(self) -> None:
        self._running: list[int] = []

    @abstractmethod
    def running(self, directory: Path) -> AbstractContextManager[None]:
        """Run it until the block ends. Raises UnavailableHereError."""

    @abstractmethod
    def apply(self, load: Load, seconds: float) -> tuple[int, float, float, float]:
        """Apply the load for about `seconds`; return appends, seconds, p50 and p99 in seconds."""

    @contextmanager
    def process(
        self,
        arguments: Sequence[str],
        log: Path,
        *,
        user: str | None = None,
        cwd: Path | None = None,
    ) -> Iterator[None]:
        """Run a program of the system until the block ends."""
        with log.open("ab") as written:
            running = subprocess.Popen(
                arguments,
                stdout=written,
                stderr=written,
                user=user,
                cwd=cwd,
                start_new_session=True,
            )
        self._running.append(running.pid)
        try:
            yield
        finally:
            running.terminate()
            try:
                running.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
            self._running.remove(running.pid)

    def measure(self, load: Load, seconds: float) -> Found:
        before = self._processor_seconds()
        transactions, taken, p50, p99 = self.apply(load, seconds)
        return Found(transactions, taken, p50, p99, self._processor_seconds() - before)

    def _processor_seconds(self) -> float:
        """Return the processor time of this process, its children, and the peer's processes with
        all their children."""
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        return own + self.server_seconds()

    def server_seconds(self) -> float:
        """Return the processor time of the peer's processes, in seconds."""
        return sum(tree_seconds(pid) for pid in self._running)


def tree_seconds(pid: int) -> float:
    """Return the processor seconds of a process and of all below it; of those that have ended, only
    if the process above them has waited for them."""
    found: dict[int, tuple[int, float]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks = sum(map(int, fields[11:15]))
            found[int(place.name)] = (int(fields[1]), ticks / TICKS_PER_SECOND)

    def total(root: int) -> float:
        children = [each for each, (parent, _) in found.items() if parent == root]
        return found.get(root, (0, 0.0))[1] + sum(map(total, children))

    return total(pid)


def program(name: str, package: str, *places: str) -> str:
    """Return the path of a program. Raises UnavailableHereError: it is not installed."""
    paths = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *places])
    found = shutil.which(name, path=paths)
    if found is None:
        raise UnavailableHereError(f"no {name}: apt-get install {package}")
    return found


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [each.getsockname()[1] for each in listeners]


def wait_for(is_ready: Callable[[], bool], what: str, log: Path) -> None:
    """Return once `is_ready` returns True. Raises UnavailableHereError with the end of the log."""
    deadline = time.monotonic() + START_SECONDS_MAX
    while not is_ready():
        if time.monotonic() > deadline:
            words = log.read_text(errors="replace")[-300:] if log.exists() else ""
            raise UnavailableHereError(f"{what} is not ready after {START_SECONDS_MAX} s: {words}")
        time.sleep(0.1)


def succeeds(*command: str, user: str | None = None) -> bool:
    return subprocess.run(command, capture_output=True, user=user, check=False).returncode == 0


async def closed_loop(
    call: Callable[[], Awaitable[object]], outstanding: int, seconds: float
) -> tuple[int, float, float, float]:
    """Keep `outstanding` calls under way for `seconds`; return calls, seconds, p50 and p99."""
    taken: list[float] = []
    start = time.perf_counter()

    async def keep_calling() -> None:
        while (began := time.perf_counter()) < start + seconds:
            await call()
            taken.append(time.perf_counter() - began)

    await asyncio.gather(*(keep_calling() for _ in range(outstanding)))
    return summary(taken, time.perf_counter() - start)


def summary(taken: Sequence[float], seconds: float) -> tuple[int, float, float, float]:
    """Return, for calls with these durations: their number, `seconds`, p50 and p99."""
    cuts = quantiles(taken, n=100) if len(taken) > 1 else [*taken] * 99
    return len(taken), seconds, cuts[49], cuts[98]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
