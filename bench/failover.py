"""Measures how long a partition takes no appends after a process has died or was told to end.

make bench-failover
python -m bench.failover --kills 50 --session 4000 --json result.json

Three servers and three storage nodes on a real ZooKeeper, all processes of this machine, and one
client that appends to every partition all the time, one transaction after the other. The time of a
server's loss is that from the signal to the first commit after the longest pause, for each
partition it had; of a storage node's, that from the signal to the commit of the first append that
was begun after it, for each partition there is. Next to it stands the longest pause between two
commits of a partition in the second after the signal, and in one without any.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import waltz
from tests.live.launch import Process, ZooKeeperCluster, run_directory, running
from waltz.bench.calibration import calibrate

SERVERS = 3
PARTITIONS = 12
DATA = bytes(128)

PAUSE_SECONDS = 0.01
"""Seconds between two appends of one partition: the machine should not be busy with the
measuring."""

QUIET_SECONDS = 1.0
"""Seconds before each signal in which every partition takes appends, and nothing moves."""

WATCH_SECONDS = 1.0
"""Seconds after a storage node was killed in which pauses are looked for."""

AFTER_SECONDS = 0.5
"""Seconds after the last partition has committed again, for late effects."""

NOTHING_EVERY = 5
"""Rounds between two measurements of the pauses without any loss."""

SERVER_SECONDS_MAX = 0.5
"""The most seconds beyond the session's time-out, if the ZooKeeper has to notice the loss; the most
in all, if the server ends in order."""

STORAGE_SECONDS_MAX = 0.05


@dataclass
class Commits:
    """The moments at which appends of each partition began and ended."""

    ended: list[list[float]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    begun: list[list[float]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def add(self, partition: int, begun: float, ended: float) -> None:
        self.begun[partition].append(begun)
        self.ended[partition].append(ended)

    def first_begun_after(self, partition: int, since: float) -> float | None:
        """Return when the first append ended that was begun after `since`; None: none has."""
        place = bisect_right(self.begun[partition], since)
        return self.ended[partition][place] if place < len(self.ended[partition]) else None

    def longest_pause(self, partition: int, since: float) -> tuple[float, float]:
        """Return the length of the longest pause that ended after `since`, and when it ended."""
        times = self.ended[partition]
        pauses = [(after - before, after) for before, after in pairwise(times) if after > since]
        return max(pauses, default=(0.0, since))

    def forget(self) -> None:
        """Keep only the last append of each partition."""
        for times in (*self.ended, *self.begun):
            del times[:-1]


@dataclass
class Figure:
    """One row of the result; seconds."""

    name: str
    requirement: float | None
    """The most that the median may be; None for figures of comparison."""
    samples: list[float] = field(default_factory=list)
    signals: int = 0

    def to_json(self) -> dict[str, Any]:
        cuts = quantiles(self.samples, n=100, method="inclusive")
        return {
            "name": self.name,
            "signals": self.signals,
            "samples": len(self.samples),
            "p50_seconds": cuts[49],
            "p90_seconds": cuts[89],
            "p99_seconds": cuts[98],
            "max_seconds": max(self.samples),
            "p50_seconds_required": self.requirement,
            "holds": self.requirement is None or cuts[49] <= self.requirement,
        }


class Measuring:
    """A cluster, and a client that appends to all of it."""

    def __init__(
        self, cluster: ZooKeeperCluster, client: waltz.AsyncWaltzClient, random: Random
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._random = random
        self._commits = Commits()

    async def append_for_ever(self, partition: int) -> None:
        while True:
            begun = time.monotonic()
            await self._client.append(partition, DATA)
            self._commits.add(partition, begun, time.monotonic())
            await asyncio.sleep(PAUSE_SECONDS)

    async def settle(self) -> None:
        """Return once every server has its share and everything has been quiet for a while."""
        quiet_since = time.monotonic()
        owners: dict[str, list[int]] = {}
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            await asyncio.sleep(0.05)
            now, found = time.monotonic(), self._cluster.owners()
            has_shares = {len(owned) for owned in found.values()} == {PARTITIONS // SERVERS}
            flows = all(times and now - times[-1] < 0.5 for times in self._commits.ended)
            if found != owners or not has_shares or not flows:
                owners, quiet_since = found, now
        self._commits.forget()

    async def lose_server(
        self, figure: Figure, lose: Callable[[Process], Awaitable[object]]
    ) -> None:
        """`lose` one server, measure its partitions, start it again."""
        await self.settle()
        node = self._random.choice(list(self._cluster.servers.values()))
        owned = self._cluster.owners()[node.name]
        began = time.monotonic()
        losing = asyncio.ensure_future(lose(node))
        while node.name in (owners := self._cluster.owners()) and owners[node.name]:
            await asyncio.sleep(0.02)
        moved = time.monotonic()
        while any(self._commits.ended[each][-1] <= moved for each in owned):
            await asyncio.sleep(0.02)
        await asyncio.sleep(AFTER_SECONDS)
        await losing
        figure.signals += 1
        figure.samples += [self._commits.longest_pause(each, began)[1] - began for each in owned]
        await node.start()

    async def lose_storage(self, figure: Figure, pauses: Figure) -> None:
        await self.settle()
        node = self._random.choice(list(self._cluster.storages.values()))
        began = time.monotonic()
        await node.kill()
        await asyncio.sleep(WATCH_SECONDS)
        figure.signals += 1
        pauses.signals += 1
        for partition in range(PARTITIONS):
            while (ended := self._commits.first_begun_after(partition, began)) is None:
                await asyncio.sleep(0.02)
            figure.samples.append(ended - began)
            pauses.samples.append(self._commits.longest_pause(partition, began)[0])
        await node.start()

    async def lose_nothing(self, figure: Figure) -> None:
        """Measure the pauses in a time of the same length in which nothing happens."""
        await self.settle()
        began = time.monotonic()
        await asyncio.sleep(WATCH_SECONDS)
        for partition in range(PARTITIONS):
            figure.samples.append(self._commits.longest_pause(partition, began)[0])


async def measure(kills: int, session_milliseconds: int, seed: str, seconds: float) -> list[Figure]:
    """Measure `kills` rounds, or those that begin within `seconds`."""
    end = time.monotonic() + seconds
    session = session_milliseconds / 1000
    killed = Figure("server killed", session + SERVER_SECONDS_MAX)
    ended = Figure("server told to end", SERVER_SECONDS_MAX)
    storage = Figure("storage node killed", STORAGE_SECONDS_MAX)
    pauses = Figure("longest pause after that", None)
    nothing = Figure("longest pause without a loss", None)
    with run_directory(None, "failover", within=Path.cwd()) as files:
        cluster = ZooKeeperCluster(
            files.path / "cluster",
            servers=SERVERS,
            partitions=PARTITIONS,
            session_milliseconds=session_milliseconds,
            has_links=False,
        )
        async with (
            running(cluster),
            waltz.open_async_client(
                cluster.coordinator, waltz.NoCallbacks(), mount_seconds_max=60.0
            ) as client,
        ):
            measuring = Measuring(cluster, client, Random(seed))
            appending = [
                asyncio.create_task(measuring.append_for_ever(number))
                for number in range(PARTITIONS)
            ]
            try:
                for number in range(kills):
                    if time.monotonic() > end:
                        break
                    if number % NOTHING_EVERY == 0:
                        await measuring.lose_nothing(nothing)
                    await measuring.lose_storage(storage, pauses)
                    await measuring.lose_server(ended, Process.end)
                    await measuring.lose_server(killed, Process.kill)
                    say_progress(number + 1, kills, (nothing, storage, pauses, ended, killed))
            finally:
                for task in appending:
                    task.cancel()
                failures = await asyncio.gather(*appending, return_exceptions=True)
            for failure in failures:
                if not isinstance(failure, asyncio.CancelledError):
                    raise RuntimeError("an append failed") from failure
        files.is_kept = False
    return [killed, ended, storage, pauses, nothing]


def say_progress(done: int, kills: int, figures: Sequence[Figure]) -> None:
    medians = ", ".join(f"{f.name} {median(f.samples) * 1e3:.0f} ms" for f in figures)
    print(f"{done} of {kills} rounds: p50 of {medians}", file=sys.stderr, flush=True)


def line(found: dict[str, Any]) -> str:
    times = ", ".join(
        f"{name} {found[f'{name}_seconds'] * 1e3:,.0f} ms" for name in ("p50", "p90", "p99", "max")
    )
    said = f"{found['name']} ({found['signals']} times, {found['samples']} partitions): {times}"
    required = found["p50_seconds_required"]
    if required is None:
        return said
    verdict = "holds" if found["holds"] else "MISSED"
    return f"{said}; p50 of at most {required * 1e3:,.0f} ms {verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="of each kind")
    parser.add_argument("--seconds", type=float, default=7200.0, help="no round begins later")
    parser.add_argument("--session", type=int, default=4000, help="with the ZooKeeper, ms")
    parser.add_argument("--seed", default="1", help="decides who is killed")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    calibration = calibrate()
    for each in calibration.lines():
        print(each, flush=True)
    load = os.getloadavg()[0]
    print(f"session with the ZooKeeper: {given.session} ms; {SERVERS} servers, {PARTITIONS}"
          f" partitions; {os.cpu_count()} cores, load before {load:.1f}", flush=True)  # fmt: skip
    figures = [
        each.to_json()
        for each in asyncio.run(measure(given.kills, given.session, given.seed, given.seconds))
    ]
    print(f"load after {os.getloadavg()[0]:.1f}")
    for found in figures:
        print(line(found))
    if given.json is not None:
        values = {
            "session_milliseconds": given.session,
            "sync_seconds": calibration.sync_seconds,
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "figures": figures,
        }
        given.json.write_text(json.dumps(values, indent=2) + "\n")
    return 0 if all(found["holds"] for found in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
