"""Derived tables as Delta tables in one directory: open files, readable by what reads Delta.

A database of SQLite in the same directory has what SQLite's target has beside its tables: origin,
marks, digests, transactions put aside. A batch changes several Delta tables, each of which commits
by itself. So the batch is planned in the database first; then each table takes the batch in one
commit, which also has the number of the batch and the marks as application transactions; then the
database notes that the batch is done. A run that finds a plan takes in that batch first: tables
whose number says that they have the batch are left as they are.

The rows of groups do not come here: tasks of Spark join them with the buckets that they touch and
write the new files (`delta_join.py`); a commit names these in the place of the old ones.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.codes import DEFINITION_CHANGED, INVALID_TABLES, TABLES_CONFLICT
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.delta_join import (
    BUCKET,
    BucketJoin,
    JoinedBucket,
    arrow_schema,
)
from waltz.spark.pipelines.table_files import sync
from waltz.spark.pipelines.table_store import (
    REMEDY,
    Batch,
    Layout,
    TableStore,
)
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from deltalake import DeltaTable

DATABASE: Final = "waltz.db"
LOG: Final = "_delta_log/"
"""The directory of a table that has its commits."""

BUCKETS: Final = 64
"""Parts of a table by a hash of the key, if the definition does not say how many. A commit replaces
the files of those that its batch touches."""

BATCH_ID: Final = "waltz-batch"
"""The application whose transaction of a table is the number of the last batch it has."""

MARK_ID: Final = "waltz-mark-{}"
"""The application whose transaction of a table is the mark of a partition."""

STATE: Final = """
CREATE TABLE waltz_delta (
    number INTEGER NOT NULL, ranges TEXT, history TEXT, buckets INTEGER NOT NULL) STRICT
