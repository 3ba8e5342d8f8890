"""The processor time and the memory of all processes below one, of those too that come and go.

The kernel adds the time of a process that has ended to the one that has waited for it. Spark's
daemon waits for none of its Python workers, so the time of a worker that has ended is added to
none. So processes are looked at several times a second.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from waltz.bench.processes import TICKS_PER_SECOND, resident_bytes

LOOK_SECONDS: Final = 0.2


class Watch(ABC):
    """Looks at processes several times a second. A context manager, which looks during its block;
    a class derived from it says at what."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look_often, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look_often(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Look at the processes once."""


@dataclass
class Memory:
    """The peaks of resident memory so far, in bytes: of the driver's two processes, of the largest
    Python worker, and of all workers together at one time."""

    java: int = 0
    driver: int = 0
    worker: int = 0
    workers_together: int = 0

    def __str__(self) -> str:
        return (
            f"Java {_mebibytes(self.java)}, driver's Python {_mebibytes(self.driver)}, largest"
            f" worker {_mebibytes(self.worker)}, workers {_mebibytes(self.workers_together)}"
        )


class MemoryWatch(Watch):
    """The memory of this process and of Java with all its children."""

    def __init__(self, java: int) -> None:
        super().__init__()
        self.memory = Memory()
        self._java = java

    def look(self) -> None:
        memory = self.memory
        memory.java = max(memory.java, peak_bytes(self._java))
        memory.driver = max(memory.driver, peak_bytes(os.getpid()))
        workers = _below(self._java, _processes())
        memory.worker = max(memory.worker, *map(peak_bytes, workers), 0)
        together = sum(map(resident_bytes, workers))
        memory.workers_together = max(memory.workers_together, together)


class ProcessorWatch(Watch):
    """The processor time of this process and of all below it. Of a process that has ended, what it
    has spent since the last look is missing."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._seconds: dict[tuple[int, int], float] = {}
        """By the process and the moment of its start, since numbers of processes come again."""

    def look(self) -> None:
        with self._lock:
            found = _processes()
            for pid in (os.getpid(), *_below(os.getpid(), found)):
                self._seconds[pid, found[pid].start] = found[pid].seconds

    def seconds(self, pids: Collection[int] | None = None) -> float:
        """Return what all have spent so far, or those named."""
        self.look()
        with self._lock:
            found = self._seconds.items()
            return sum(spent for (pid, _), spent in found if pids is None or pid in pids)


class _Found(NamedTuple):
    """A process: its parent, the ticks from the machine's start to its own, and the seconds of
    processor time that it has spent by itself."""

    parent: int
    start: int
    seconds: float


def _processes() -> dict[int, _Found]:
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has gone
            continue
        spent = (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
        found[int(path.parent.name)] = _Found(int(fields[1]), int(fields[19]), spent)
    return found


def _below(root: int, processes: dict[int, _Found]) -> list[int]:
    found: list[int] = []
    newest = [root]
    while newest := [pid for pid, each in processes.items() if each.parent in newest]:
        found += newest
    return found


def peak_bytes(pid: int) -> int:
    """Return the most that a process has had resident, as the kernel notes it; 0: it has gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(each.split()[1]) * 1024 for each in lines if each.startswith("VmHWM")), 0)


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
