"""The judge of what a bridge has done: compares what a receiver has kept with the log.

Imports nothing of `waltz.bridge`; the log is read by ranges.
"""

from __future__ import annotations

import base64
from pathlib import Path

import waltz

Fact = tuple[int, int, bytes]
"""ID, header and data of a transaction."""


def read_log(cluster: str) -> list[list[Fact]]:
    """Return the transactions in the log, per partition in order."""
    found = []
    with waltz.open_reader(cluster) as log:
        for partition_id in range(log.partition_count):
            facts: list[Fact] = []
            for columns in log.read(partition_id, 0, log.high_water_mark(partition_id) + 1):
                first = columns.first_transaction_id
                for place, header in enumerate(columns.headers.tolist()):
                    facts.append((first + place, header, columns.data[place]))
            found.append(facts)
    return found


def read_received(path: Path, partition_count: int) -> list[list[Fact]]:
    """Return what the receiver has kept, per partition in the order of arrival, repeats too."""
    found: list[list[Fact]] = [[] for _ in range(partition_count)]
    for line in path.read_text().splitlines():
        partition, number, header, data = line.split(" ")
        found[int(partition)].append((int(number), int(header), base64.b64decode(data)))
    return found


def faults(log: list[list[Fact]], received: list[list[Fact]]) -> list[str]:
    """Return what is wrong; nothing if what each partition received, but for the repeats, is its
    log: all of it, in order, and with the same content at each repeat."""
    wrong = []
    for partition_id, (facts, came) in enumerate(zip(log, received, strict=True)):
        first: dict[int, Fact] = {}
        for fact in came:
            if first.setdefault(fact[0], fact) != fact:
                wrong.append(f"partition {partition_id}: {fact[0]} came with two contents")
        kept = list(first.values())
        if kept != facts:
            at = next(
                (n for n, (a, b) in enumerate(zip(kept, facts, strict=False)) if a != b),
                min(len(kept), len(facts)),
            )
            wrong.append(
                f"partition {partition_id}: {len(kept)} received, {len(facts)} in the log, which"
                f" differ from {at} on"
            )
    return wrong


def repeats(received: list[list[Fact]]) -> int:
    return sum(len(each) - len({fact[0] for fact in each}) for each in received)