"""
"""One row: the number of batches that every table has, the plan of the next one, if there is one,
and the number of buckets of each table, which never changes."""

Plan = tuple[list[TransactionRange], UUID | None]
Files = dict[int, list[tuple[str, int]]]
"""Files of a table, by their buckets: paths relative to the table, and sizes in bytes."""


@dataclass(frozen=True, slots=True)
class TidiedTable:
    """A table and its files that no version of the retained time needs, relative to the table.

    byte_count  their sizes together.
    """

    table: str
    files: tuple[str, ...]
    byte_count: int


class DeltaTables(TableStore):
    """The Delta tables in one directory of a local disk; a context manager."""

    def __init__(self, directory: Path, *, create: bool, buckets: int | None = None) -> None:
        """Open the directory; `buckets` is the number that the definition names.

        Raises NotFoundError: there is none, and it is not to be made; ConfigurationError: delta-rs
        is not installed, or the directory is something else's.
        """
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
        self._wanted_buckets = buckets
        self._pinned: dict[str, DeltaTable] = {}
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

    def _opened(self, name: str) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.table_root(name), storage_options=self._storage_options())

    def _storage_options(self) -> dict[str, str]:
        """Return how delta-rs reaches the tables."""
        return {}

    def _table_names(self) -> list[str]:
        return sorted(each.parent.name for each in self.directory.glob("*/_delta_log"))

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
                            f"{INVALID_TABLES} {self.place} is of tables in SQLite; name another"
                            " target"
                        )
                    database.execute(STATE)
                    wanted = self._wanted_buckets or BUCKETS
                    database.execute("INSERT INTO waltz_delta VALUES (0, NULL, NULL, ?)", (wanted,))
            buckets = self._buckets()
            if self._wanted_buckets not in (None, buckets):
                raise ConfigurationError(
                    f"{DEFINITION_CHANGED} {self.root} has tables of {buckets} buckets, the"
                    f" definition says {self._wanted_buckets}; run `waltz pipeline rebuild`"
                )
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
            with self._locked(), self._delta_errors_named():
                if self._exists("waltz_delta"):
                    if self._state()[1] is not None:
                        raise VersionConflictError(
                            f"{TABLES_CONFLICT} {self.root}: a run was stopped within a"
                            " batch, which only some tables have; run the pipeline to finish it"
                        )
                    self._pinned = {each: self._opened(each) for each in self._table_names()}
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
            table = self._pinned.get(name) or self._opened(name)
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
                    f"{TABLES_CONFLICT} {self.root}: another run has begun a batch with other"
                    " ends; run again"
                )
            # What cannot be joined is found before anything is planned.
            changes = []
            for rows in batch.tables:
                table = self._expected(rows.layout, number, is_planned=plan is not None)
                if (table.transaction_version(BATCH_ID) or 0) == number:
                    files = _files(table)
                    join = self._join(rows.layout, files, number + 1)
                    changes.append((table, rows.layout, files, join.run(rows)))
            batch.confirm()
            if plan is None:
                self._note_plan(batch)
            for table, layout, files, joined in changes:
                self._commit(table, layout, files, joined, number + 1, batch.ranges)
            with self._transaction() as database:
                self._add_facts(database, batch)
                database.execute(
                    "UPDATE waltz_delta SET number = number + 1, ranges = NULL, history = NULL"
                )

    def tidy(self, retention_hours: int, *, delete: bool) -> list[TidiedTable]:
        """Find, and `delete`, the files that no version of the last hours needs: replaced ones, and
        those that a killed task or driver left. Return them per table.

        A bucket is one file after each batch, so there is nothing to compact. Raises
        CorruptionError: a table or a file cannot be read or removed.
        """
        found = []
        with self._locked(), self._delta_errors_named():
            for name in self._table_names():
                table = self._opened(name)
                version = table.version() + 1
                sizes = self._sizes(name)
                named = table.vacuum(
                    retention_hours,
                    dry_run=not delete,
                    enforce_retention_duration=False,
                    full=True,
                )
                # In a bucket delta-rs also names what an earlier call has removed.
                paths = [each for each in named if each in sizes]
                if delete:
                    table = self._opened(name)
                    table.create_checkpoint()
                    self._sync_log(name, version)
                size = sum(sizes[each] for each in paths)
                found.append(TidiedTable(name, tuple(sorted(paths)), size))
        return found

    def _sizes(self, name: str) -> dict[str, int]:
        """Return the bytes of the files there are beside a table's log, by their paths."""
        root = self.directory / name
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        return {
            path: file.stat().st_size for path, file in found.items() if not path.startswith(LOG)
        }

    def replace_by(self, other: TableStore) -> None:
        """Put the tables of `other` in the place of these; both are closed after that."""
        assert isinstance(other, DeltaTables)
        with self._locked():
            for each in (self, other):
                each.__exit__()
            self.directory.rename(other.directory.with_name("old"))
            other.directory.rename(self.directory)
            sync(self.directory.parent)

    def _create(self, layout: Layout, buckets: int) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(
            self.table_root(layout.definition.name),
            _schema(layout),
            mode="ignore",
            partition_by=[BUCKET],
            description=f"{buckets} buckets of keys",
            storage_options=self._storage_options(),
        )

    def _join(self, layout: Layout, files: Files, number: int) -> BucketJoin:
        present = {bucket: [path for path, _ in found] for bucket, found in files.items()}
        root = self.table_root(layout.definition.name)
        return BucketJoin(root, layout, present, number, self._buckets())

    def _buckets(self) -> int:
        with self._errors_named():
            ((buckets,),) = self._rows("SELECT buckets FROM waltz_delta")
        return int(buckets)

    def _state(self) -> tuple[int, Plan | None]:
        """Return the number of batches that every table has, and the plan of the next."""
        with self._errors_named():
            found = []
            if self._exists("waltz_delta"):
                found = self._rows("SELECT number, ranges, history FROM waltz_delta")
        if len(found) != 1:
            raise CorruptionError(
                f"{INVALID_TABLES} {self.place}: waltz_delta has {len(found)} rows, expected 1; run"
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
        name = layout.definition.name
        table = self._opened(name)
        found = table.transaction_version(BATCH_ID) or 0
        if found != number and not (is_planned and found == number + 1):
            raise CorruptionError(
                f"{INVALID_TABLES} {self.table_root(name)} has {found} batches, {self.place} has"
                f" {number}: one of them was put back or replaced; run `waltz pipeline rebuild`"
            )
        return table

    def _commit(
        self,
        table: DeltaTable,
        layout: Layout,
        files: Files,
        joined: Sequence[JoinedBucket],
        number: int,
        ranges: Sequence[TransactionRange],
    ) -> None:
        """Name new files in the place of those that their buckets had in the version `table`."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        marks = [Transaction(MARK_ID.format(each.partition_id), each.end) for each in ranges]
        # Not once again on top of what another writer has committed meanwhile.
        commit = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(BATCH_ID, number), *marks]
        )
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        for each in joined:
            values: dict[str, str | None] = {BUCKET: str(each.bucket)}
            actions += [
                RemoveAction(path, True, now, size, values)
                for path, size in files.get(each.bucket, ())
            ]
            actions.append(
                AddAction(each.path, each.size, values, each.written_at, True, each.statistics)
            )
        version = table.version() + 1
        table.create_write_transaction(
            actions, "append", _schema(layout), [BUCKET], commit_properties=commit
        )
        # The commit is on the disk before the database says that it is there.
        self._sync_log(layout.definition.name, version)

    def _sync_log(self, name: str, version: int) -> None:
        """Have the log of a table from `version` on on the disk; its files are there already."""
        path = self.directory / name
        log = path / "_delta_log"
        written = [each for each in log.glob("0*") if int(each.name.split(".")[0]) >= version]
        for file in (*written, *log.glob("_last_checkpoint"), log, path, self.directory):
            sync(file)

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
    def _delta_errors_named(self) -> Iterator[None]:
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            with self._errors_named():
                yield
        except CommitFailedError as error:
            raise VersionConflictError(
                f"{TABLES_CONFLICT} {self.root}: another writer has changed a table: {error};"
                " run again"
            ) from error
        except (DeltaError, OSError) as error:
            raise CorruptionError(f"{INVALID_TABLES} {self.root}: {error}") from error


def _files(table: DeltaTable) -> Files:
    """Return the files that a version of a table names, by their buckets."""
    import pyarrow as pa

    found: Files = {}
    actions = pa.table(table.get_add_actions(flatten=True))
    names = ("path", "size_bytes", f"partition.{BUCKET}")
    if not len(actions):
        return found
    for path, size, bucket in zip(*(actions[each].to_pylist() for each in names), strict=True):
        found.setdefault(bucket, []).append((path, size))
    return found


def _has_content(directory: Path) -> bool:
    return any(directory.iterdir())


def _schema(layout: Layout) -> Any:
    import pyarrow as pa

    return arrow_schema(layout).append(pa.field(BUCKET, pa.int32()))
