"""The performance gate: make bench-gate

A few quick workloads, each figure a speed in multiples of what the machine does alone in the same
minute, against the accepted ones in `accepted.json`. A figure below 70 % of it fails.

A figure that falls short is measured again before it counts, and the best of the attempts is
taken: a regression is there each time, a busy neighbour is not. On a machine that changes its own
speed meanwhile a figure that falls short by no more than that is shown and not judged.

    python -m bench.gate --accept        # the figures of this run become the accepted ones
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from waltz.bench.benchmark import run_all
from waltz.bench.calibration import Calibration, calibrate
from waltz.bench.results import Result
from waltz.bench.workload import Workload, choose, read_workloads

ACCEPTED: Final = Path(__file__).with_name("accepted.json")
SHARE_MIN: Final = 0.7
ATTEMPTS_MAX: Final = 3
SECONDS_MAX: Final = 25.0
"""Seconds after which no attempt begins any more; the whole gate is to take less than a minute."""

UNSTEADY: Final = 1.6
"""The factor by which two calibrations of a run may differ and still count as one machine."""

SECONDS: Final = {"one-at-a-time": 1.0, "submit-locks": 1.5, "append-many": 1.0}
ROUNDS: Final = 3
PREFILL: Final = 20_000

FIGURE: Final = "{workload}: pack+crc per processor time"
"""The figure of each workload: the processor time of all processes per transaction, as a multiple
of the calibration's `pack_seconds`. Not its latency: that depends on the disk, and disks differ."""


def quick_workloads() -> list[Workload]:
    chosen = [
        each.short(seconds, ROUNDS)
        for name, seconds in SECONDS.items()
        for each in choose(read_workloads(), [name])
    ]
    (feed,) = choose(read_workloads(), ["feed-callbacks"])
    # On the cluster of the other workloads, which has the same number of partitions.
    chosen.append(replace(feed, prefill=PREFILL, rounds=ROUNDS, warm_up_seconds=0.0))
    return [replace(each, partitions=4) for each in chosen]


def figures_of(results: Sequence[Result]) -> dict[str, float]:
    """Return the speeds, the more the better, of the workloads that were run."""
    return {
        FIGURE.format(workload=result.workload.name): (
            result.calibration.pack_seconds / result.processor_seconds()["all"]
        )
        for result in results
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """About one figure; `unsteadiness`: how many times slower the machine was at worst than at
    best, or how many others wanted its cores, if that is more."""

    name: str
    figure: float
    accepted: float | None
    unsteadiness: float

    @property
    def share(self) -> float | None:
        return None if self.accepted is None else self.figure / self.accepted

    @property
    def falls_short(self) -> bool:
        return self.share is not None and self.share < SHARE_MIN

    @property
    def fails(self) -> bool:
        """Return whether the figure falls short, and changes of the machine cannot be the
        reason."""
        if self.share is None or not self.falls_short:
            return False
        return self.unsteadiness <= UNSTEADY or self.share * self.unsteadiness < SHARE_MIN

    def line(self) -> str:
        if self.share is None:
            return f"{self.name}: {self.figure:.4g}; nothing accepted yet: --accept"
        word = "ok"
        if self.falls_short:
            word = "FAILS" if self.fails else "NOT JUDGED, this machine is too unsteady now"
        return (
            f"{self.name}: {self.figure:.4g}, {self.share:.0%} of the accepted"
            f" {self.accepted:.4g}: {word}"
        )


def unsteadiness(calibrations: Sequence[Calibration]) -> float:
    """Return the slowest of the calibrations as a multiple of the fastest."""
    values = [each.pack_seconds for each in calibrations]
    return max(values) / min(values)


def judge(
    figures: Mapping[str, float],
    accepted: Mapping[str, float],
    calibrations: Sequence[Calibration],
    crowding: float,
) -> list[Verdict]:
    """Return a verdict per figure; raises ValueError: an accepted one was not measured.

    `crowding`: how many processes wanted each core before.
    """
    if lost := sorted(accepted.keys() - figures.keys()):
        raise ValueError(f"accepted and not measured: {lost[0]}")
    return [
        Verdict(
            name,
            figure,
            accepted.get(name),
            max(crowding, unsteadiness(calibrations)),
        )
        for name, figure in figures.items()
    ]


def measure(
    accepted: Mapping[str, float], crowding: float
) -> tuple[list[Verdict], list[Calibration]]:
    """Measure until nothing falls short, or the attempts or the time are used up."""
    start = time.monotonic()
    best: dict[str, float] = {}
    calibrations = [calibrate()]
    workloads = quick_workloads()
    verdicts: list[Verdict] = []
    for _ in range(ATTEMPTS_MAX):
        results = run_all(workloads, Path.cwd(), lambda result: None)
        calibrations += [each.calibration for each in results] + [calibrate()]
        for name, figure in figures_of(results).items():
            best[name] = max(best.get(name, 0.0), figure)
        verdicts = judge(best, accepted, calibrations, crowding)
        short = {each.name.partition(":")[0] for each in verdicts if each.falls_short}
        workloads = [each for each in workloads if each.name in short]
        if not workloads or time.monotonic() - start > SECONDS_MAX:
            break
    return verdicts, calibrations


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--accept", action="store_true", help="take this run's figures")
    given = parser.parse_args()
    accepted: dict[str, float] = {}
    if ACCEPTED.exists() and not given.accept:
        accepted = json.loads(ACCEPTED.read_text())
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    verdicts, calibrations = measure(accepted, load / cores)
    print(f"{unsteadiness(calibrations):.2f} times slower at worst than at best")
    print(f"{cores} cores, load before {load:.1f}, {load / cores:.1f} for each core")
    for verdict in verdicts:
        print(verdict.line())
    if given.accept:
        figures = {each.name: float(f"{each.figure:.4g}") for each in verdicts}
        ACCEPTED.write_text(json.dumps(figures, indent=2) + "\n")
        if any(each.unsteadiness > UNSTEADY for each in verdicts):
            print("accepted on an unsteady machine: accept again on a quiet one")
    if any(each.fails for each in verdicts):
        print(
            f"below {SHARE_MIN:.0%} of the accepted figure, in the best of {ATTEMPTS_MAX} attempts:"
            " something got slower; `python -m bench.client` shows where the time goes"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
