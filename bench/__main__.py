"""`python -m bench`: the formats, then the workloads of `waltz bench`, a line at a time."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import formats
from waltz.bench.benchmark import run_all
from waltz.bench.calibration import calibrate
from waltz.bench.results import Result
from waltz.bench.workload import choose, read_workloads

WORKLOADS = ("one-at-a-time", "submit-locks", "append-many", "commit-to-apply", "feed-callbacks")
SECONDS = 5.0
ROUNDS = 3


def show(result: Result) -> None:
    for line in result.lines():
        print(line, flush=True)


def main() -> int:
    calibration = calibrate()
    for line in [*calibration.lines(), *formats.measure(calibration)]:
        print(line, flush=True)
    chosen = choose(read_workloads(), WORKLOADS)
    run_all([each.short(SECONDS, ROUNDS) for each in chosen], Path.cwd(), show)
    return 0


if __name__ == "__main__":
    sys.exit(main())
