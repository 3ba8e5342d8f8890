"""Measure the append throughput with an archiver and without one, in turns.

    python -m bench.archiving [--rate 50000] [--turns 6]

A cluster of `waltz up` on this machine, one client that appends many transactions per call, as fast
as it can or at a rate, and in every other turn an archiver that follows, comparing with one other
copy. Between turns the archive catches up without load, so that each turn archives what it appends.
Prints the rates, and what each process took of a processor.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import waltz
from tests.clusters import RunningCluster, run_waltz, running_cluster
from waltz.bench.processes import processor_seconds

PARTITIONS: Final = 4
CALLS: Final = 8
BATCH: Final = 4000
DATA: Final = [b"x" * 128] * BATCH
KINDS: Final = ("storage", "server", "archiver")


def load(client: waltz.WaltzClient, seconds: float, rate: int | None) -> float:
    """Append for that long and return the transactions per second."""
    began = time.monotonic()
    counts = [0] * CALLS

    def work(number: int) -> None:
        while (now := time.monotonic()) < began + seconds:
            if rate is not None and counts[number] * CALLS > rate * (now - began):
                time.sleep(0.002)
                continue
            client.append_many((number + counts[number] // BATCH) % PARTITIONS, DATA)
            counts[number] += BATCH

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CALLS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(counts) / (time.monotonic() - began)


@contextmanager
def archiver(config: Path, log: Path) -> Iterator[int]:
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "waltz.cli.main", "archive", "run", str(config)],
            stdout=subprocess.PIPE, stderr=output, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def pids(cluster: RunningCluster) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for each in cluster.state["processes"]:
        for kind in KINDS:
            if each["name"].startswith(kind):
                found[kind].append(int(each["pid"]))
    return found


def behind(config: Path) -> int:
    said = json.loads(run_waltz("archive", "status", str(config), "--json").stdout)
    return sum(each["behind"] or 0 for each in said["partitions"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="waltz-archiving-") as name:
        place = Path(name)
        with running_cluster(place / "cluster", "--partitions", str(PARTITIONS)) as cluster:
            config = place / "archive.yml"
            config.write_text(
                f"archive: {{target: 'file://{place}/archive', every: {options.every}}}\n"
                f"coordinator.address: {cluster.coordinator}\n"
            )
            measure(cluster, config, options)


def measure(cluster: RunningCluster, config: Path, options: argparse.Namespace) -> None:
    rates: dict[bool, list[float]] = {False: [], True: []}
    times: dict[bool, dict[str, float]] = {each: dict.fromkeys(KINDS, 0.0) for each in rates}
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        load(client, 2.0, options.rate)
        for turn in range(options.turns):
            run_waltz("archive", "run", str(config), "--once")
            is_archiving = turn % 2 == 1
            processes = pids(cluster)
            if is_archiving:
                with archiver(config, config.with_suffix(".log")) as pid:
                    processes["archiver"] = [pid]
                    one_turn(client, processes, rates, times, True, options)
                    print(f"  not archived at its end: {behind(config)}")
            else:
                one_turn(client, processes, rates, times, False, options)
    without, beside = (statistics.median(rates[each]) for each in (False, True))
    print(f"without {without:,.0f}/s, beside the archiver {beside:,.0f}/s: {beside / without:.3f}")
    for kind in KINDS:
        print(f"{kind}: {times[False][kind]:.1f} s of a processor without, {times[True][kind]:.1f}")


def one_turn(
    client: waltz.WaltzClient,
    processes: dict[str, list[int]],
    rates: dict[bool, list[float]],
    times: dict[bool, dict[str, float]],
    is_archiving: bool,
    options: argparse.Namespace,
) -> None:
    before = {kind: sum(map(processor_seconds, found)) for kind, found in processes.items()}
    rate = load(client, options.seconds, options.rate)
    rates[is_archiving].append(rate)
    for kind, found in processes.items():
        times[is_archiving][kind] += sum(map(processor_seconds, found)) - before[kind]
    print(f"{'archiving' if is_archiving else 'alone'}: {rate:,.0f}/s", flush=True)


if __name__ == "__main__":
    main()
