"""The end of a stream: how far it is read now, and what its checkpoint keeps. Pure: no questions.

`endingOffsets` ends a stream with IDs, or with what the log has when the query begins. With
`endingTimestamp` it ends with a time, and a time becomes the ID of a transaction only once a later
transaction is known: before, the log may yet take in transactions of before the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from waltz.errors import ConfigurationError
from waltz.spark.codes import INVALID_OPTION
from waltz.spark.offsets import FIRST_TRANSACTION_ID, Offsets, resolve_position
from waltz.spark.progress import NextIds, Progress
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from waltz import TransactionAt

Marks = Mapping[PartitionId, TransactionId]
"""The high-water mark of each partition that is read."""


@dataclass(frozen=True, slots=True)
class StreamEnding:
    """The end of a stream, as far as it is known.

    bounds    per partition that is read, the transaction before which reading stops for now.
    kept      the ends that a checkpoint has to keep, as nothing else says them again.
    time      the time that it ends with; None: it ends with IDs.
    is_known  whether `bounds` are the ends; otherwise more transactions may belong to the stream.
    """

    bounds: NextIds
    kept: NextIds
    time: datetime | None = None
    is_known: bool = True

    def is_reached(self, ends: NextIds) -> bool:
        """Return whether a stream that has read to `ends` has nothing to come."""
        return self.is_known and all(end >= self.bounds[each] for each, end in ends.items())

    def expect_after(self, first: NextIds) -> None:
        """Raises ConfigurationError: a partition begins, with `first`, after its end."""
        ends = self.bounds if self.time is None else self.kept
        for partition_id, end in ends.items():
            if first[partition_id] > end:
                raise ConfigurationError(
                    f"{INVALID_OPTION} partition {partition_id} starts at {first[partition_id]},"
                    f" after its end {end}"
                )


def ending_with_ids(ending: Offsets, progress: Progress, marks: Marks) -> StreamEnding:
    """Return the end that `endingOffsets` says. Where the log decides, it has decided when the
    query began; a partition that was added since has its end before its first transaction."""
    decided = progress.end if progress.end_time is None else None

    def end_of(partition_id: PartitionId, mark: TransactionId) -> TransactionId:
        position = ending.of(partition_id)
        if isinstance(position, int):
            return position
        if decided is not None and partition_id in decided:
            return decided[partition_id]
        if decided is not None and partition_id not in progress.next_ids:
            return FIRST_TRANSACTION_ID
        return resolve_position(
            "endingOffsets", ending, partition_id, mark, fail_on_data_loss=False
        )

    bounds = {partition_id: end_of(partition_id, mark) for partition_id, mark in marks.items()}
    by_log = {each: end for each, end in bounds.items() if not isinstance(ending.of(each), int)}
    return StreamEnding(bounds, by_log)


def kept_ends(progress: Progress, time: datetime, history: UUID | None) -> NextIds:
    """Return the ends that a checkpoint has for this time in this history of the log: those of
    another time or history say nothing of it."""
    if progress.end is None or (progress.end_time, progress.history) != (time, history):
        return {}
    return progress.end


def unended(kept: NextIds, progress: Progress, marks: Marks) -> Marks:
    """Return the marks of the partitions that have something to read and no end yet."""
    return {
        partition_id: mark
        for partition_id, mark in marks.items()
        if partition_id not in kept and progress.next_id(partition_id) <= mark
    }


def doubtful(
    places: Mapping[PartitionId, TransactionAt], progress: Progress, marks: Marks
) -> list[PartitionId]:
    """Return the partitions with something to read of which nobody knows whether it is older than
    the time, and whose end is not known."""
    return [
        partition_id
        for partition_id, place in places.items()
        if place.later is None
        and max(place.first, progress.next_id(partition_id)) <= marks[partition_id]
    ]


def ending_with_time(
    time: datetime, kept: NextIds, places: Mapping[PartitionId, TransactionAt], marks: Marks
) -> StreamEnding:
    """Return the end of a stream that ends with a time.

    `places` has the place of the time in partitions without an end in `kept`. A partition of which
    no later transaction is known is read as far as its log goes.
    """
    found = {each: place.later for each, place in places.items() if place.later is not None}
    ends = {**kept, **found}
    bounds = {each: ends.get(each, TransactionId(mark + 1)) for each, mark in marks.items()}
    return StreamEnding(bounds, ends, time, is_known=marks.keys() <= ends.keys())
