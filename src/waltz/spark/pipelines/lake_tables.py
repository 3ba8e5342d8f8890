"""Derived tables in an open format, in one place: all that does not depend on the format.

A database of SQLite in the same directory has what SQLite's target has beside its tables: origin,
marks, digests, transactions put aside. A batch changes several tables, each of which commits by
itself. So the batch is planned in the database first; then each table takes the batch in one
commit, which also has the number of the batch and the marks; then the database notes that the batch
is done. A run that finds a plan takes in that batch first: tables whose number says that they have
the batch are left as they are.

The rows of groups do not come here: tasks of Spark join them with the buckets that they touch and
write the new files (`bucket_join.py`); a commit names these, and no more the old ones with their
rows.
"""

from __future__ import annotations

import fcntl
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.codes import DEFINITION_CHANGED, INVALID_TABLES, TABLES_CONFLICT
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.bucket_changes import BucketFiles
from waltz.spark.pipelines.bucket_join import BucketJoin, JoinedBucket
from waltz.spark.pipelines.lake_changes import TableVersions, changes_between_versions
from waltz.spark.pipelines.row_changes import CommittedChanges, Position
from waltz.spark.pipelines.table_store import REMEDY, Batch, Joining, Layout, TableStore
from waltz.spark.pipelines.tables import TableDefinition
from waltz.spark.pipelines.target import TableWritten, TidiedTable
from waltz.types import PartitionId, TransactionId

DATABASE: Final = "waltz.db"
BUCKETS: Final = 64
"""Parts of a table by a hash of the key, if the definition does not say how many."""

STATE: Final = """
CREATE TABLE {} (
    number INTEGER NOT NULL, ranges TEXT, history TEXT, buckets INTEGER NOT NULL) STRICT
"""
"""One row: the number of batches that every table has, the plan of the next one, if there is one,
and the number of buckets of each table, which never changes."""

Plan = tuple[list[TransactionRange], UUID | None]
TableT = TypeVar("TableT")
"""One version of a table."""

FileT = TypeVar("FileT")
"""A file that a version of a table names."""


