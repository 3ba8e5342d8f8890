"""Offsets and how a range of the log is cut into tasks. Pure: no Spark, no connection.

An offset is *partition ID -> next transaction ID* and nothing else, so a range is half open: the
first ID is read, the end is not.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias, TypeVar

from waltz.errors import ConfigurationError, NotFoundError
from waltz.spark.codes import INVALID_OPTION, OUTSIDE_LOG, UNKNOWN_PARTITION
from waltz.types import PartitionId, TransactionId


@dataclass(frozen=True, slots=True)
class BeforeEnd:
    """The position `count` transactions before the end of a partition, or its first one."""

    count: int


Position: TypeAlias = TransactionId | Literal["earliest", "latest"] | BeforeEnd
"""An end of a range as a user may give it."""

FIRST_TRANSACTION_ID: Final = TransactionId(0)

BEFORE_END: Final = re.compile(r"latest-([0-9]{1,18})")

TASK_ROWS: Final = 100_000
"""A range shorter than twice this is not split unless more tasks are asked for: starting a task
costs as much as reading about ten thousand rows."""

PARTITION_DIGITS_MAX: Final = 10
"""Digits of a 32-bit number."""
TASKS_MAX: Final = 10_000
"""Tasks of one read."""

TASKS_PER_CORE: Final = 2
"""Tasks of one read per core, if each has little to do: starting one costs more than its rows."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TransactionRange:
    """The transactions `first` to `end - 1` of one partition; never empty when planned."""

    partition_id: PartitionId
    first: TransactionId
    end: TransactionId

    @property
    def row_count(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        return f"partition {self.partition_id}, transactions {self.first} to {self.end - 1}"


@dataclass(frozen=True, slots=True)
class Offsets:
    """The positions of `startingOffsets` or `endingOffsets`.

    `positions` has the partitions that were named; every other one is at `otherwise`.
    """

    otherwise: Position
    positions: Mapping[PartitionId, Position]

    def of(self, partition_id: PartitionId) -> Position:
        return self.positions.get(partition_id, self.otherwise)

    def expect_partitions(self, option: str, partition_ids: Collection[PartitionId]) -> None:
        """Check that only partitions that are read are named. Raises ConfigurationError."""
        for partition_id in self.positions:
            if partition_id not in partition_ids:
                raise ConfigurationError(
                    f"{UNKNOWN_PARTITION} option {option} names partition {partition_id}; the"
                    f" read has partitions {', '.join(map(str, sorted(partition_ids)))}"
                )


def parse_partitions(text: str) -> tuple[PartitionId, ...]:
    """Return the partitions written as "0-3,7", sorted, each once.

    Raises ConfigurationError: not that form, or a range that runs backwards.
    """
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        first, separator, last = part.strip().partition("-")
        last = last if separator else first
        if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
            raise ConfigurationError(
                f'{INVALID_OPTION} option partitions is {text!r}; expected the form "0-3,7"'
            )
        if max(len(first), len(last)) > PARTITION_DIGITS_MAX or not (
            int(first) <= int(last) < int(first) + TASKS_MAX
        ):
            raise ConfigurationError(
                f"{INVALID_OPTION} option partitions has the range {part.strip()!r}; expected"
                f" ascending, at most {TASKS_MAX} partitions"
            )
        ranges.append((int(first), int(last)))
    found: list[PartitionId] = []
    for low, high in sorted(ranges):  # each is made once, however many ranges have it
        start = max(low, found[-1] + 1 if found else 0)
        found.extend(map(PartitionId, range(start, high + 1)))
    return tuple(found)


def parse_offsets(option: str, text: str, otherwise: Literal["earliest", "latest"]) -> Offsets:
    """Return the offsets in `text`: earliest, latest, latest-1000, or JSON such as {"0": 17, "1":
    "latest"}.

    A partition that the JSON does not name is at `otherwise`.
    Raises ConfigurationError, naming `option`.
    """
    if (position := _named_position(text)) is not None:
        return Offsets(position, {})
    try:
        positions = json.loads(text)
    except (ValueError, RecursionError):
        positions = None
    if not isinstance(positions, dict):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} is {text!r}; expected earliest, latest,"
            ' latest-1000 or JSON such as {"0": 17, "1": "latest"}'
        )
    return Offsets(
        otherwise,
        {
            _partition_key(option, key): _position(option, key, value)
            for key, value in positions.items()
        },
    )


def _partition_key(option: str, key: str) -> PartitionId:
    if not (key.isascii() and key.isdigit() and len(key) <= PARTITION_DIGITS_MAX):
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} names partition {key!r}; expected a number"
        )
    return PartitionId(int(key))


