"""Judges of a cluster whose network was cut: what servers said, and what lies on the replicas'
disks, against the log as it is read in the end. What clients did and saw is judged in `tests/live`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

Log = Mapping[int, Sequence[bytes]]
"""Per partition the data of all transactions, from the first on."""


def judge_replica(log: Log, name: str, found: Log) -> Iterator[str]:
    """Every replica holds the one history, and all of it."""
    for partition, records in log.items():
        held = list(found.get(partition, ()))
        if held != list(records):
            pairs = enumerate(zip(held, records, strict=False))
            differing = next((number for number, (a, b) in pairs if a != b), None)
            yield (
                f"{name} holds {len(held)} transactions of partition {partition}, the log has"
                f" {len(records)}; the first that differs: {differing}"
            )


OPENED = re.compile(r"partition_opened partition=(\d+) generation=(\d+)")
SESSION = re.compile(r"store_opened partition=(\d+) session=(\d+) mark=(-?\d+)")


def judge_servers(logs: Mapping[str, str]) -> Iterator[str]:
    """No two servers have a partition in one generation or one session, and a later session never
    starts before an earlier one's mark."""
    owners: dict[tuple[str, str], set[str]] = {}
    sessions: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for server, text in logs.items():
        for partition, generation in OPENED.findall(text):
            owners.setdefault((partition, generation), set()).add(server)
        for found, session, mark in SESSION.findall(text):
            sessions.setdefault((int(found), int(session)), []).append((server, int(mark)))
        for line in text.splitlines():
            if " ERROR " in line or "partition_failed" in line:
                yield f"{server} said: {line}"
    for (partition, generation), names in owners.items():
        if len(names) > 1:
            yield f"generation {generation} of partition {partition} was {sorted(names)}'s"
    marks: dict[int, int] = {}
    for (number, session_id), opened in sorted(sessions.items()):
        if len(opened) > 1:
            yield f"session {session_id} of partition {number} was opened {len(opened)} times"
        mark = opened[0][1]
        if mark < marks.get(number, -1):
            yield f"session {session_id} of {number} began at {mark}, behind {marks[number]}"
        marks[number] = max(mark, marks.get(number, -1))


def judge_metadata(sampled: Sequence[Mapping[int, tuple[int, int]]]) -> Iterator[str]:
    """Generation and session of a partition never go back; `sampled` in the order of time."""
    for before, after in pairwise(sampled):
        for partition, (generation, session) in after.items():
            was = before[partition]
            if generation < was[0] or session < was[1]:
                yield f"partition {partition} went from {was} back to {(generation, session)}"
