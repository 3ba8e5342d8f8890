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
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.codes import DEFINITION_CHANGED, INVALID_TABLES, TABLES_CONFLICT
from waltz.spark.followed_history import expect_history
from waltz.spark.pipelines.bucket_changes import BucketFiles
from waltz.spark.pipelines.lake_changes import changes_between_versions
from waltz.spark.pipelines.lake_format import FileT, LakeFormat, TableT
from waltz.spark.pipelines.lake_state import LakeState, StateTable
from waltz.spark.pipelines.row_changes import CommittedChanges, Position
from waltz.spark.pipelines.table_store import REMEDY, Batch, Joining, Layout, TableStore
from waltz.spark.pipelines.tables import TableDefinition
from waltz.spark.pipelines.target import TableWritten, TidiedTable
from waltz.types import PartitionId, TransactionId

DATABASE: Final = "waltz.db"
BUCKETS: Final = 64
"""Parts of a table by a hash of the key, if the definition does not say how many."""


class LakeTables(TableStore, Generic[TableT, FileT]):
    """The tables of one format in one place; a context manager.

    The place is a directory of a local disk, unless a class derived from this says otherwise.
    """

    def __init__(
        self,
        directory: Path,
        table_format: LakeFormat[TableT, FileT],
        *,
        create: bool,
        buckets: int | None = None,
    ) -> None:
        """Open the directory; `buckets` is the number that the definition names, if it does.

        Raises NotFoundError: there is none, and it is not to be made; ConfigurationError: the
        format's library is not installed, or the directory is something else's.
        """
        try:
            import_module(table_format.package)
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{error.name} is missing: run `pip install '.[lakehouse]'` in a checkout of Waltz"
            ) from error
        path = directory / DATABASE
        if create and not path.exists() and directory.exists() and _has_content(directory):
            raise ConfigurationError(
                f"{INVALID_TABLES} {directory} has files that no pipeline made; name another target"
            )
        self._format = table_format
        self._wanted_buckets = buckets
        self._pinned: dict[str, TableT] = {}
        super().__init__(path, create=create)
        self._inode = self.path.stat().st_ino

    @property
    def directory(self) -> Path:
        return self.path.parent

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        """Make the directory that of these tables of this cluster, or make sure that it is.

        Raises ConfigurationError: it is another's; CorruptionError: it cannot be written.
        """
        with self._locked(), self._format_errors_named():
            super().prepare(cluster_key, fingerprint, ())
            buckets, state = self.buckets(), self._state()
            if state.number == 0 and state.plan is None:
                for each in layouts:
                    self._format.create(each, buckets)

    def _begin(self, database: sqlite3.Connection) -> None:
        if self._exists(self._format.state_table):
            return
        if self.marks():
            raise ConfigurationError(
                f"{INVALID_TABLES} {self.place} is not of {self._format.name} tables; name another"
                " target"
            )
        table = StateTable(database, self._format.state_table)
        table.begin(self._wanted_buckets or BUCKETS)

    def expect_history(self, histories: Histories) -> None:
        """Check that the log has what was taken in, or begun to be. Raises HistoryChangedError."""
        plan = self._state().plan
        marks, history = self.marks(), self.history()
        if plan is not None:
            marks, history = marks | plan.ends, plan.history
        who = f"the directory {self._format.root}"
        expect_history(histories, history, marks, who=who, remedy=REMEDY)

    def planned(self) -> Mapping[PartitionId, TransactionId]:
        """Return the ends of the batch that a run has begun and not finished."""
        plan = self._state().plan
        return {} if plan is None else plan.ends

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that is read in the block be of one moment, whatever runs commit.

        Raises VersionConflictError: a run was stopped within a batch.
        """
        with super().snapshot():
            # No run is between two tables while this is locked, unless it was stopped there.
            with self._locked(), self._format_errors_named():
                if self._exists(self._format.state_table):
                    if self._state().plan is not None:
                        raise VersionConflictError(
                            f"{TABLES_CONFLICT} {self._format.root}: a run was stopped within a"
                            " batch, which only some tables have; run the pipeline to finish it"
                        )
                    self._pinned = {
                        each: self._format.opened(each) for each in self._format.names()
                    }
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
            table = self._pinned.get(name) or self._format.opened(name)
            for batch in self._format.read(table, columns):
                yield from zip(*(each.to_pylist() for each in batch.columns), strict=True)

    def add(self, batch: Batch) -> dict[str, TableWritten]:
        """Join `batch` with the present rows, all or nothing. Return what was written to each
        table; tables that had the batch already are left out.

        Raises VersionConflictError: another run has taken in the same transactions meanwhile;
        CorruptionError: a table does not take the batch (a sum beyond 64 bits, a full disk).
        """
        with self._locked(), self._format_errors_named():
            self._expect_start(batch.ranges)
            state = self._state()
            if state.plan is not None and state.plan.ranges != list(batch.ranges):
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self._format.root}: another run has begun a batch with"
                    " other ends; run again"
                )
            # What cannot be joined is found before anything is planned.
            changes = []
            for rows in batch.tables:
                table = self._expected(rows.layout, state)
                if self._format.batches(table) == state.number:
                    files = self._format.files(table)
                    join = self._format.join(
                        table, rows.layout, files, state.number + 1, state.buckets
                    )
                    changes.append((table, rows.layout, files, join.run(rows)))
            batch.confirm()
            if state.plan is None:
                self._note_plan(batch)
            for table, layout, files, joined in changes:
                self._format.commit(table, layout, files, joined, state.number + 1, batch.ranges)
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
            versions = self._format.versions(definition.name)
            # Asked for later than the table, which has no batch that was not planned before.
            plan = self._state().plan
            history = self.history() if plan is None else plan.history
            place = self._format.table_root(definition.name)
            rows = BucketFiles(place, place, definition)
            yield from changes_between_versions(versions, rows, history, after)

    def _is_joinable(self, fresh: TableStore, joining: Joining) -> bool:
        if self._state().plan is not None:
            raise VersionConflictError(
                f"{TABLES_CONFLICT} {self._format.root}: another run is within a batch; run again"
            )
        return super()._is_joinable(fresh, joining)

    def tidy(self, retention_hours: int, *, delete: bool) -> list[TidiedTable]:
        """Find, and `delete`, the files that no version of the last hours needs: replaced ones, and
        those that a killed task or driver left. Return them per table.

        There is nothing to compact: batches make one file of several small ones. Raises
        CorruptionError: a table or a file cannot be read or removed.
        """
        with self._locked(), self._format_errors_named():
            return [
                self._format.tidied(each, retention_hours, delete)
                for each in self._format.directories()
            ]

    def buckets(self) -> int:
        """Return the number of buckets of each table. Raises ConfigurationError: the definition
        says another number."""
        buckets = self._state().buckets
        if self._wanted_buckets not in (None, buckets):
            raise ConfigurationError(
                f"{DEFINITION_CHANGED} {self._format.root} has tables of {buckets} buckets, the"
                f" definition says {self._wanted_buckets}; run `waltz pipeline rebuild`"
            )
        return buckets

    def _state(self) -> LakeState:
        with self._errors_named():
            return StateTable(self._database, self._format.state_table).read(self.place)

    def _note_plan(self, batch: Batch) -> None:
        with self._transaction() as database:
            StateTable(database, self._format.state_table).note_plan(batch)

    def _note_done(self, batch: Batch) -> None:
        with self._transaction() as database:
            self._add_facts(database, batch)
            StateTable(database, self._format.state_table).note_done()

    def _expected(self, layout: Layout, state: LakeState) -> TableT:
        """Return a table. Raises CorruptionError: the table has other batches than the database."""
        name = layout.definition.name
        table = self._format.opened(name)
        found = self._format.batches(table)
        is_ahead = state.plan is not None and found == state.number + 1
        if found != state.number and not is_ahead:
            raise CorruptionError(
                f"{INVALID_TABLES} {self._format.table_root(name)} has {found} batches,"
                f" {self.place} has {state.number}: one of them was put back or replaced; run"
                " `waltz pipeline rebuild`"
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
                    f"{TABLES_CONFLICT} {self._format.root} was replaced meanwhile; run again"
                )
            yield

    @contextmanager
    def _format_errors_named(self) -> Iterator[None]:
        faults: tuple[type[Exception], ...] = (*self._format.faults(), OSError)
        with self._errors_named():
            try:
                yield
            except self._format.conflicts() as error:
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self._format.root}: another writer has changed a"
                    f" table: {error}; run again"
                ) from error
            except faults as error:
                raise CorruptionError(f"{INVALID_TABLES} {self._format.root}: {error}") from error


def _has_content(directory: Path) -> bool:
    return any(directory.iterdir())
