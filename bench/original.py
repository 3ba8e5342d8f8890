"""Waltz next to its original in Java: make original

The original's figures are in this file: it is in no package registry, and was measured earlier.
Those of Waltz are the output of `waltz bench 'original-*' --with-tls --json`.

    python -m bench.original bench/original.json > docs/original.md
    python -m bench.original > docs/original.md       # the original's figures alone
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HEAD: Final = """\
# Next to the original

Waltz's original is written in Java. Its figures were taken before those of Waltz, on a machine of
this kind: 1 server, 3 storage nodes and a ZooKeeper, all of them and the clients on 2 cores, TLS on
(it cannot be switched off), heaps of 1 GiB; medians of 3 runs with nothing else on the machine. No
command measures the original again: Maven Central does not have it (`com.wepay.waltz` is answered
with 404); it has to be built from its source, which `javac` does with the jars that Debian has.

So the two were not measured in one run, and there is no calibration of the original's machine to
divide by: a ratio shows a magnitude only. Printed by `make original` from `bench/original.json`,
the output of `waltz bench 'original-*' --with-tls --json`; nobody types in it.

The original fetches each body of a feed by a call. Waltz sends the bodies with the feed, which is
`feed-bodies`; in `feed-bodies-by-call` Waltz fetches them as the original does.
"""

COLUMNS: Final = (
    "Workload",
    "original, per second",
    "p50 ms",
    "p99 ms",
    "Waltz, per second",
    "p50 ms",
    "p99 ms",
    "ratio of the rates",
)

BYTES: Final = (100, 512, 4096)
NAME_FIRST: Final = "original-"


@dataclass(frozen=True, slots=True)
class Measured:
    """Transactions per second; latencies of an append in milliseconds, None if not measured."""

    rate: float
    p50: float | None = None
    p99: float | None = None


Three = tuple[Measured, Measured, Measured]
"""With 100 B, 512 B and 4 KiB of data in each transaction."""

APPENDS: Final[Mapping[str, Three]] = {
    "1-partition-one-at-a-time": (
        Measured(854, 0.97, 5.0),
        Measured(836, 1.00, 4.8),
        Measured(695, 1.18, 5.3),
    ),
    "1-partition-1x5": (
        Measured(2_584, 1.64, 5.8),
        Measured(2_513, 1.65, 6.0),
        Measured(2_150, 1.93, 7.2),
    ),
    "1-partition-4x5": (
        Measured(5_723, 2.9, 8.0),
        Measured(5_800, 3.1, 8.7),
        Measured(4_861, 3.6, 10),
    ),
    "1-partition-1x64": (
        Measured(16_439, 3.3, 9.9),
        Measured(14_754, 3.6, 12),
        Measured(12_780, 4.5, 11),
    ),
    "4-partitions-1x20": (
        Measured(4_400, 4.1, 8.9),
        Measured(4_272, 4.3, 10),
        Measured(3_513, 5.2, 14),
    ),
    "4-partitions-4x20": (
        Measured(9_195, 8.0, 17),
        Measured(7_890, 9.0, 32),
        Measured(7_284, 9.9, 24),
    ),
    "4-partitions-1x256": (
        Measured(21_567, 10.7, 29),
        Measured(18_641, 11.7, 29),
        Measured(14_161, 16.8, 33),
    ),
}
"""By partitions, then clients x the outstanding transactions of each; 5 is its default."""

BODIES_OF_ONE: Final = (Measured(5_788), Measured(5_387), Measured(4_313))
BODIES_OF_FOUR: Final = (Measured(6_317), Measured(6_506), Measured(5_443))

FEEDS: Final[Mapping[str, Three]] = {
    "feed-headers-1": (Measured(93_134), Measured(87_994), Measured(68_258)),
    "feed-headers-4": (Measured(133_761), Measured(118_017), Measured(85_690)),
    "feed-bodies-1": BODIES_OF_ONE,
    "feed-bodies-4": BODIES_OF_FOUR,
    "feed-bodies-by-call-1": BODIES_OF_ONE,
    "feed-bodies-by-call-4": BODIES_OF_FOUR,
}
"""By partitions; of the newest records. The original gets bodies only by one call each; Waltz sends
them along unless told not to."""

ALONE: Final = """\
## What has no counterpart

Measured of the original only; transactions a second with 1 and 4 partitions.

| | 100 B | 512 B | 4 KiB |
|---|---:|---:|---:|
| its performance tool, producers, 1 thread | 1,366 and 1,790 | 1,498 and 1,703 | 1,289 and 1,559 |
| the same, 8 threads | 1,131 and 2,983 | 1,164 and 2,662 | 1,042 and 2,693 |
| feed with bodies, from disk, 4 partitions | 3,137 (2,146 to 6,380) | 2,332 | |
"""

MEMORY: Final = {"server": 831, "storage": 313, "coordinator": 94}
"""Resident after load, in megabytes; the coordinator is a ZooKeeper."""


def originals() -> dict[str, Measured]:
    """Return the original's figures by the name of the workload that is like them."""
    return {
        f"{NAME_FIRST}{name}-{size}": measured
        for name, three in {**APPENDS, **FEEDS}.items()
        for size, measured in zip(BYTES, three, strict=True)
    }


def page(value: Mapping[str, Any] | None) -> str:
    """Return the page. `value` is the output of `waltz bench --json`; None if there is none yet."""
    return "\n".join(_lines(value)).rstrip() + "\n"


def _lines(value: Mapping[str, Any] | None) -> Iterator[str]:
    yield HEAD
    found = originals()
    results: dict[str, Any] = {}
    if value is None:
        yield "Waltz has not been measured yet.\n"
    else:
        results = {
            name: each for each in value["results"] if (name := each["workload"]["name"]) in found
        }
        plain = sum(not each["workload"]["tls"] for each in results.values())
        yield (
            f"Waltz: {value['cores']} cores, load {value['load_before']:.1f} before and"
            f" {value['load_after']:.1f} after;"
            f" {f'{plain} of the workloads without TLS' if plain else 'TLS on everything'}.\n"
        )
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" + "|---:" * (len(COLUMNS) - 1) + "|"
    for name, original in found.items():
        yield _row(name, original, results.get(name))
    yield "\n## Memory\n"
    yield "Resident memory of the largest process of a kind after load, in megabytes.\n"
    yield "| | original | Waltz |"
    yield "|---|---:|---:|"
    for role, megabytes in MEMORY.items():
        sizes = [each["memory"][role] for each in results.values() if role in each["memory"]]
        yield _line(role, str(megabytes), f"{max(sizes) / 1e6:.0f}" if sizes else "")
    yield f"\n{ALONE}"


def _row(name: str, original: Measured, result: Mapping[str, Any] | None) -> str:
    ours = None
    if result is not None:
        latency = {each: value * 1e3 for each, value in result["latency_seconds"].items()}
        ours = Measured(result["rate"]["median"], latency.get("p50"), latency.get("p99"))
    ratio = "" if ours is None else f"{ours.rate / original.rate:.1f}"
    return _line(name.removeprefix(NAME_FIRST), *_cells(original), *_cells(ours), ratio)


def _line(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _cells(measured: Measured | None) -> Iterator[str]:
    if measured is None:
        yield from ("", "", "")
        return
    yield f"{measured.rate:,.0f}"
    for latency in (measured.p50, measured.p99):
        yield "" if latency is None else f"{latency:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.original",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figures", type=Path, nargs="?", help="output of `waltz bench --json`")
    given = parser.parse_args()
    value = None if given.figures is None else json.loads(given.figures.read_text())
    print(page(value), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
