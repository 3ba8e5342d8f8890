"""Derived tables as Delta tables in one directory: open files, readable by what reads Delta.

A database of SQLite in the same directory has what SQLite's target has beside its tables: origin,
marks, digests, transactions put aside. A batch changes several Delta tables, each of which commits
by itself. So the batch is planned in the database first; then each table takes the batch in one
commit, which also has the number of the batch and the marks as application transactions; then the
database notes that the batch is done. A run that finds a plan takes in that batch first: tables
whose number says that they have the batch are left as they are.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.codes import INVALID_TABLES, TABLES_CONFLICT
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.table_store import (
    REMEDY,
    Batch,
    Layout,
    Rows,
    TableStore,
    create_table,
    join_rows,
    quoted,
)
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from deltalake import DeltaTable

DATABASE: Final = "waltz.db"
BUCKET: Final = "waltz_bucket"
BUCKETS: Final = 64
"""Parts of a table, by a hash of the key: a commit replaces the files of those that its batch
touches."""

BATCH_ID: Final = "waltz-batch"
"""The application whose transaction of a table is the number of the last batch it has."""

MARK_ID: Final = "waltz-mark-{}"
"""The application whose transaction of a table is the mark of a partition."""

STATE: Final = """
CREATE TABLE waltz_delta (number INTEGER NOT NULL, ranges TEXT, history TEXT) STRICT
"""
"""One row: the number of batches that every table has, and the plan of the next one, if there is
one."""

Plan = tuple[list[TransactionRange], UUID | None]


class DeltaTables(TableStore):
    """The Delta tables in one directory of a local disk; a context manager."""

    def __init__(self, directory: Path, *, create: bool) -> None:
        """Open the directory. Raises NotFoundError: there is none, and it is not to be made;
        ConfigurationError: delta-rs is not installed, or the directory is something else's."""
        try:
            import deltalake  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"{error.name} is missing: run `pip install '.[lakehouse]'` in a checkout of Waltz"
            ) from error
        path = directory / DATABASE
        if create and not path.exists() and directory.exists() and _has_content(directory):
            raise ConfigurationError(
                f"{INVALID_TABLES} {directory} has files that no pipeline made; name another target"
            )
        self._pinned: dict[str, DeltaTable] = {}
        super().__init__(path, create=create)
        self._inode = self.path.stat().st_ino

    @property
    def directory(self) -> Path:
        return self.path.parent

    def prepare(self, cluster_key: UUID, fingerprint: str, layouts: Iterable[Layout]) -> None:
        """Make the directory that of these tables of this cluster, or make sure that it is.

        Raises ConfigurationError: it is another's; CorruptionError: it cannot be written.
        """
        with self._locked(), self._delta_errors_named():
            super().prepare(cluster_key, fingerprint, ())
            with self._transaction() as database:
                if not self._exists("waltz_delta"):
                    if self.marks():
                        raise ConfigurationError(
                            f"{INVALID_TABLES} {self.path} is of tables in SQLite; name another"
                            " target"
                        )
                    database.execute(STATE)
                    database.execute("INSERT INTO waltz_delta VALUES (0, NULL, NULL)")
            if self._state() == (0, None):
                for each in layouts:
                    _create(self._path(each), each)

    def expect_history(self, histories: Histories) -> None:
        """Check that the log has what was taken in, or begun to be. Raises HistoryChangedError."""
        _, plan = self._state()
        marks, history = self.marks(), self.history()
        if plan is not None:
            marks |= {each.partition_id: each.end for each in plan[0]}
            history = plan[1]
        who = f"the directory {self.directory}"
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
            with self._locked(), self._delta_errors_named():
                if self._exists("waltz_delta"):
                    if self._state()[1] is not None:
                        raise VersionConflictError(
                            f"{TABLES_CONFLICT} {self.directory}: a run was stopped within a"
                            " batch, which only some tables have; run the pipeline to finish it"
                        )
                    self._pinned = {
                        each.parent.name: _opened(each.parent)
                        for each in self.directory.glob("*/_delta_log")
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
        with self._delta_errors_named():
            table = self._pinned.get(name) or _opened(self.directory / name)
            for batch in table.to_pyarrow_dataset().to_batches(columns=columns):
                yield from zip(*(each.to_pylist() for each in batch.columns), strict=True)

    def add(self, batch: Batch) -> None:
        """Join `batch` with the present rows, all or nothing.

        Raises VersionConflictError: another run has taken in the same transactions meanwhile;
        CorruptionError: a table does not take the batch (a sum beyond 64 bits, a full disk).
        """
        with self._locked(), self._delta_errors_named():
            self._expect_start(batch.ranges)
            number, plan = self._state()
            if plan is not None and plan[0] != list(batch.ranges):
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self.directory}: another run has begun a batch with other"
                    " ends; run again"
                )
            # What cannot be joined is found before anything is planned.
            changes = []
            for rows in batch.tables:
                table = self._expected(rows.layout, number, is_planned=plan is not None)
                if (table.transaction_version(BATCH_ID) or 0) == number:
                    changes.append((table, rows.layout, *_joined(table, rows)))
            if plan is None:
                self._note_plan(batch)
            for table, layout, buckets, content in changes:
                self._commit(table, self._path(layout), buckets, content, number + 1, batch.ranges)
            with self._transaction() as database:
                self._add_facts(database, batch)
                database.execute(
                    "UPDATE waltz_delta SET number = number + 1, ranges = NULL, history = NULL"
                )

    def replace_by(self, other: TableStore) -> None:
        """Put the tables of `other` in the place of these; both are closed after that."""
        assert isinstance(other, DeltaTables)
        with self._locked():
            for each in (self, other):
                each.__exit__()
            self.directory.rename(other.directory.with_name("old"))
            other.directory.rename(self.directory)
            _sync(self.directory.parent)

    def _state(self) -> tuple[int, Plan | None]:
        """Return the number of batches that every table has, and the plan of the next."""
        with self._errors_named():
            found = self._rows("SELECT * FROM waltz_delta") if self._exists("waltz_delta") else []
        if len(found) != 1:
            raise CorruptionError(
                f"{INVALID_TABLES} {self.path}: waltz_delta has {len(found)} rows, expected 1; run"
                " `waltz pipeline rebuild`"
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
            database.execute("UPDATE waltz_delta SET ranges = ?, history = ?", plan)

    def _expected(self, layout: Layout, number: int, *, is_planned: bool) -> DeltaTable:
        """Return a table. Raises CorruptionError: the table has other batches than the database."""
        table = _opened(self._path(layout))
        found = table.transaction_version(BATCH_ID) or 0
        if found != number and not (is_planned and found == number + 1):
            raise CorruptionError(
                f"{INVALID_TABLES} {self._path(layout)} has {found} batches, {self.path} has"
                f" {number}: one of them was put back or replaced; run `waltz pipeline rebuild`"
            )
        return table

    def _commit(
        self,
        table: DeltaTable,
        path: Path,
        buckets: Sequence[int],
        content: Any,
        number: int,
        ranges: Sequence[TransactionRange],
    ) -> None:
        """Replace some buckets of a table, on top of the version that `content` was made from."""
        from deltalake import CommitProperties, Transaction, write_deltalake

        marks = [Transaction(MARK_ID.format(each.partition_id), each.end) for each in ranges]
        # Not once again on top of what another writer has committed meanwhile.
        commit = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(BATCH_ID, number), *marks]
        )
        version = table.version() + 1
        if buckets:
            wanted = f"{BUCKET} IN ({', '.join(map(str, buckets))})"
            write_deltalake(
                table, content, mode="overwrite", predicate=wanted, commit_properties=commit
            )
        else:
            write_deltalake(table, content, mode="append", commit_properties=commit)
        # The commit is on the disk before the database says that it is there.
        parts = [path / f"{BUCKET}={each}" for each in buckets]
        log = path / "_delta_log"
        written = [*log.glob(f"{version:020}*"), *log.glob("_last_checkpoint")]
        for each in parts:
            written += each.iterdir()
        for file in (*written, *parts, log, path, self.directory):
            _sync(file)

    def _path(self, layout: Layout) -> Path:
        return self.directory / layout.definition.name

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the tables. Raises VersionConflictError: they were
        replaced since they were opened."""
        lock = self.directory.with_name(f".{self.directory.name}.lock")
        with lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not self.path.exists() or self.path.stat().st_ino != self._inode:
                raise VersionConflictError(
                    f"{TABLES_CONFLICT} {self.directory} was replaced meanwhile; run again"
                )
            yield

    @contextmanager
    def _delta_errors_named(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            with self._errors_named():
                yield
        except CommitFailedError as error:
            raise VersionConflictError(
                f"{TABLES_CONFLICT} {self.directory}: another writer has changed a table: {error};"
                " run again"
            ) from error
        except (DeltaError, OSError) as error:
            raise CorruptionError(f"{INVALID_TABLES} {self.directory}: {error}") from error


def _joined(table: DeltaTable, rows: Rows) -> tuple[list[int], Any]:
    """Return the buckets that some rows touch, and all rows of these, joined.

    Raises sqlite3.Error: a sum beyond 64 bits.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    layout = rows.layout
    names = [each.name for each in layout.columns]
    width = len(layout.definition.keys)
    buckets = sorted({_bucket(each[:width]) for each in rows.values})
    present = table.to_pyarrow_dataset().to_batches(
        columns=names, filter=ds.field(BUCKET).isin(buckets)
    )
    # A database without a name is a file that is gone when it is closed.
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        create_table(database, layout)
        database.execute("BEGIN")
        for batch in present:
            old = list(zip(*(each.to_pylist() for each in batch.columns), strict=True))
            join_rows(database, Rows(layout, old))
        join_rows(database, rows)
        columns = ", ".join(map(quoted, names))
        found = database.execute(f"SELECT {columns} FROM {quoted(layout.definition.name)}")
        joined = [(*row, _bucket(row[:width])) for row in found]
    schema = _schema(layout)
    values = list(zip(*joined, strict=True)) or [()] * len(schema)
    arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
    return buckets, pa.table(arrays, schema=schema)


def _has_content(directory: Path) -> bool:
    return any(directory.iterdir())


def _opened(path: Path) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(path)


def _create(path: Path, layout: Layout) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(path, _schema(layout), mode="ignore", partition_by=[BUCKET])


def _schema(layout: Layout) -> Any:
    import pyarrow as pa

    types = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64(), "BLOB": pa.binary()}
    fields = [pa.field(each.name, types[each.type]) for each in layout.columns]
    return pa.schema([*fields, pa.field(BUCKET, pa.int32())])


def _bucket(key: Sequence[Any]) -> int:
    """Return the bucket of a key, whose truths are 0 or 1 once they are in a table."""
    plain = [int(each) if isinstance(each, bool) else each for each in key]
    return zlib.crc32(json.dumps(plain).encode()) % BUCKETS


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
