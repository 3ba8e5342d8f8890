"""The long tests, dealt into ten shares of about equal time, which take turns, seven a day.

Owns which long test is in which share, and the recorded durations: `durations.tsv` has a line per
test that took long enough to matter, and a line per file for the sum of its other tests.

    make test-share              # the share of the hour
    make test-share SHARE=3
    make durations               # run everything and record anew
    make durations TESTS=tests/cli
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import Path
from typing import Any, Final

import pytest

DURATIONS: Final = Path(__file__).with_name("durations.tsv")

SHARES: Final = 10

TURNS_PER_DAY: Final = 7
"""Turns of shares in a day. The number has no factor in common with that of the shares, so ten runs
at one hour of ten days, and ten runs in turns that follow each other, run every long test."""

SECONDS_PER_DAY: Final = 24 * 60 * 60

SECONDS_MIN: Final = 0.2
"""A test that is not long and takes less is recorded in the sum of its file."""


def one_in(count: int, values: Iterable[Any]) -> Sequence[Any]:
    """Return the values of a parameter: the first and every `count`-th are in `make test`, the
    others are long."""
    return [
        each if index % count == 0 else pytest.param(each, marks=pytest.mark.long)
        for index, each in enumerate(values)
    ]


@dataclass(frozen=True, slots=True)
class Durations:
    """Seconds of a whole run, on two quiet cores with two processes.

    `long` and `single` by test, `others` by file: its tests that are in neither.
    """

    long: dict[str, float] = field(default_factory=dict)
    single: dict[str, float] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)


def file_of(test: str) -> str:
    return test.partition("::")[0]


def recorded(seconds: Mapping[str, float], long: Iterable[str]) -> Durations:
    """Return what the durations of all tests come to; `long`: those with the marker."""
    durations = Durations()
    marked = set(long)
    for test, value in sorted(seconds.items()):
        file = file_of(test)
        durations.others.setdefault(file, 0.0)
        if test in marked:
            durations.long[test] = round(value, 2)
        elif value >= SECONDS_MIN:
            durations.single[test] = round(value, 2)
        else:
            durations.others[file] += value
    return durations


def renewed(before: Durations, seconds: Mapping[str, float], long: Iterable[str]) -> Durations:
    """Return `before` with what the durations of a run come to; arguments as for `recorded`.

    A file of which a test that is not long ran has no other rows of such tests afterwards.
    """
    marked = set(long)
    now = recorded(seconds, marked)
    short = {file_of(test) for test in seconds if test not in marked}
    return Durations(
        {test: each for test, each in before.long.items() if test not in seconds} | now.long,
        {test: each for test, each in before.single.items() if file_of(test) not in short}
        | now.single,
        before.others | {file: now.others[file] for file in short},
    )


def printed(durations: Durations) -> str:
    """Return the text of `durations.tsv`: kind, seconds, test or file."""
    kinds = (("long", durations.long), ("test", durations.single), ("rest", durations.others))
    return "".join(
        f"{kind}\t{seconds:.2f}\t{name}\n"
        for kind, values in kinds
        for name, seconds in sorted(values.items())
    )


def parsed(text: str) -> Durations:
    durations = Durations()
    kinds = {"long": durations.long, "test": durations.single, "rest": durations.others}
    for line in text.splitlines():
        kind, seconds, name = line.split("\t", 2)
        kinds[kind][name] = float(seconds)
    return durations


def read_durations() -> Durations:
    return parsed(DURATIONS.read_text())


def deal(seconds: Mapping[str, float]) -> dict[str, int]:
    """Return the share of each test: the longest first, each to the share with the least time."""
    sums = [0.0] * SHARES
    shares = {}
    for test in sorted(seconds, key=lambda each: (-seconds[each], each)):
        share = shares[test] = sums.index(min(sums))
        sums[share] += seconds[test]
    return shares


def in_share(tests: Iterable[str], share: int, seconds: Mapping[str, float]) -> list[str]:
    """Return those of the long `tests` that are in the share, in their order.

    A test without recorded seconds is in the share that its name draws, so that no test changes
    its share because another one was added.
    """
    dealt = deal(seconds)
    return [each for each in tests if dealt.get(each, zlib.crc32(each.encode()) % SHARES) == share]


def share_at(moment: datetime) -> int:
    seconds = (moment - datetime.combine(moment.date(), time())).total_seconds()
    turn = int(seconds * TURNS_PER_DAY // SECONDS_PER_DAY)
    return (moment.toordinal() * TURNS_PER_DAY + turn) % SHARES


def share_from(text: str) -> int:
    """Return the share that a command names, `now` or its number; raises ValueError."""
    share = share_at(datetime.now()) if text == "now" else int(text)
    if not 0 <= share < SHARES:
        raise ValueError(f"shares are 0 to {SHARES - 1}, not {share}")
    return share
