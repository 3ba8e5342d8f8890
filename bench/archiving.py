"""Measure the append throughput with an archiver and without one, in turns.

    python -m bench.archiving [--rate 50000] [--turns 6]

A cluster of `waltz up` on this machine, one client that appends many transactions per call, as fast
as it can or at a rate, and in every other turn an archiver that follows, comparing with one other
copy. Before each turn the archive catches up without load. Prints the rates, what each process took
of a processor, and of each turn with an archiver what was archived while the appends went on, and
what the archive lacked after half of the turn and at its end. The client counts what is appended;
what is archived is read from the archive itself.

Ends with 1 if the archiver fell behind in some turn: nothing was archived, or the archive lacked at
the end more than is appended within `--lag` seconds. An archiver that is as fast as the appends
lacks as much at the end of a long turn as of a short one; one that is slower by a tenth lacks a
tenth of what the turn appended, and more. So a turn has to be several times as long as `--lag`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import waltz
from tests.clusters import RunningCluster, run_waltz, running_cluster
from waltz.archive.archive import open_archive
from waltz.bench.processes import processor_seconds

PARTITIONS: Final = 4
CALLS: Final = 8
BATCH: Final = 4000
DATA_BYTES: Final = 128
SETS: Final = 8
"""Calls until data comes again: more than a frame of the archive holds, so that no data is
compressed as a copy of earlier data."""

KINDS: Final = ("storage", "server", "archiver")
LAG_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Turn:
    """What came of one turn, in transactions: what the client was told is appended, what the
    archive had more at the end of the appends than before, and what it lacked half-way and then."""

    appended: int
    seconds: float
    archived: int
    behind_half_way: int
    behind: int

    @property
    def rate(self) -> float:
        return self.appended / self.seconds

    def keeps_up(self, lag_seconds: float) -> bool:
        return self.archived > 0 and self.behind <= lag_seconds * self.rate

    def __str__(self) -> str:
        return (
            f"archived {self.archived:,} of {self.appended:,} while they were appended;"
            f" behind by {self.behind_half_way / self.rate:.1f} s of appends half-way,"
            f" {self.behind / self.rate:.1f} s at the end"
        )


def some_data() -> list[list[bytes]]:
    """Return the data of some calls; digits of random numbers, which compress to half."""
    random = Random(1)
    return [
        [random.randbytes(DATA_BYTES // 2).hex().encode() for _ in range(BATCH)]
        for _ in range(SETS)
    ]


class Load:
    """A client's appends, and the archive that follows."""

    def __init__(self, client: waltz.WaltzClient, archive: str) -> None:
        self.total = 0
        self._client = client
        self._archive = archive
        self._data = some_data()

    def run(self, seconds: float, rate: int | None) -> Turn:
        """Append for that long. The archive must be there."""
        archived_before = self._archived()
        began = time.monotonic()
        counts = [0] * CALLS

        def work(number: int) -> None:
            while (now := time.monotonic()) < began + seconds:
                if rate is not None and counts[number] * CALLS > rate * (now - began):
                    time.sleep(0.002)
                    continue
                turn = counts[number] // BATCH
                data = self._data[(number + turn // PARTITIONS) % SETS]
                self._client.append_many((number + turn) % PARTITIONS, data)
                counts[number] += BATCH

        threads = [threading.Thread(target=work, args=(number,)) for number in range(CALLS)]
        for each in threads:
            each.start()
        time.sleep(seconds / 2)
        half_way = self.total + sum(counts) - self._archived()
        for each in threads:
            each.join()
        took = time.monotonic() - began
        archived = self._archived()
        self.total += sum(counts)
        return Turn(sum(counts), took, archived - archived_before, half_way, self.total - archived)

    def _archived(self) -> int:
        """Return how many transactions are archived, of all partitions together."""
        archive = open_archive(self._archive)
        return sum(archive.end(number) for number in range(PARTITIONS))


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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--lag", type=float, default=LAG_SECONDS)
    options = parser.parse_args()
    if options.seconds < 4 * options.lag:
        parser.error("turns of less than 4 times --lag seconds prove nothing")
    with tempfile.TemporaryDirectory(prefix="waltz-archiving-") as name:
        place = Path(name)
        with running_cluster(place / "cluster", "--partitions", str(PARTITIONS)) as cluster:
            config = place / "archive.yml"
            config.write_text(
                f"archive: {{target: 'file://{place}/archive', every: {options.every}}}\n"
                f"coordinator.address: {cluster.coordinator}\n"
            )
            measure(cluster, config, f"file://{place}/archive", options)


def measure(
    cluster: RunningCluster, config: Path, archive: str, options: argparse.Namespace
) -> None:
    turns: dict[bool, list[Turn]] = {False: [], True: []}
    times: dict[bool, dict[str, float]] = {each: dict.fromkeys(KINDS, 0.0) for each in turns}
    run_waltz("archive", "run", str(config), "--once")
    with waltz.open_client(cluster.coordinator, waltz.NoCallbacks()) as client:
        load = Load(client, archive)
        load.run(2.0, options.rate)
        for number in range(options.turns):
            run_waltz("archive", "run", str(config), "--once")
            is_archiving = number % 2 == 1
            processes = pids(cluster)
            if is_archiving:
                with archiver(config, config.with_suffix(".log")) as pid:
                    processes["archiver"] = [pid]
                    one_turn(load, processes, turns[True], times[True], options)
                print(f"  {turns[True][-1]}", flush=True)
            else:
                one_turn(load, processes, turns[False], times[False], options)
    without, beside = (
        statistics.median(each.rate for each in turns[is_archiving])
        for is_archiving in (False, True)
    )
    print(f"without {without:,.0f}/s, beside the archiver {beside:,.0f}/s: {beside / without:.3f}")
    for kind in KINDS:
        print(f"{kind}: {times[False][kind]:.1f} s of a processor without, {times[True][kind]:.1f}")
    if not all(each.keeps_up(options.lag) for each in turns[True]):
        sys.exit(
            f"the archiver fell behind: more than {options.lag:g} s of appends were not archived"
            " at the end of a turn, or nothing was archived in it"
        )


def one_turn(
    load: Load,
    processes: dict[str, list[int]],
    turns: list[Turn],
    times: dict[str, float],
    options: argparse.Namespace,
) -> None:
    before = {kind: sum(map(processor_seconds, found)) for kind, found in processes.items()}
    turns.append(load.run(options.seconds, options.rate))
    for kind, found in processes.items():
        times[kind] += sum(map(processor_seconds, found)) - before[kind]
    name = "archiving" if processes.get("archiver") else "alone"
    print(f"{name}: {turns[-1].rate:,.0f}/s", flush=True)


if __name__ == "__main__":
    main()
