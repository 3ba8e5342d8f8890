"""What the client costs per transaction: make bench-client

Contexts of 128 bytes with two write and two read locks, submitted one by one through the whole path
to a cluster of processes on this machine: one server, three replicas that sync. Then the same under
a profiler, which shows where the client's own time goes: the submitting thread's, the loop's, and
the workers' that call back.

The rate depends on everything on this machine; the processor time that the client's process takes
for a transaction does not, and is given as multiples of the calibration of the same run, too.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import json
import os
import pstats
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import waltz
from bench.calibration import Calibration, calibrate
from bench.cluster import PARTITIONS, Append, scratch_cluster

PENDING = 256
SHOWN = 20
"""Functions of the profile."""


class Timed(Append):
    """Says how long it took from the submit to its application here."""

    taken: float | None = None

    def on_application(self) -> None:
        self.taken = time.perf_counter() - self.sent_at


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over the rounds; seconds."""

    transactions: int
    rate: float
    p50_seconds: float
    p99_seconds: float
    processor_seconds: float
    """Of the client's process, per transaction, all threads together."""

    def line(self, calibration: Calibration) -> str:
        return (
            f"submit with 4 locks, {PENDING} outstanding in each of {PARTITIONS} partitions:"
            f" {self.rate:,.0f}/s, {self.rate * calibration.sync_seconds:.2f} per write+sync;"
            f" p50 {self.p50_seconds * 1e3:.1f} ms, p99 {self.p99_seconds * 1e3:.1f} ms; processor"
            f" of the client {self.processor_seconds * 1e6:.1f} us each,"
            f" {self.processor_seconds / calibration.pack_seconds:.0f} x struct.pack+crc32"
        )


def run_once(coordinator: str, count: int) -> Figures:
    with waltz.open_client(
        coordinator, waltz.NoCallbacks(), max_concurrent_transactions=PENDING
    ) as client:
        for partition in range(PARTITIONS):
            client.append(partition, b"")  # connected and mounted, outside of what is measured
        contexts: list[Timed] = []
        processor, start = time.process_time(), time.perf_counter()
        for number in range(count):
            context = Timed(number)
            contexts.append(context)
            client.submit(context)
        client.flush()
        taken = time.perf_counter() - start
        processor = time.process_time() - processor
    times = [context.taken for context in contexts if context.taken is not None]
    assert len(times) == count, "one was not applied"
    cuts = quantiles(times, n=100)
    return Figures(count, count / taken, cuts[49], cuts[98], processor / count)


def measure(coordinator: str, count: int, rounds: int) -> Figures:
    found = [run_once(coordinator, count) for _ in range(rounds)]
    return Figures(
        count,
        *(
            median(getattr(each, name) for each in found)
            for name in ("rate", "p50_seconds", "p99_seconds", "processor_seconds")
        ),
    )


def profiled(work: Callable[[], object]) -> str:
    """Do `work` and return where the time of all its threads went, by own time."""
    profiles: list[cProfile.Profile] = []

    def begin(*_: Any) -> None:
        profile = cProfile.Profile(time.thread_time)
        profiles.append(profile)
        profile.enable()  # takes the place of this function in the new thread

    threading.setprofile(begin)
    own = cProfile.Profile(time.thread_time)
    try:
        own.runcall(work)
    finally:
        threading.setprofile(None)
    text = io.StringIO()
    stats = pstats.Stats(own, stream=text)
    for profile in profiles:
        stats.add(profile)
    stats.sort_stats("tottime").print_stats(SHOWN)
    lines = text.getvalue().splitlines()
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith("ncalls"))
    return "\n".join(line for line in lines[start:] if line.strip())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="transactions per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    calibration = calibrate()
    load = os.getloadavg()[0]
    for line in calibration.lines():
        print(line, flush=True)
    with scratch_cluster() as coordinator:
        figures = measure(coordinator, given.count, given.rounds)
        print(figures.line(calibration))
        print(f"{os.cpu_count()} cores, load before {load:.1f}, after {os.getloadavg()[0]:.1f}")
        print(profiled(lambda: run_once(coordinator, given.count)))
    if given.json is not None:
        values = {**asdict(figures), **asdict(calibration), "load_before": load}
        given.json.write_text(json.dumps(values, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
