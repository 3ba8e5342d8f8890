"""The order of the tests in a run of several processes: what takes long first, what is started once
in one process.

Owns which test runs when, from the recorded durations (`shares.py`). pytest-xdist deals the tests
in pieces of equal number to its processes, and a process without work takes the last half of what
another one has left (`--dist worksteal`). Each piece begins with tests that take long, dealt so
that all pieces need about the same time for them, and ends with quick ones: a process that has
nothing to do takes these, so that all are busy to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.shares import Durations, file_of

STARTED_ONCE: Final = {
    "started_spark": "tests/spark",
    "running": "tests/spark",
    "operators_zookeeper": "tests/cli",
    "servers": "tests/client",
    "zookeeper": "tests/system",
    "cluster": "tests/bench",
    "image": "tests/deploy",
    "kafka_broker": "tests",
}
"""Fixtures that start processes once for the tests of a folder: these tests run in one process of
pytest, or each would start its own."""

LIGHT_SECONDS: Final = 1.0
"""A group of tests that takes less fills up the pieces, and may be cut at the end of one."""


UNRECORDED_SECONDS: Final = 0.2
"""A test of a file without recorded durations is taken to need this: that most such tests need less
costs nothing, and one that starts processes may not begin last."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A test as it was collected: its name, and the fixtures that it uses."""

    name: str
    fixtures: Sequence[str] = ()


@dataclass(slots=True)
class Group:
    """Tests that run one after the other in one process, by their index in the collection."""

    tests: list[int] = field(default_factory=list)
    seconds: float = 0.0


def group_of(test: Collected) -> str:
    """Return the folder of what is started once for the test, or else its file."""
    for fixture, folder in STARTED_ONCE.items():
        if fixture in test.fixtures and test.name.startswith(f"{folder}/"):
            return folder
    return file_of(test.name)


def grouped(tests: Sequence[Collected], durations: Durations) -> list[Group]:
    """Return all tests in groups, the group that takes longest first."""
    counts: dict[str, int] = {}
    for test in tests:
        file = file_of(test.name)
        counts[file] = counts.get(file, 0) + 1
    groups: dict[str, Group] = {}
    for index, test in enumerate(tests):
        group = groups.setdefault(group_of(test), Group())
        group.tests.append(index)
        group.seconds += seconds_of(test, durations, counts)
    return sorted(groups.values(), key=lambda each: (-each.seconds, each.tests[0]))


def seconds_of(test: Collected, durations: Durations, counts: Mapping[str, int]) -> float:
    """Return the recorded seconds of a test, or its part of those of its file;
    `UNRECORDED_SECONDS` if neither is recorded."""
    for recorded in (durations.long, durations.single):
        if test.name in recorded:
            return recorded[test.name]
    file = file_of(test.name)
    if file not in durations.others:
        return UNRECORDED_SECONDS
    return durations.others[file] / counts[file]


def sizes(count: int, pieces: int) -> list[int]:
    """Return how many of `count` tests pytest-xdist gives to each process at the beginning."""
    given: list[int] = []
    for left in range(pieces, 0, -1):
        given.append((count - sum(given)) // left)
    return given


def in_order(tests: Sequence[Collected], durations: Durations, processes: int) -> list[int]:
    """Return the indices of the tests in the order in which to run them, each once."""
    groups = grouped(tests, durations)
    pieces: list[list[int]] = [[] for _ in range(processes)]
    seconds = [0.0] * processes
    for group in groups:
        if group.seconds >= LIGHT_SECONDS:
            least = seconds.index(min(seconds))
            pieces[least] += group.tests
            seconds[least] += group.seconds
    light = [test for group in groups if group.seconds < LIGHT_SECONDS for test in group.tests]
    for piece, size in zip(pieces, sizes(len(tests), processes), strict=True):
        missing = max(0, size - len(piece))
        piece += light[:missing]
        del light[:missing]
    pieces[-1] += light
    return [test for piece in pieces for test in piece]