class LakeTables(TableStore, ABC, Generic[TableT, FileT]):
    """The tables of one format in one place; a context manager.

    The place is a directory of a local disk, unless a class derived from this says otherwise.
    """

    format: ClassVar[str]
    """The name of the format, as it stands in sentences."""

    package: ClassVar[str]
    """The library of the format."""

    state: ClassVar[str]
    """The database's table of the number of batches, which also says which format this is."""

    def __init__(self, directory: Path, *, create: bool, buckets: int | None = None) -> None:
        """Open the directory; `buckets` is the number that the definition names.

        Raises NotFoundError: there is none, and it is not to be made; ConfigurationError: the
        format's library is not installed, or the directory is something else's.
        """
        try:
            import_module(self.package)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{error.name} is missing: run `pip install '.[lakehouse]'` in a checkout of Waltz"
            ) from error
        path = directory / DATABASE
        if create and not path.exists() and directory.exists() and _has_content(directory):
            raise ConfigurationError(
                f"{INVALID_TABLES} {directory} has files that no pipeline made; name another target"
            )
        self._wanted_buckets = buckets
        self._pinned: dict[str, TableT] = {}
        super().__init__(path, create=create)
        self._inode = self.path.stat().st_ino

    @property
    def directory(self) -> Path:
        return self.path.parent

    @property
    def root(self) -> str:
        """The directory, or the URL, that has the tables."""
        return str(self.directory)

    def table_root(self, name: str) -> str:
        """Return the directory or the URL of a table."""
        return f"{self.root}/{name}"

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        """Make the directory that of these tables of this cluster, or make sure that it is.

        Raises ConfigurationError: it is another's; CorruptionError: it cannot be written.
        """
        with self._locked(), self._format_errors_named():
            super().prepare(cluster_key, fingerprint, ())
            with self._transaction() as database:
                if not self._exists(self.state):
                    if self.marks():
                        raise ConfigurationError(
                            f"{INVALID_TABLES} {self.place} is not of {self.format} tables; name"
                            " another target"
                        )
                    database.execute(STATE.format(self.state))
                    wanted = self._wanted_buckets or BUCKETS
                    row = f"INSERT INTO {self.state} VALUES (0, NULL, NULL, ?)"
                    database.execute(row, (wanted,))
            buckets = self.buckets()
            if self._state() == (0, None):
                for each in layouts:
                    self._create(each, buckets)

    def expect_history(self, histories: Histories) -> None:
        """Check that the log has what was taken in, or begun to be. Raises HistoryChangedError."""
        _, plan = self._state()
        marks, history = self.marks(), self.history()
        if plan is not None:
            marks |= {each.partition_id: each.end for each in plan[0]}
            history = plan[1]
        who = f"the directory {self.root}"
        expect_history(histories, history, marks, who=who, remedy=REMEDY)

    def planned(self) -> Mapping[PartitionId, TransactionId]:
        """Return the ends of the batch that a run has begun and not finished."""
        _, plan = self._state()
        return {} if plan is None else {each.partition_id: each.end for each in plan[0]}

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that is read in the block be of one moment, whatever runs commit.

        Raises VersionConflictError: a run was stopped within a batch.
        """
        with super().snapshot():
            # No run is between two tables while this is locked, unless it was stopped there.
            with self._locked(), self._format_errors_named():
                if self._exists(self.state):
                    if self._state()[1] is not None:
                        raise VersionConflictError(
                            f"{TABLES_CONFLICT} {self.root}: a run was stopped within a"
                            " batch, which only some tables have; run the pipeline to finish it"
                        )
                    self._pinned = {each: self._opened(each) for each in self._names()}
            try:
                yield
            finally:
                self._pinned = {}

    def rows(self, layout: Layout) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table, in the order of its columns."""
        name = layout.definition.name
        yield from self._scan(name, [each.name for each in layout.columns])

    def last_mentioned(self, table: str) -> list[tuple[int, int]]:
        """Return partitions with their last transaction that the rows of a table mention."""
        if table == "waltz_undecodable":
            return super().last_mentioned(table)
        last: dict[int, int] = {}
        for partition, found in self._scan(table, ["last_partition", "last_transaction_id"]):
            last[partition] = max(last.get(partition, found), found)
        return list(last.items())

    def _scan(self, name: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
        with self._format_errors_named():
            table = self._pinned.get(name) or self._opened(name)
            for batch in self._read(table, columns):
                yield from zip(*(each.to_pylist() for each in batch.columns), strict=True)

    def add(self, batch: Batch) -> dict[str, TableWritten]:
        """Join `batch` with the present rows, all or nothing. Return what was written to each
        table; tables that had the batch already are left out.

        Raises VersionConflictError: another run has taken in the same transactions meanwhile;
        CorruptionError: a table does not take the batch (a sum beyond 64 bits, a full disk).
        """
        with self._locked(), self._format_errors_named():
            self._expect_start(batch.ranges)
            number, plan = self._state()
            if plan is not None and plan[0] != list(batch.ranges):
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self.root}: another run has begun a batch with other"
                    " ends; run again"
                )
            # What cannot be joined is found before anything is planned.
            changes = []
            for rows in batch.tables:
                table = self._expected(rows.layout, number, is_planned=plan is not None)
                if self._batches(table) == number:
                    files = self._files(table)
                    join = self._join(table, rows.layout, files, number + 1)
                    changes.append((table, rows.layout, files, join.run(rows)))
            batch.confirm()
            if plan is None:
                self._note_plan(batch)
            for table, layout, files, joined in changes:
                self._commit(table, layout, files, joined, number + 1, batch.ranges)
            self._note_done(batch)
        return {
            layout.definition.name: TableWritten(
                sum(each.row_count for each in joined),
                sum(each.size for each in joined),
                len(joined),
            )
            for _, layout, _, joined in changes
        }

    def changes(
        self, definition: TableDefinition, after: Position | None
    ) -> Iterator[CommittedChanges]:
        """Yield what each commit after a position has changed in a table, in order; None: the whole
        table, as one commit of inserts. It is read from the table's versions.

        Raises ChangesMissingError; CorruptionError: the table, or a file of it, cannot be read.
        """
        with self._format_errors_named():
            versions = self._versions(definition.name)
            # Asked for later than the table, which has no batch that was not planned before.
            _, plan = self._state()
            history = self.history() if plan is None else plan[1]
            place = self.table_root(definition.name)
            rows = BucketFiles(place, place, definition)
            yield from changes_between_versions(versions, rows, history, after)

    def _is_joinable(self, fresh: TableStore, joining: Joining) -> bool:
        if self._state()[1] is not None:
            raise VersionConflictError(
                f"{TABLES_CONFLICT} {self.root}: another run is within a batch; run again"
            )
        return super()._is_joinable(fresh, joining)

    def tidy(self, retention_hours: int, *, delete: bool) -> list[TidiedTable]:
        """Find, and `delete`, the files that no version of the last hours needs: replaced ones, and
        those that a killed task or driver left. Return them per table.

        There is nothing to compact: batches make one file of several small ones. Raises
        CorruptionError: a table or a file cannot be read or removed.
        """
        with self._locked(), self._format_errors_named():
            return [self._tidied(each, retention_hours, delete) for each in self._directories()]

    def buckets(self) -> int:
        """Return the number of buckets of each table. Raises ConfigurationError: the definition
        says another number."""
        buckets = self._buckets()
        if self._wanted_buckets not in (None, buckets):
            raise ConfigurationError(
                f"{DEFINITION_CHANGED} {self.root} has tables of {buckets} buckets, the"
                f" definition says {self._wanted_buckets}; run `waltz pipeline rebuild`"
            )
        return buckets

    def _buckets(self) -> int:
        with self._errors_named():
            ((buckets,),) = self._rows(f"SELECT buckets FROM {self.state}")
        return int(buckets)

    def _state(self) -> tuple[int, Plan | None]:
        """Return the number of batches that every table has, and the plan of the next."""
        with self._errors_named():
            found = []
            if self._exists(self.state):
                found = self._rows(f"SELECT number, ranges, history FROM {self.state}")
        if len(found) != 1:
            raise CorruptionError(
                f"{INVALID_TABLES} {self.place}: {self.state} has {len(found)} rows, expected 1;"
                " run `waltz pipeline rebuild`"
            )
        ((number, ranges, history),) = found
        if ranges is None:
            return number, None
        plan = [
            TransactionRange(PartitionId(partition), TransactionId(first), TransactionId(end))
            for partition, first, end in json.loads(ranges)
        ]
        return number, (plan, None if history is None else UUID(history))

    def _note_plan(self, batch: Batch) -> None:
        ranges = [(each.partition_id, each.first, each.end) for each in batch.ranges]
        history = None if batch.history is None else str(batch.history)
        with self._transaction() as database:
            plan = (json.dumps(ranges), history)
            database.execute(f"UPDATE {self.state} SET ranges = ?, history = ?", plan)

    def _note_done(self, batch: Batch) -> None:
        with self._transaction() as database:
            self._add_facts(database, batch)
            database.execute(
                f"UPDATE {self.state} SET number = number + 1, ranges = NULL, history = NULL"
            )

    def _expected(self, layout: Layout, number: int, *, is_planned: bool) -> TableT:
        """Return a table. Raises CorruptionError: the table has other batches than the database."""
        name = layout.definition.name
        table = self._opened(name)
        found = self._batches(table)
        if found != number and not (is_planned and found == number + 1):
            raise CorruptionError(
                f"{INVALID_TABLES} {self.table_root(name)} has {found} batches, {self.place} has"
                f" {number}: one of them was put back or replaced; run `waltz pipeline rebuild`"
            )
        return table

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the tables. Raises VersionConflictError: they were
        replaced since they were opened."""
        lock = self.directory.with_name(f".{self.directory.name}.lock")
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not self.path.exists() or self.path.stat().st_ino != self._inode:
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self.root} was replaced meanwhile; run again"
                )
            yield

    @contextmanager
    def _format_errors_named(self) -> Iterator[None]:
        faults: tuple[type[Exception], ...] = (*self._faults(), OSError)
        with self._errors_named():
            try:
                yield
            except self._conflicts() as error:
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self.root}: another writer has changed a table:"
                    f" {error}; run again"
                ) from error
            except faults as error:
                raise CorruptionError(f"{INVALID_TABLES} {self.root}: {error}") from error

    @abstractmethod
    def _conflicts(self) -> tuple[type[Exception], ...]:
        """Return the library's errors that mean a commit of another writer."""

    @abstractmethod
    def _faults(self) -> tuple[type[Exception], ...]:
        """Return the library's errors that mean a table that cannot be read or written."""

    @abstractmethod
    def _create(self, layout: Layout, buckets: int) -> None:
        """Make a table without rows, unless it is there."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names of the tables, in order."""

    def _directories(self) -> list[str]:
        """Return the names of the directories that have a table or had one, in order."""
        return self._names()

    @abstractmethod
    def _opened(self, name: str) -> TableT:
        """Return a table's version of now."""

    @abstractmethod
    def _versions(self, name: str) -> TableVersions:
        """Return the versions that are kept of a table."""

    @abstractmethod
    def _batches(self, table: TableT) -> int:
        """Return the number of the last batch that a table has."""

    @abstractmethod
    def _files(self, table: TableT) -> dict[int, list[FileT]]:
        """Return the files that a version of a table names, by their buckets."""

    @abstractmethod
    def _read(self, table: TableT, columns: list[str]) -> Iterator[Any]:
        """Yield the rows of a table as record batches of these columns."""

    @abstractmethod
    def _join(
        self, table: TableT, layout: Layout, files: Mapping[int, list[FileT]], number: int
    ) -> BucketJoin:
        """Return the work on the buckets that the batch of that number touches."""

    @abstractmethod
    def _commit(
        self,
        table: TableT,
        layout: Layout,
        files: Mapping[int, list[FileT]],
        joined: Sequence[JoinedBucket],
        number: int,
        ranges: Sequence[TransactionRange],
    ) -> None:
        """Name new files in the place of those of the version `table` that they replace, and note
        the number of the batch and the ends of its ranges, in one commit on the disk.

        files    those of that version, by their buckets.
        """

    @abstractmethod
    def _tidied(self, name: str, retention_hours: int, delete: bool) -> TidiedTable:
        """Find, and `delete`, the files of one table that are not needed."""


def _has_content(directory: Path) -> bool:
    return any(directory.iterdir())
