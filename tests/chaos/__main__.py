"""Connections between clients and servers under chaos: `make chaos`.

make chaos SCHEDULES=1000 SEED=7
python -m tests.chaos --seed 7 --only 17        # one schedule again, on a fresh cluster
python -m tests.chaos --seed 7 --only 17 --show # what it does

Clusters of processes whose servers are reached through proxies, which delay, trickle, cut, cut
short, half-close, swallow and replay. Each schedule is judged by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from tests.chaos.cluster import SERVERS
from tests.chaos.run import Result, Settings, run
from tests.chaos.schedule import draw_schedule
from tests.live.launch import run_directory

LANES = 3
VIOLATIONS_SHOWN = 10


def say(line: str) -> None:
    print(line, flush=True)


def show_failures(settings: Settings, result: Result) -> None:
    for number, violations in result.failures:
        for each in violations[:VIOLATIONS_SHOWN]:
            say(f"VIOLATION in schedule {number}: {each}")
        again = f"--only {number}" if number >= 0 else f"--schedules {len(settings.numbers)}"
        say(f"replay: python -m tests.chaos --seed {settings.seed} {again}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--schedules", type=int, default=100)
    parser.add_argument("--seed", default="1", help="decides what is done, and the load")
    parser.add_argument("--only", type=int, help="only the schedule of this number")
    parser.add_argument("--show", action="store_true", help="with --only: print it and end")
    parser.add_argument("--seconds", type=float, default=86_400.0, help="then nothing more begins")
    parser.add_argument("--lanes", type=int, default=LANES, help="clusters side by side")
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--directory", type=Path, help="keep all files there; must not exist")
    given = parser.parse_args()
    if given.show:
        schedule = draw_schedule(given.seed, given.only or 0, SERVERS)
        say(json.dumps(schedule.as_data(), indent=1))
        return 0
    numbers = range(given.schedules) if given.only is None else [given.only]
    began = time.monotonic()
    lanes = min(given.lanes, len(numbers))
    with run_directory(given.directory, "chaos") as files:
        logging.basicConfig(filename=files.path / "log", level=logging.WARNING)
        settings = Settings(given.seed, numbers, lanes, files.path, given.seconds)
        result = asyncio.run(run(settings, say))
        files.is_kept = bool(result.failures)
    show_failures(settings, result)
    line = json.dumps(result.summary(time.monotonic() - began))
    say(line)
    if given.json is not None:
        given.json.write_text(f"{line}\n")
    return 1 if result.failures else 0


if __name__ == "__main__":
    sys.exit(main())
