"""A cluster of processes under load and faults, judged at its end: `make smoke`.

make smoke N=1000000 SEED=7
python -m tests.smoke --transactions 1000000 --seed 7 --json result.json

Three servers, three storage nodes, a ZooKeeper and four clients; all the time one of them is
killed, stopped, told to end, or cut off. The picture has a line for each change: `s1:5` is server 1
with five partitions, `S2` a storage node, `zk` the ZooKeeper.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.live.launch import run_directory
from tests.smoke.run import Settings, smoke

VIOLATIONS_SHOWN = 20
MIB = 1024**2
BEGAN = time.monotonic()


def say(line: str) -> None:
    print(line, flush=True)


def tell(line: str) -> None:
    """Print a line of the run, behind how long it has lasted."""
    say(f"{time.monotonic() - BEGAN:7.1f} s  {line}")


def show(result: dict[str, Any]) -> None:
    say(
        f"\n{result['committed']:,} of {result['submitted']:,} contexts committed in"
        f" {result['seconds']:,.1f} s ({result['commits_per_second']:,}/s);"
        f" {result['in_the_log']:,} transactions in the log, {result['attempts']:,} attempts,"
        f" {result['refusals']:,} refused locks"
    )
    say(f"verdicts: {', '.join(f'{name} {n:,}' for name, n in result['verdicts'].items())}")
    say(f"{result['fault_count']} faults:")
    for name, count in result["faults"].items():
        say(f"  {count:>5} x {name}")
    say("memory, at the end of the load and at most:")
    for name, now in result["memory_bytes"].items():
        peak = result["memory_bytes_peak"][name]
        say(f"  {name:<10} {now / MIB:6.0f} MiB {peak / MIB:6.0f} MiB")
    say(f"  a client   {'':>10} {result['client_memory_bytes_peak'] / MIB:6.0f} MiB")
    say(f"checksums, equal at all clients and in the log: {' '.join(result['checksums'])}"
        if not result["violations"] else "")  # fmt: skip
    for violation in result["violations"][:VIOLATIONS_SHOWN]:
        say(f"VIOLATION {violation}")
    say(f"{len(result['violations'])} violations")


async def main_task(settings: Settings) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await smoke(settings, tell)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.smoke", description=__doc__)
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--seed", default="1", help="decides load and faults")
    parser.add_argument("--seconds", type=float, default=3600.0, help="for the load, at most")
    parser.add_argument("--calm", action="store_true", help="without faults")
    parser.add_argument("--forgetful", action="store_true", help="a client has a bug: must fail")
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--directory", type=Path, help="keep all files there; must not exist")
    given = parser.parse_args()
    result: dict[str, Any] | None = None
    with run_directory(given.directory, "smoke") as files:
        # What this process hears of the ZooKeeper is the picture's business.
        logging.basicConfig(filename=files.path / "log", level=logging.INFO)
        settings = Settings(
            given.transactions,
            given.seed,
            given.seconds,
            files.path,
            faults=not given.calm,
            forgetful=given.forgetful,
        )
        try:
            result = asyncio.run(main_task(settings))
        except (KeyboardInterrupt, asyncio.CancelledError):
            say("stopped; all processes have ended")
            return 130
        files.is_kept = bool(result["violations"])
    show(result)
    if given.json is not None:
        given.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
