"""The judge of what a relay has done: compares the log with what the application has committed.

Imports nothing of `waltz.outbox`, nor the client that relays write with: the log is read by ranges.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import waltz

Fact = tuple[str, int]
"""An account and a number."""


def read_log(cluster: str) -> list[list[Fact]]:
    """Return the facts in the log, per partition in order."""
    found = []
    with waltz.open_reader(cluster) as log:
        for partition_id in range(log.partition_count):
            end = log.high_water_mark(partition_id) + 1
            facts: list[Fact] = []
            for columns in log.read(partition_id, 0, end):
                for place, header in enumerate(columns.headers.tolist()):
                    content = json.loads(columns.data[place])
                    assert content["number"] == header
                    facts.append((content["account"], content["number"]))
            found.append(facts)
    return found


def faults(log: list[list[Fact]], committed: Iterable[Fact]) -> list[str]:
    """Return what is wrong; nothing if each committed row is in the log once, no other is, and each
    account is in one partition, in the order of its numbers."""
    committed = set(committed)
    wrong = []
    counts = Counter(fact for facts in log for fact in facts)
    wrong += [f"{fact} is in the log {n} times" for fact, n in counts.items() if n > 1]
    wrong += [f"{fact} was never committed" for fact in counts.keys() - committed]
    wrong += [f"{fact} is not in the log" for fact in committed - counts.keys()]
    place: dict[str, int] = {}
    for partition_id, facts in enumerate(log):
        last: dict[str, int] = {}
        for account, number in facts:
            if place.setdefault(account, partition_id) != partition_id:
                wrong.append(f"{account} is in partitions {place[account]} and {partition_id}")
            if number < last.get(account, 0):
                wrong.append(f"{account}: {number} comes after {last[account]}")
            last[account] = number
    return wrong
