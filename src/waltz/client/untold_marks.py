"""The marks of a client that servers have to be told, for operators.

Owns which partitions have something to tell, and what each server was told last. Always: what is
told is what the application has applied, never what has only arrived, and no stream is told the
same twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from waltz.types import PartitionId, TransactionId
from waltz.wire.clients_protocol import APPLIED_MARKS_MAX, AppliedMark, AppliedMarks


class AppliedPosition(NamedTuple):
    """The place of an application in a partition. `stream` is the connection that the partition is
    mounted on, None if it is not mounted; `is_applying`: the mark may move any moment."""

    stream: int | None
    mark: TransactionId
    is_applying: bool


class UntoldMarks:
    """See the module."""

    def __init__(self) -> None:
        self._moving: set[PartitionId] = set()
        """Partitions whose marks may have moved since they were told."""
        self._told: dict[PartitionId, tuple[int, TransactionId]] = {}
        """The last mark of each partition that was told, and on which stream."""

    def __bool__(self) -> bool:
        return bool(self._moving)

    def note(self, partition_id: PartitionId) -> None:
        """The partition's mark is about to move, or the partition is mounted."""
        self._moving.add(partition_id)

    def take(
        self, position_of: Callable[[PartitionId], AppliedPosition | None]
    ) -> list[tuple[int, AppliedMarks]]:
        """Return what is to be told, and on which streams. A partition without a stream has nothing
        to tell: it is noted again when it is mounted."""
        by_stream: dict[int, list[AppliedMark]] = {}
        for partition_id in sorted(self._moving):
            position = position_of(partition_id)
            if position is None or position.stream is None:
                self._moving.remove(partition_id)
                self._told.pop(partition_id, None)
                continue
            if not position.is_applying:
                self._moving.remove(partition_id)
            told = position.stream, position.mark
            if self._told.get(partition_id) != told:
                self._told[partition_id] = told
                mark = AppliedMark(partition_id, position.mark)
                by_stream.setdefault(position.stream, []).append(mark)
        return [
            (stream, AppliedMarks(tuple(marks[start : start + APPLIED_MARKS_MAX])))
            for stream, marks in by_stream.items()
            for start in range(0, len(marks), APPLIED_MARKS_MAX)
        ]
