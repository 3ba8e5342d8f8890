"""Compares copies of the log: up to where each must equal the log, and where copies first differ.

Pure: the caller brings the rows. No copy is the right one by itself: of copies that differ, those
are named that most others contradict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from waltz import NOTHING, Replica, ReplicaMarks
from waltz.spark.block_digests import BLOCK_TRANSACTIONS
from waltz.spark.offsets import FIRST_TRANSACTION_ID, TransactionRange
from waltz.types import PartitionId, TransactionId

ARCHIVE: Final = "the archive"
FIELDS: Final = ("request_id", "header", "data")
TASK_BLOCKS: Final = 10
"""Blocks that one task compares."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a partition that is compared to before `end`; the archive's has no `replica`."""

    name: str
    end: TransactionId
    replica: Replica | None = None


@dataclass(frozen=True, slots=True)
class CopyDifference:
    """A transaction that differs between copies.

    names   the copies that most others contradict; all of them if there is no majority.
    detail  the difference, or the reason why the transaction cannot be read.
    """

    partition_id: PartitionId
    transaction_id: TransactionId
    names: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        where = f"partition {self.partition_id}, transaction {self.transaction_id}"
        return f"{where}: {self.detail}"


def comparable_to(
    replica: Replica, marks: ReplicaMarks, high_water_mark: TransactionId
) -> TransactionId:
    """Return the last transaction of a replica that must equal the log's.

    Later ones may be no part of the log, or be cut off one day: they are uncommitted, or taken in
    sessions whose end the replica has not learnt.
    """
    if replica.is_current:
        settled = high_water_mark
    elif replica.closing_mark is not None:
        settled = replica.closing_mark
    else:
        settled = marks.low_water_mark
    return min(settled, high_water_mark, marks.last)


def comparisons(
    partition_id: PartitionId, copies: Sequence[Copy]
) -> Iterator[tuple[TransactionRange, tuple[Copy, ...]]]:
    """Yield the ranges that two copies or more have to have alike, with these, in order.

    A range is a few blocks at most.
    """
    first = FIRST_TRANSACTION_ID
    for end in sorted({each.end for each in copies}):
        holding = tuple(each for each in copies if each.end >= end)
        if len(holding) < 2:
            return
        yield from (
            (each, holding) for each in _some_blocks(TransactionRange(partition_id, first, end))
        )
        first = end


def _some_blocks(wanted: TransactionRange) -> Iterator[TransactionRange]:
    span = BLOCK_TRANSACTIONS * TASK_BLOCKS
    first = wanted.first
    while first < wanted.end:
        end = TransactionId(min(wanted.end, first - first % span + span))
        yield TransactionRange(wanted.partition_id, first, end)
        first = end


def first_difference(
    wanted: TransactionRange, sides: Mapping[str, Iterator[Mapping[str, Any]]]
) -> CopyDifference | None:
    """Return the first transaction of `wanted` that not all of two sides or more have alike."""
    for transaction_id in range(wanted.first, wanted.end):
        rows = {name: next(side, None) for name, side in sides.items()}
        values = {
            name: None if row is None else tuple(row[field] for field in FIELDS)
            for name, row in rows.items()
        }
        if len({*values.values()}) > 1:
            return _difference(wanted.partition_id, TransactionId(transaction_id), values)
    return None


Row: TypeAlias = tuple[bytes, int, bytes]
"""The fields of a transaction that are compared: `FIELDS`."""


def _difference(
    partition_id: PartitionId, transaction_id: TransactionId, values: Mapping[str, Row | None]
) -> CopyDifference:
    groups: dict[Row | None, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    usual, *others = sorted(groups, key=lambda value: -len(groups[value]))
    if 2 * len(groups[usual]) <= len(values):
        names = tuple(values)
    else:
        names = tuple(name for value in others for name in groups[value])
    agreed = _listed(groups[usual])
    told = "; ".join(
        f"{_listed(groups[value])}: {_contrast(value, usual)}, unlike {agreed}" for value in others
    )
    return CopyDifference(partition_id, transaction_id, names, told)


def _contrast(found: Row | None, usual: Row | None) -> str:
    if found is None or usual is None:
        return "it is missing" if found is None else "it is there"
    different = []
    pairs: list[tuple[bytes | int, bytes | int]] = list(zip(found, usual, strict=True))
    for field, (ours, theirs) in zip(FIELDS, pairs, strict=True):
        if ours == theirs:
            continue
        if isinstance(ours, int) or isinstance(theirs, int):
            different.append(f"{field} is {ours!r}, not {theirs!r}")
        elif len(ours) != len(theirs):
            different.append(f"{field} has {len(ours)} bytes, not {len(theirs)}")
        else:
            place = next(at for at in range(len(ours)) if ours[at] != theirs[at])
            different.append(
                f"{field} at byte {place} is 0x{ours[place]:02x}, not 0x{theirs[place]:02x}"
            )
    return " and ".join(different)


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def missing_promised(replica: Replica, marks: ReplicaMarks) -> CopyDifference | None:
    """Return the first transaction that a replica has promised to hold and does not."""
    if marks.last >= marks.promised or marks.promised == NOTHING:
        return None
    return CopyDifference(
        replica.partition_id,
        TransactionId(marks.last + 1),
        (replica.replica_id,),
        f"{replica.replica_id} lacks it and all that follow, and has promised to hold everything"
        f" to transaction {marks.promised}",
    )