def _named_position(text: str) -> Position | None:
    """Return what `text` names: an end of the log, or a number of transactions before its end."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if (found := BEFORE_END.fullmatch(text)) is not None:
        return BeforeEnd(int(found[1]))
    return None


def _position(option: str, key: str, value: object) -> Position:
    if isinstance(value, str) and (position := _named_position(value)) is not None:
        return position
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ConfigurationError(
            f"{INVALID_OPTION} option {option} puts partition {key} at {value!r}; expected a"
            " transaction ID, earliest, latest or latest-1000"
        )
    return TransactionId(value)


def select_partitions(
    selected: Sequence[PartitionId] | None, partition_count: int
) -> Sequence[PartitionId]:
    """Return `selected`, or all partitions if None.

    Raises ConfigurationError: the cluster has no such partition.
    """
    if selected is None:
        return [PartitionId(value) for value in range(partition_count)]
    for partition_id in selected:
        _expect_partition("partitions", partition_id, partition_count)
    return selected


def _expect_partition(option: str, partition_id: PartitionId, partition_count: int) -> None:
    if partition_id >= partition_count:
        raise ConfigurationError(
            f"{UNKNOWN_PARTITION} option {option} names partition {partition_id}; the cluster has"
            f" partitions 0 to {partition_count - 1}"
        )


def resolve_ranges(
    starting: Offsets,
    ending: Offsets,
    high_water_marks: Mapping[PartitionId, TransactionId],
    *,
    fail_on_data_loss: bool = True,
) -> list[TransactionRange]:
    """Return the range to read of each partition in `high_water_marks`, empty ranges left out.

    Without `fail_on_data_loss` offsets beyond a log are taken for its end. Raises
    ConfigurationError: offsets for a partition that is not read, or a start after its end. Raises
    NotFoundError: offsets beyond the high-water mark: the address leads to another cluster, or the
    log has lost data.
    """
    starting.expect_partitions("startingOffsets", high_water_marks)
    ending.expect_partitions("endingOffsets", high_water_marks)
    ranges = []
    for partition_id, high_water_mark in sorted(high_water_marks.items()):
        first, end = (
            resolve_position(
                option, offsets, partition_id, high_water_mark, fail_on_data_loss=fail_on_data_loss
            )
            for option, offsets in (("startingOffsets", starting), ("endingOffsets", ending))
        )
        if first > end:
            raise ConfigurationError(
                f"{INVALID_OPTION} partition {partition_id} starts at {first}, after its end {end}"
            )
        if first < end:
            ranges.append(TransactionRange(partition_id, first, end))
    return ranges


def resolve_position(
    option: str,
    offsets: Offsets,
    partition_id: PartitionId,
    high_water_mark: TransactionId,
    *,
    fail_on_data_loss: bool,
) -> TransactionId:
    """Return the position of the partition in `offsets`.

    Raises NotFoundError: beyond its log, unless that is taken for its end.
    """
    match offsets.of(partition_id):
        case "earliest":
            return FIRST_TRANSACTION_ID
        case "latest":
            return TransactionId(high_water_mark + 1)
        case BeforeEnd(count):
            return TransactionId(max(FIRST_TRANSACTION_ID, high_water_mark + 1 - count))
        case position:
            if position > high_water_mark + 1:
                if not fail_on_data_loss:
                    return TransactionId(high_water_mark + 1)
                raise NotFoundError(
                    f"{OUTSIDE_LOG} option {option} puts partition {partition_id} at {position};"
                    f" its high-water mark is {high_water_mark}"
                )
            return position


def task_count_max(row_count: int, task_count_min: int, cores: int | None = None) -> int:
    """Return the most tasks of a read of `row_count` rows that is not told: two for each core of
    this machine, or more if they would be large, or if more were asked for."""
    found = len(os.sched_getaffinity(0)) if cores is None else cores
    return max(TASKS_PER_CORE * found, -(-row_count // TASK_ROWS), task_count_min)


def share_out(items: Sequence[Item], sizes: Sequence[int], count_max: int) -> list[Sequence[Item]]:
    """Return at most `count_max` shares of `items`, which have these sizes: each item once, in
    order, none empty, and about equal in size. The same items are always shared out the same
    way."""
    if len(items) <= count_max:
        return [(each,) for each in items]
    total = sum(sizes)
    shares: dict[int, list[Item]] = {}
    before = 0
    for item, size in zip(items, sizes, strict=True):
        # The share that has the middle of the item.
        shares.setdefault((2 * before + size) * count_max // (2 * total), []).append(item)
        before += size
    return list(shares.values())


def split_ranges(
    ranges: Sequence[TransactionRange], *, task_count_min: int
) -> list[TransactionRange]:
    """Cut `ranges` into tasks: the same rows, in the same order, none empty.

    There are at least `task_count_min` tasks if there are that many rows, and the pieces of one
    partition differ by at most one row. The same ranges are always cut the same way, so that a task
    that is run again reads what it read before.
    """
    row_count = sum(each.row_count for each in ranges)
    tasks: list[TransactionRange] = []
    for each in ranges:
        # Shares rounded up add up to at least the whole.
        wanted = -(-each.row_count * task_count_min // row_count)
        piece_count = min(each.row_count, max(1, wanted, each.row_count // TASK_ROWS), TASKS_MAX)
        bounds = [
            TransactionId(each.first + each.row_count * index // piece_count)
            for index in range(piece_count + 1)
        ]
        tasks += (
            TransactionRange(each.partition_id, first, end) for first, end in pairwise(bounds)
        )
    return tasks
