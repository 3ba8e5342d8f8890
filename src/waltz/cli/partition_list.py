"""Partition IDs as people write them: `0-6,7,10-16`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import click

from waltz.limits import PARTITIONS_MAX
from waltz.types import PartitionId


class PartitionListType(click.ParamType[tuple[PartitionId, ...]]):
    """An option of numbers and ranges with commas between; the value is sorted, each ID once."""

    name = "0-6,7"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[PartitionId, ...]:
        if not isinstance(value, str):
            return tuple(value)
        try:
            return parse_partitions(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


PARTITIONS = PartitionListType()

partitions_option = click.option(
    "-p",
    "--partition",
    "partition_ids",
    type=PARTITIONS,
    required=True,
    help="For example 0-6,7,10.",
)
"""The option of commands that take `partition_ids`, at least one."""


def parse_partitions(text: str) -> tuple[PartitionId, ...]:
    """Return the IDs, sorted. Raises ValueError: not of that form, a range that runs backwards, or
    an ID too large."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first.strip(), last.strip()) if dash else (first.strip(), first.strip())
        if not all(end.isascii() and end.isdigit() for end in ends):
            raise ValueError(f"{part.strip()!r} is no partition; expected numbers, as in 0-6,7")
        low, high = map(int, ends)
        if high >= PARTITIONS_MAX:
            raise ValueError(
                f"partition {high} is out of range; expected 0 to {PARTITIONS_MAX - 1}"
            )
        if low > high:
            raise ValueError(f"range {part.strip()} runs backwards; did you mean {high}-{low}?")
        ranges.append((low, high))
    found: list[PartitionId] = []
    for low, high in sorted(ranges):  # each ID is made once, however many ranges have it
        start = max(low, found[-1] + 1 if found else 0)
        found.extend(map(PartitionId, range(start, high + 1)))
    return tuple(found)


def listed_partitions(partition_ids: Iterable[int]) -> str:
    """Return the IDs in the same form, as short as possible; `none` if there are none."""
    runs = [
        _run([number for _, number in run])
        for _, run in groupby(
            enumerate(sorted({*partition_ids})), key=lambda entry: entry[1] - entry[0]
        )
    ]
    return ",".join(runs) or "none"


def _run(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
