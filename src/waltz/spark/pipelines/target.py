"""The interfaces of what keeps derived tables: `DerivedTables` is all that a proof and a reader
know, `Target` all that a run knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import UUID

if TYPE_CHECKING:
    from waltz import Histories
    from waltz.spark.pipelines.row_changes import CommittedChanges, Position
    from waltz.spark.pipelines.table_store import Batch, Joining, Layout
    from waltz.spark.pipelines.tables import TableDefinition
    from waltz.types import PartitionId, TransactionId


@dataclass(frozen=True, slots=True)
class TidiedTable:
    """A table and its files that no version of the retained time needs, relative to the table.

    byte_count  their sizes together.
    changes     changes of rows that are older than the retained time: of tables in SQLite, which
                have no files.
    """

    table: str
    files: tuple[str, ...]
    byte_count: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class TableWritten:
    """The part of a table that one or more batches have written.

    rows        rows of a database that are new or changed; of files all rows in them, since a file
                is written whole.
    byte_count  the size of the files; None: there are no files.
    files       the number of the files, likewise.
    """

    rows: int
    byte_count: int | None = None
    files: int | None = None

    def __add__(self, other: TableWritten) -> TableWritten:
        """Return both together."""
        return TableWritten(
            self.rows + other.rows,
            _sum(self.byte_count, other.byte_count),
            _sum(self.files, other.files),
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


class DerivedTables(Protocol):
    """The tables of one definition with the marks of the log, to be read; a context manager."""

    @property
    def place(self) -> str:
        """The place of the tables, as a message names it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def definition(self) -> str | None:
        """Return the definition that the tables were made with; None: they are not made yet."""
        ...

    def expect(self, cluster_key: UUID, fingerprint: str | None = None) -> None:
        """Check the origin. Raises ConfigurationError."""

    def expect_history(self, histories: Histories) -> None:
        """Check that the log has what was taken in. Raises HistoryChangedError."""

    def marks(self) -> Mapping[PartitionId, TransactionId]:
        """Return the next transaction to take in of each partition."""
        ...

    def planned(self) -> Mapping[PartitionId, TransactionId]:
        """Return the ends of the batch that a run has begun and not finished."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Let everything that is read in the block be of one moment. Raises VersionConflictError:
        there is no such moment before another run."""
        ...

    def rows(self, layout: Layout) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, in the order of its columns."""
        ...

    def blocks(self) -> dict[tuple[int, int], tuple[int, str]]:
        """Return transactions and digest of each block, by partition and block."""
        ...

    def last_mentioned(self, table: str) -> list[tuple[int, int]]:
        """Return partitions with their last transaction that the rows of a table mention."""
        ...

    def undecodable(self, partition: int, first: int, end: int) -> list[tuple[Any, ...]]:
        """Return the transactions put aside of a range, in order."""
        ...

    def undecodable_beyond(self, ends: Mapping[PartitionId, int]) -> Iterator[tuple[Any, ...]]:
        """Yield the transactions put aside that are outside of all partitions to `ends`."""
        ...

    def changes(
        self, definition: TableDefinition, after: Position | None
    ) -> Iterator[CommittedChanges]:
        """Yield what each commit after a position has changed in a table, in order; None: the whole
        table, as one commit of inserts.

        Raises ChangesMissingError: the changes after the position are not kept; ConfigurationError:
        the target keeps none.
        """
        ...


class Target(DerivedTables, Protocol):
    """The tables of one definition with the marks of the log, to be written.

    A batch and its marks change together: after a death at any moment a later `add` of the same
    transactions, from `marks` to `planned` if there is a plan, makes each count once.
    """

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        """Make this the target of these tables of this cluster, or make sure that it is. Raises
        ConfigurationError: it is another's."""

    def buckets(self) -> int | None:
        """Return the number of buckets of each table; None: there are no buckets. Raises
        ConfigurationError: the definition says another number."""
        ...

    def settle(self) -> None:
        """Finish what a run has begun in `adopt` and not finished."""

    def adopt(self, fresh: Self, joining: Joining) -> bool:
        """Put the tables of `fresh`, a target of the same kind, among these, and note the new
        definition, all or nothing. Return False: these tables have more or less of the log than
        those by now.

        Raises ConfigurationError: the decoding puts other transactions aside, or this target cannot
        do it; CorruptionError: the log was another one; VersionConflictError: another run was
        faster.
        """
        ...

    def note_definition(self, before: str, after: str) -> None:
        """Note the text of the same definition. Raises VersionConflictError: it is not `before`."""

    def add(self, batch: Batch) -> dict[str, TableWritten]:
        """Commit a batch: join its rows with the present ones and set the marks, all or nothing.
        Return what was written to each table; tables that had the batch already are left out.

        Raises VersionConflictError: another run has taken in the same transactions meanwhile;
        CorruptionError: the tables do not take it; HistoryChangedError as `batch.confirm`.
        """

    def tidy(self, retention_hours: int, *, delete: bool) -> list[TidiedTable]:
        """Find, and `delete`, what only versions and changes before the last hours need. Return it
        per table."""
        ...

    def replace_by(self, other: Self) -> None:
        """Put the tables of `other`, a target of the same kind, in the place of these."""
