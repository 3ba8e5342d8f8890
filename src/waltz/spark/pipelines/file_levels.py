"""Chooses the files of a bucket that become part of a new one, so that a bucket has few files and
its rows are seldom written again. Pure.

A file is of level n if it has at least 4 to the power of n rows, and fewer than four times as many.
Once a bucket has several files up to the level of a new one, these and the new one become one file,
of a higher level. So most rows are written again once per level, and a bucket has at most four
files per level.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

FAN_INS: Final = (3, 4, 5)
"""Numbers of files that become one, the new one included. Which of them holds depends on bucket and
batch: with one number for all, all buckets of a table would be written anew by the same batch,
which would take many times as long as the others."""


class PresentFile(NamedTuple):
    """A file that a bucket has."""

    path: str
    row_count: int


def fan_in(bucket: int, batch: int) -> int:
    """Return the number of files of a bucket that become one in the batch of that number; the same
    each time that a task runs."""
    return FAN_INS[zlib.crc32(b"%d %d" % (bucket, batch)) % len(FAN_INS)]


def level(row_count: int) -> int:
    """Return the level of a file with this number of rows."""
    return (max(row_count, 1).bit_length() - 1) // 2


def merged_files(row_count: int, others: Sequence[PresentFile], fan_in: int) -> list[PresentFile]:
    """Return those of the `others` that become part of a new file, which has `row_count` rows
    without them; the smallest first."""
    remaining, merged = sorted(others, key=lambda each: each.row_count), 0
    while True:
        reach = merged
        while reach < len(remaining) and level(remaining[reach].row_count) <= level(row_count):
            reach += 1
        if reach - merged < fan_in - 1:
            return remaining[:merged]
        row_count += sum(each.row_count for each in remaining[merged:reach])
        merged = reach
