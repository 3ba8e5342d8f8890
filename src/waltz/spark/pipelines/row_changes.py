"""Changes of the rows of a derived table, and the positions between which they lie. Values only.

A position is the marks of one table: how far the log was taken in by one of its commits. A table
that is made anew has another ID, so a position of the former table is not taken for one of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from waltz.errors import ChangesMissingError, ConfigurationError, LocalProtocolError
from waltz.spark.codes import CHANGES_MISSING, INVALID_OPTION
from waltz.types import PartitionId, TransactionId

Kind = Literal["insert", "update", "delete"]
Row = tuple[Any, ...]
Marks = Mapping[PartitionId, TransactionId]
"""The next transaction to take in of each partition; partitions without a transaction are left
out."""

READ_ANEW: Final = "Read the table anew: without a position, all its rows come as inserts"
_KEYS: Final = {"table_id", "marks"}


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two commits of one table.

    table_id  made with the table, and another one whenever a pipeline puts another table in its
              place, or the table follows another history of the log than before.
    marks     the next transaction to take in of each partition.
    """

    table_id: UUID
    marks: Marks

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        marks = {str(each): mark for each, mark in sorted(self.marks.items())}
        return {"table_id": str(self.table_id), "marks": marks}

    @classmethod
    def from_json(cls, found: object) -> Position:
        """Return a position that `to_json` has made. Raises ConfigurationError: it is none."""
        try:
            if not isinstance(found, dict) or found.keys() != _KEYS:
                raise ValueError
            marks = {PartitionId(int(each)): mark for each, mark in found["marks"].items()}
            if any(type(mark) is not int or mark < 0 for mark in marks.values()):
                raise ValueError
            return cls(UUID(found["table_id"]), present(marks))
        except (ValueError, TypeError, AttributeError):
            raise ConfigurationError(
                f"{INVALID_OPTION} {found!r:.80} is no position of a table; expected"
                ' {"table_id": "...", "marks": {"0": 17}}, as `waltz pipeline changes` prints it'
            ) from None


@dataclass(frozen=True, slots=True)
class RowChange:
    """A change of one row, whose values are in the order of the table's columns.

    before  None: the row was not there.
    after   None: the row is not there any more.
    """

    kind: Kind
    before: Row | None
    after: Row | None


@dataclass(frozen=True)
class CommittedChanges:
    """The changes of one commit, to be applied in their order.

    position  the place after the commit.
    changes   read once, before the next commit is asked for. What a pipeline has committed changes
              a row at most once.
    """

    position: Position
    changes: Iterator[RowChange]


class InTurn:
    """The changes of a commit while it is its turn."""

    def __init__(self, changes: Iterator[RowChange]) -> None:
        self._changes = changes
        self._is_over = False

    def end(self) -> None:
        """Let nothing more be read."""
        self._is_over = True

    def __iter__(self) -> Iterator[RowChange]:
        return self

    def __next__(self) -> RowChange:
        if self._is_over:
            raise LocalProtocolError(
                "the changes of a commit are read before the next commit is asked for"
            )
        return next(self._changes)


def present(marks: Mapping[Any, int]) -> dict[PartitionId, TransactionId]:
    """Return marks without partitions of which nothing was taken in."""
    return {PartitionId(each): TransactionId(mark) for each, mark in marks.items() if mark}


def reaches(marks: Marks, wanted: Marks) -> bool:
    """Return whether `marks` have all that `wanted` have."""
    return all(marks.get(each, 0) >= mark for each, mark in wanted.items())


def identity(table_id: UUID, history: UUID | None) -> UUID:
    """Return the ID of a table that follows a history of the log; None: the first one."""
    return table_id if history is None else uuid5(table_id, str(history))


def expect_same_table(where: str, position: Position, table_id: UUID) -> None:
    """Raise ChangesMissingError: the position is of another table."""
    if position.table_id != table_id:
        raise missing(
            f"{where} is not the table of the position: since then it was rebuilt, changed or"
            " replaced, or the log was restored; its ID is now"
            f" {table_id}, the position has {position.table_id}"
        )


def not_a_place(where: str, wanted: Marks, now: Marks, *, is_tidied: bool) -> ChangesMissingError:
    """Return the error for marks at which no commit that is kept has ended; `is_tidied`: older
    commits are not kept."""
    if not reaches(now, wanted):
        over = min(each for each, mark in wanted.items() if now.get(each, 0) < mark)
        return missing(
            f"{where} has partition {over} to {now.get(over, 0) - 1}, the position to"
            f" {wanted[over] - 1}: the table was put back to an older state"
        )
    if is_tidied:
        return missing(
            f"{where} does not keep the changes after the position any more: they were tidied away"
        )
    return missing(f"{where} has had no commit that ended at the marks of the position")


def missing(text: str) -> ChangesMissingError:
    """Return the error for changes that are not kept."""
    return ChangesMissingError(f"{CHANGES_MISSING} {text}. {READ_ANEW}")
