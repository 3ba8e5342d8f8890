"""Derived tables as Delta tables: open files, readable by what reads Delta.

A table is a directory that can be moved, so tables join others, and replace them, by renames. A
rename of several directories is no single step: tables that join are planned in the database first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from waltz.errors import VersionConflictError
from waltz.spark.codes import TABLES_CONFLICT
from waltz.spark.pipelines.bucket_join import BUCKET
from waltz.spark.pipelines.delta_format import BATCH_ID, DeltaFile, DeltaFormat, sync_log
from waltz.spark.pipelines.lake_tables import LakeTables
from waltz.spark.pipelines.row_changes import CommittedChanges, Position
from waltz.spark.pipelines.table_files import sync
from waltz.spark.pipelines.table_store import Joining, Layout, TableStore
from waltz.spark.pipelines.tables import TableDefinition

if TYPE_CHECKING:
    from deltalake import DeltaTable  # noqa: F401 - the base class names it

JOINING: Final = "CREATE TABLE waltz_joining (place TEXT NOT NULL, tables TEXT NOT NULL) STRICT"
"""One row while tables are moved among the others: from where, and which come and go."""

OLD: Final = "old."
"""The prefix of the name of a directory of a table that has gone; no table can have it."""


class DeltaTables(LakeTables["DeltaTable", DeltaFile]):
    """The Delta tables in one directory of a local disk; a context manager."""

    def __init__(self, directory: Path, *, create: bool, buckets: int | None = None) -> None:
        """Open the directory. Raises as `LakeTables`."""
        tables = DeltaFormat(str(directory), lambda: {*self.marks(), *self.planned()})
        super().__init__(directory, tables, create=create, buckets=buckets)

    def replace_by(self, other: TableStore) -> None:
        """Put the tables of `other` in the place of these; both are closed after that."""
        assert isinstance(other, DeltaTables)
        with self._locked():
            for each in (self, other):
                each.__exit__()
            self.directory.rename(other.directory.with_name("old"))
            other.directory.rename(self.directory)
            sync(self.directory.parent)

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        self.settle()
        super().prepare(cluster_key, fingerprint, layouts)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let everything that is read in the block be of one moment, whatever runs commit.

        Raises VersionConflictError: a run was stopped within a batch, or while tables joined.
        """
        with super().snapshot():
            if self._joining() is not None:
                raise self._within_joining()
            yield

    def changes(
        self, definition: TableDefinition, after: Position | None
    ) -> Iterator[CommittedChanges]:
        """Yield what each commit after a position has changed in a table, in order; None: the whole
        table, as one commit of inserts.

        Raises as `LakeTables`, and VersionConflictError: a run was stopped while tables joined.
        """
        if self._joining() is not None:
            raise self._within_joining()
        yield from super().changes(definition, after)

    def _within_joining(self) -> VersionConflictError:
        return VersionConflictError(
            f"{TABLES_CONFLICT} {self._format.root}: a run was stopped while tables joined the"
            " others; run the pipeline to finish it"
        )

    def adopt(self, fresh: Self, joining: Joining) -> bool:
        """Put the tables of `fresh` among these, planned first: a run that is killed is finished by
        `settle`. Return False: these have more or less of the log than those by now.

        Raises ConfigurationError: the decoding puts other transactions aside; CorruptionError: the
        log was another one; VersionConflictError: another run was faster.
        """
        with self._locked(), self._format_errors_named():
            if not self._is_joinable(fresh, joining):
                return False
            plan = (str(fresh.directory), json.dumps([joining.names, joining.dropped]))
            with self._transaction() as database:
                database.execute(JOINING)
                database.execute("INSERT INTO waltz_joining VALUES (?, ?)", plan)
                self._note_joined(database, fresh, joining)
            self._settle()
        return True

    def settle(self) -> None:
        """Finish what a run has begun in `adopt` and not finished."""
        if self._joining() is not None:
            with self._locked(), self._format_errors_named():
                self._settle()

    def _joining(self) -> tuple[Path, list[str], list[str]] | None:
        """Return the directory with the tables that are joining these, their names, and the names
        of those that go."""
        with self._errors_named():
            if not self._exists("waltz_joining"):
                return None
            ((place, text),) = self._rows("SELECT place, tables FROM waltz_joining")
        names, dropped = json.loads(text)
        return Path(place), names, dropped

    def _settle(self) -> None:
        found = self._joining()
        if found is None:
            return
        place, names, dropped = found
        number = self._state().number
        for name in dropped:
            self._put_away(name, place)
        for name in names:
            if not (place / name).exists():
                continue  # it has joined before a run was killed
            self._renumber(place / name, number)
            self._put_away(name, place)
            (place / name).rename(self.directory / name)
        for each in (self.directory, place):
            if each.exists():
                sync(each)
        with self._transaction() as database:
            database.execute("DROP TABLE waltz_joining")

    def _put_away(self, name: str, place: Path) -> None:
        """Move a table, if it is there, to where it is deleted later."""
        if (self.directory / name).exists():
            (self.directory / name).rename(place / f"{OLD}{name}")

    def _renumber(self, path: Path, number: int) -> None:
        """Let a table say that it has as many batches as these."""
        from deltalake import CommitProperties, DeltaTable, Transaction

        table = DeltaTable(str(path))
        if self._format.batches(table) == number:
            return
        commit = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(BATCH_ID, number)]
        )
        version = table.version() + 1
        table.create_write_transaction(
            [], "append", table.schema(), [BUCKET], commit_properties=commit
        )
        sync_log(path, version)
