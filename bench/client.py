"""The client's cost per transaction, and its places: make bench-client

A workload of `waltz bench` with the client in a process of its own, for the figures; then the same
for one round under a profiler, which shows where the client's own time goes: the submitting
thread's, the loop's, and the workers' that call back.

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
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import waltz
from waltz.bench.benchmark import report, run_all
from waltz.bench.results import Result
from waltz.bench.signals import ended_in_order
from waltz.bench.trial_cluster import shape_of, trial_cluster
from waltz.bench.workload import Workload, choose, read_workloads
from waltz.bench.writers import write, writing

SHOWN = 20
"""Functions of the profile."""


def profiled(work: Callable[[], object]) -> str:
    """Run `work` and return a profile of all its threads, by own time."""
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


def profile_of(workload: Workload) -> str:
    """Write one round from this process and return the profile of its time."""

    def work() -> None:
        # Opened in here: only threads that begin under the profiler are seen.
        with waltz.open_client(
            target.cluster,
            waltz.NoCallbacks(),
            tls=target.tls,
            max_concurrent_transactions=max(1, workload.window // workload.partitions),
        ) as client:
            for partition in range(workload.partitions):
                client.append(partition, b"")
            ways = writing(client, workload, 0, lambda count: None)
            start, seconds = time.monotonic_ns(), workload.duration_seconds
            write(ways, workload, client.client_id, start, seconds, is_counted=True)

    with (
        ended_in_order(),
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as scratch,
        trial_cluster(Path(scratch) / "cluster", shape_of(workload)) as target,
    ):
        return profiled(work)


def show(result: Result) -> None:
    for line in [*result.calibration.lines(), *result.lines()]:
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.client", description=__doc__)
    parser.add_argument("--workload", default="submit-locks", help="one that writes")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    (workload,) = choose(read_workloads(), [given.workload])
    if not workload.is_writing:
        parser.error(f"{workload.name} does not write")
    workload = workload.short(given.seconds, given.rounds)
    load = os.getloadavg()[0]
    results = run_all([workload], Path.cwd(), show)
    print(f"{os.cpu_count()} cores, load before {load:.1f}, after {os.getloadavg()[0]:.1f}")
    print(profile_of(workload))
    if given.json is not None:
        given.json.write_text(json.dumps(report(results, load), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
