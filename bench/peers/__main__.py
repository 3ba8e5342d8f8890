"""Measure Waltz and its peers, and print the league: make league

python -m bench.peers --json bench/league.json           # what can be run here, Waltz too
python -m bench.peers --only Redis --seconds 1 --rounds 1
python -m bench.peers --trial ...                        # the page says that these are no figures
python -m bench.peers --print bench/league.json > docs/league.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.peers.etcd import Etcd
from bench.peers.kafka import Kafka, SyncedKafka
from bench.peers.league import page
from bench.peers.nats import Nats
from bench.peers.ours import Ours
from bench.peers.peer import LOADS, Found, Peer, UnavailableHereError, say
from bench.peers.postgresql import PostgreSql, ReplicatedPostgreSql
from bench.peers.redis import Redis
from waltz.bench.calibration import calibrate
from waltz.bench.signals import ended_in_order

SPARK_FIGURES: Final = Path(__file__).parent.parent / "spark_league.json"
"""The figures of the section on Spark, from `python -m bench.spark_league`."""


def spark_figures() -> dict[str, Any] | None:
    """Return the figures of the section on Spark; None: it has not been measured."""
    if not SPARK_FIGURES.exists():
        return None
    value: dict[str, Any] = json.loads(SPARK_FIGURES.read_text())
    return value


def peers() -> list[Peer]:
    return [
        Ours(),
        Etcd(),
        ReplicatedPostgreSql(),
        PostgreSql(),
        SyncedKafka(),
        Kafka(),
        Nats(),
        Redis(),
    ]


def measure(peer: Peer, seconds: float, rounds: int) -> dict[str, Any]:
    """Return the results of a peer: the median round, by rate, of each load."""
    say(f"{peer.name}: calibrating")
    calibration = calibrate()
    found: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as scratch:
        Path(scratch).chmod(0o755)  # PostgreSQL runs as another user
        directory = Path(scratch) / "data"
        directory.mkdir()
        try:
            with peer.running(directory):
                for load in LOADS:
                    say(f"{peer.name}: {load.name}")
                    try:
                        each = [peer.measure(load, seconds) for _ in range(rounds)]
                    except UnavailableHereError as error:
                        missing[load.name] = str(error)
                        continue
                    found[load.name] = asdict(median_round(each))
        except UnavailableHereError as error:
            missing["all"] = str(error)
    return {
        "calibration": asdict(calibration),
        "durability": peer.durability,
        "driver": peer.driver,
        "batching": peer.batching,
        "found": found,
        "missing": missing,
    }


def median_round(rounds: Sequence[Found]) -> Found:
    """Return the one in the middle, by rate."""
    return sorted(rounds, key=lambda each: each.transactions / each.seconds)[len(rounds) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", help="peers whose name has this in it")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trial", action="store_true", help="mark the page as a trial")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--print", dest="printed", type=Path, help="only print these figures")
    given = parser.parse_args()
    if given.printed is not None:
        print(page(json.loads(given.printed.read_text()), spark_figures()), end="")
        return 0
    load_before = os.getloadavg()[0]
    chosen = [
        each for each in peers() if given.only is None or given.only.lower() in each.name.lower()
    ]
    with ended_in_order():
        systems = {each.name: measure(each, given.seconds, given.rounds) for each in chosen}
    value = {
        "trial": given.trial,
        "machine": {
            "cores": os.cpu_count(),
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
        },
        "seconds": given.seconds,
        "rounds": given.rounds,
        "systems": systems,
    }
    print(page(value, spark_figures()), end="")
    if given.json is not None:
        given.json.write_text(json.dumps(value, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
