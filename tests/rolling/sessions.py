"""The sessions of a drill's partitions, and the server that assigns them, by the servers' logs.

Knows the lines of ours and those of the original's role; one log may have both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.rolling.road import Road

OURS, ORIGINAL = "ours", "original"
OPENED: Final = {
    OURS: re.compile(r"store_opened partition=(\d+) session=(\d+) mark=(-?\d+)"),
    ORIGINAL: re.compile(r"partition (\d+), session (\d+): open at (-?\d+)"),
}
REGISTERED: Final = re.compile(r"server_registered server_id=(\d+)| server (\d+) is /")


@dataclass(frozen=True, order=True)
class Opened:
    """A session that has recovered its partition to `mark`; `by`: the manner of its server."""

    partition: int
    session: int
    mark: int
    by: str


def opened_sessions(road: Road) -> list[Opened]:
    """Return all sessions, those of a partition after each other."""
    return sorted(
        Opened(int(found[1]), int(found[2]), int(found[3]), by)
        for name in road.servers
        for by, pattern in OPENED.items()
        for found in pattern.finditer(road.cluster.servers[name].logged())
    )


def successions(sessions: list[Opened]) -> set[tuple[str, str]]:
    """Return by whom partitions were recovered after whom."""
    return {
        (before.by, after.by)
        for before, after in pairwise(sessions)
        if before.partition == after.partition
    }


def unsound(sessions: list[Opened]) -> Iterator[str]:
    """Yield what two sessions of a partition contradict each other in."""
    for before, after in pairwise(sessions):
        if before.partition == after.partition:
            if before.session == after.session:
                yield f"one session was opened twice: {before}, {after}"
            if before.mark > after.mark:
                yield f"the high-water mark has fallen: {before}, {after}"


def coordinator(road: Road) -> str:
    """Return the manner of the server that assigns partitions: its ID is the smallest."""
    newest = {}
    for name in road.servers:
        *_, found = REGISTERED.finditer(road.cluster.servers[name].logged())
        newest[name] = max(int(each) for each in found.groups() if each)
    return road.manners[min(newest, key=lambda name: newest[name])].name
