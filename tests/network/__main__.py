"""Cuts the network of a real cluster in every way of `cases.py`, under load, and judges it.

make network-matrix
python -m tests.network --seed 7                        all cases
python -m tests.network --seed 7 --cases 8              the first eight in the order of the seed
python -m tests.network --seed 7 --only 'server-1 | zookeeper'
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

from tests.live.ending import end_and_judge
from tests.live.launch import START_SECONDS_MAX, run_directory, running
from tests.network.cases import Case, all_cases, one_of_each_kind
from tests.network.deployment import (
    PARTITIONS,
    ROOT,
    Deployment,
    server_names,
)
from tests.network.links import refusal, run_alone
from waltz.cluster.cluster_shell import read_partition_metadata
from waltz.system.real_host import real_host
from waltz.types import PartitionId

WRITABLE_SECONDS_MAX = 30.0
"""After healing. A packet that TCP sends again is at most as late as the cut was long."""

PATIENCE_SECONDS = 120.0
"""How long a case that has missed it is watched before the run is given up."""

CUT_SECONDS = ((0.3, 2.0), (4.0, 8.0), (15.0, 25.0))
CUT_WEIGHTS = (10, 8, 2)
CUT_SECONDS_SHORT = 4.5
"""Shorter than a coordinator's session, longer, longer than a storage node is waited for."""


@dataclass
class Findings:
    """The result of one run."""

    seed: str
    cases: list[dict[str, str | float | None]] = field(default_factory=list)
    slowest_seconds: float = 0.0
    transactions: int = 0
    sessions: int = 0
    violations: list[str] = field(default_factory=list)


async def read_sessions(deployment: Deployment) -> dict[int, tuple[int, int]]:
    """Return generation and session of each partition."""
    door = real_host(deployment.coordinator).coordinator
    try:
        found = [
            await read_partition_metadata(door, PartitionId(number), ROOT)
            for number in range(PARTITIONS)
        ]
        return {n: (int(each.generation), int(each.session_id)) for n, each in enumerate(found)}
    finally:
        await door.close()


def judge_sessions(sampled: Sequence[Mapping[int, tuple[int, int]]]) -> Iterator[str]:
    """Yield generations and sessions that go back; `sampled` is in the order of time."""
    for before, after in pairwise(sampled):
        for partition, (generation, session) in after.items():
            was = before[partition]
            if generation < was[0] or session < was[1]:
                yield f"partition {partition} went from {was} back to {(generation, session)}"


async def play(
    deployment: Deployment, case: Case, pause: float, seconds: float, findings: Findings
) -> bool:
    """Cut, wait, heal, and wait until all is well; return whether it ever was."""
    await asyncio.sleep(pause)
    deployment.links.cut(case.ways)
    await asyncio.sleep(seconds)
    deployment.links.heal()
    healed = time.monotonic()
    taken = await deployment.seconds_until_written(healed, WRITABLE_SECONDS_MAX)
    if taken is None:
        waiting = ", ".join(deployment.not_writing(healed))
        taken = await deployment.seconds_until_written(healed, PATIENCE_SECONDS)
        findings.violations.append(
            f"{case.name}, {seconds:.1f} s: {WRITABLE_SECONDS_MAX:g} s after it nothing is written"
            f" by {waiting}; then {'never' if taken is None else f'after {taken:.1f} s'}"
        )
    findings.slowest_seconds = max(findings.slowest_seconds, taken or 0.0)
    shown = None if taken is None else round(taken, 2)
    findings.cases.append(
        {"case": case.name, "cut_seconds": round(seconds, 2), "writable_after_seconds": shown}
    )
    print(f"{case.name:<50} cut {seconds:4.1f} s, writable after {shown} s", flush=True)
    return taken is not None


async def run(
    deployment: Deployment,
    cases: list[Case],
    draw: Random,
    draw_seconds: Callable[[], float],
    findings: Findings,
) -> None:
    assert await deployment.seconds_until_written(0, START_SECONDS_MAX) is not None
    sampled = [await read_sessions(deployment)]
    for case in cases:
        pause, seconds = draw.uniform(0, 1), draw_seconds()
        is_well = await play(deployment, case, pause, seconds, findings)
        if ended := deployment.ended():
            findings.violations.append(f"{case.name}: {ended} ended")
        if ended or not is_well:
            return
        sampled.append(await read_sessions(deployment))
    deployment.writers.stop()
    await deployment.writers.settle()
    found = await end_and_judge(deployment, deployment.writers, [], say)
    sampled.append(await read_sessions(deployment))
    findings.transactions = found.transactions
    findings.sessions = sum(session for _, session in sampled[-1].values())
    findings.violations += [*found.violations, *judge_sessions(sampled)]


def say(line: str) -> None:
    print(line, flush=True)


def lengths(draw: Random, *, fixed: float | None, short: bool) -> Callable[[], float]:
    """Return a function that draws the length of the next cut."""

    def next_seconds() -> float:
        drawn = draw.uniform(*draw.choices(CUT_SECONDS, CUT_WEIGHTS)[0])
        return fixed or (min(drawn, CUT_SECONDS_SHORT) if short else drawn)

    return next_seconds


async def run_all(arguments: argparse.Namespace, directory: Path, findings: Findings) -> None:
    draw = Random(arguments.seed)
    cases = all_cases(server_names(arguments.servers))
    draw.shuffle(cases)
    chosen = [case for case in cases if arguments.only in case.name][: arguments.cases]
    if arguments.short:
        chosen = one_of_each_kind(cases)
    draw_seconds = lengths(draw, fixed=arguments.seconds, short=arguments.short)
    deployment = Deployment(directory, servers=arguments.servers, seed=arguments.seed)
    async with running(deployment):
        await run(deployment, chosen, draw, draw_seconds, findings)


def play_all(arguments: argparse.Namespace) -> int:
    findings = Findings(arguments.seed)
    with run_directory(arguments.directory, "network", within=Path.cwd()) as files:
        asyncio.run(run_all(arguments, files.path, findings))
        files.is_kept = bool(findings.violations)
    print(
        f"{len(findings.cases)} cuts, {findings.transactions} transactions in"
        f" {findings.sessions} store sessions; writable after at most"
        f" {findings.slowest_seconds:.2f} s; {len(findings.violations)} violations"
    )
    for violation in findings.violations:
        print(violation)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(asdict(findings), indent=1))
    return 1 if findings.violations else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut the network of a real cluster.")
    parser.add_argument("--seed", default="1")
    parser.add_argument(
        "--cases", type=int, help="at most this many, the first in the seed's order"
    )
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--short", action="store_true", help="one case of each kind")
    parser.add_argument("--seconds", type=float, help="the length of every cut")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--json", help="write what was seen to this file")
    parser.add_argument("--directory", type=Path, help="keep the cluster's files and logs there")
    parser.add_argument(
        "--here", action="store_true", help="the network namespace is there already"
    )
    arguments = parser.parse_args()
    if arguments.here:
        return play_all(arguments)
    if (reason := refusal()) is not None:
        print(f"left out: {reason}")
        return 0
    return run_alone("-m", "tests.network", "--here", *sys.argv[1:]).returncode


if __name__ == "__main__":
    sys.exit(main())
