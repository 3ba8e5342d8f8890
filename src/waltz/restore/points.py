"""The point of the log to which it is restored: as an operator names it, and as IDs.

Owns which transactions a point means. Pure. Always: a point never reaches beyond the archive, and
a partition that nobody can place is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from uuid import UUID

from waltz.errors import ConfigurationError
from waltz.types import NOTHING, PartitionId, TransactionId


class ArchivedPartition(Protocol):
    """One partition in an archive."""

    @property
    def end(self) -> TransactionId:
        """The first transaction that is not archived."""
        ...


class NamedCut(Protocol):
    """Marks that all held at one instant: the last transaction of each partition."""

    @property
    def marks(self) -> Mapping[PartitionId, TransactionId]: ...

    @property
    def made_at(self) -> int:
        """Milliseconds since 1970."""
        ...


class ArchivedLog(Protocol):
    """One state of an archive, as far as a restore needs it; `waltz.archive` has the real one."""

    @property
    def cluster_key(self) -> UUID: ...

    @property
    def partitions(self) -> Mapping[PartitionId, ArchivedPartition]:
        """The partitions of which something is archived."""
        ...

    @property
    def cuts(self) -> Mapping[str, NamedCut]: ...

    @property
    def coordinator_nodes(self) -> Mapping[str, bytes]:
        """The data of the coordinator's nodes, by path below the cluster's root."""
        ...

    def time_marks(self, partition: PartitionId) -> Sequence[tuple[TransactionId, int]]:
        """Return transactions with a time, in milliseconds since 1970, at or before which each was
        durable; in the order of the log."""
        ...

    def blocks(
        self, partition: PartitionId, first: TransactionId, end: TransactionId
    ) -> Iterator[bytes]:
        """Yield whole records `first` to `end` - 1, their digests checked."""
        ...


@dataclass(frozen=True, slots=True)
class Latest:
    """All that is archived."""


@dataclass(frozen=True, slots=True)
class AtCut:
    """A cut that was taken and named."""

    name: str


@dataclass(frozen=True, slots=True)
class AtTime:
    """A time, in milliseconds since 1970, by the clock of the archiver: it notes when it was told
    that transactions are durable."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class AtMarks:
    """The last transaction of each partition."""

    marks: Mapping[PartitionId, TransactionId]


Point: TypeAlias = Latest | AtCut | AtTime | AtMarks


@dataclass(frozen=True, slots=True)
class Place:
    """A partition's place in a point.

    last        the last transaction that is restored.
    end         the first one that is not archived.
    unsure_to   the last transaction that may have been durable by the time asked for, too; `last`
                if the place is exact.
    """

    last: TransactionId
    end: TransactionId
    unsure_to: TransactionId

    @property
    def left_out(self) -> int:
        """The archived transactions that are not restored."""
        return self.end - 1 - self.last


def archived_end(archive: ArchivedLog, partition_id: PartitionId) -> TransactionId:
    """Return the first transaction that is not archived."""
    found = archive.partitions.get(partition_id)
    return TransactionId(0) if found is None else found.end


def places(archive: ArchivedLog, point: Point, partition_count: int) -> dict[PartitionId, Place]:
    """Return the place of each partition of the archived cluster.

    Raises ConfigurationError: no such cut, or marks that the archive does not reach, or that name
    too few or too many partitions.
    """
    partitions = tuple(map(PartitionId, range(partition_count)))
    marks = _marks(archive, point, partitions)
    return {each: _place(archive, point, marks, each) for each in partitions}


def place_of(archive: ArchivedLog, point: Point, partition_id: PartitionId) -> Place:
    """Return the place of one partition, which is the only one that marks may name. Raises as
    `places`."""
    marks = _marks(archive, point, (partition_id,))
    return _place(archive, point, marks, partition_id)


def _place(
    archive: ArchivedLog,
    point: Point,
    marks: Mapping[PartitionId, TransactionId] | None,
    partition_id: PartitionId,
) -> Place:
    end = archived_end(archive, partition_id)
    if isinstance(point, AtTime):
        return place_at(archive.time_marks(partition_id), point.milliseconds, end)
    # A partition that the cut does not have was added after it.
    last = TransactionId(end - 1) if marks is None else marks.get(partition_id, NOTHING)
    if not NOTHING <= last < end:
        raise ConfigurationError(
            f"the point names transaction {last} of partition {partition_id}, which is archived"
            f" up to {end - 1}: wait until the archive has it, or name an earlier point"
        )
    return Place(last, end, last)


def _marks(
    archive: ArchivedLog, point: Point, partitions: Sequence[PartitionId]
) -> Mapping[PartitionId, TransactionId] | None:
    if isinstance(point, AtCut):
        cut = archive.cuts.get(point.name)
        if cut is None:
            known = ", ".join(sorted(archive.cuts)) or "none"
            raise ConfigurationError(
                f"the archive has no cut named {point.name!r}; it has: {known}"
            )
        return cut.marks
    if isinstance(point, AtMarks):
        missing = [each for each in partitions if each not in point.marks]
        beyond = sorted(point.marks.keys() - {*partitions})
        if missing or beyond:
            wrong = f"lack partition {missing[0]}" if missing else f"name partition {beyond[0]}"
            raise ConfigurationError(
                f"the marks {wrong}; expected one mark for each partition that is restored,"
                f" {len(partitions)} in all: -1 for none of its transactions"
            )
        return point.marks
    return None


def place_at(
    time_marks: Sequence[tuple[TransactionId, int]], milliseconds: int, end: TransactionId
) -> Place:
    """Return the place of a time: the last transaction known to have been durable by then.

    A mark says that all transactions up to one were durable at or before a time; those between two
    marks became durable at some time up to the later mark's. Where clocks were set back the earlier
    place is taken, and all that a later mark says in contradiction is unsure.
    """
    last = NOTHING
    unsure_to = TransactionId(end - 1)
    is_beyond = False
    for transaction_id, durable_by in time_marks:
        if transaction_id >= end:
            break
        if durable_by <= milliseconds:
            if is_beyond:
                unsure_to = max(unsure_to, transaction_id)
            else:
                last = transaction_id
        elif not is_beyond:
            is_beyond = True
            # The mark's own transaction may have been durable just before it was noted.
            unsure_to = transaction_id
    return Place(last, end, max(last, unsure_to))
