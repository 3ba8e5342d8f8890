"""Derived tables as Delta tables: open files, readable by what reads Delta.

A commit names new files, has the number of the batch and the marks as application transactions, and
fails if another writer has made the version after the one that it was computed from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

from waltz.errors import VersionConflictError
from waltz.spark.codes import TABLES_CONFLICT
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.bucket_join import BUCKET, BucketJoin, JoinedBucket, arrow_schema
from waltz.spark.pipelines.lake_tables import LakeTables
from waltz.spark.pipelines.row_changes import Marks, present
from waltz.spark.pipelines.table_files import sync
from waltz.spark.pipelines.table_store import Joining, Layout, TableStore
from waltz.spark.pipelines.target import TidiedTable
from waltz.types import PartitionId

if TYPE_CHECKING:
    from deltalake import DeltaTable

LOG: Final = "_delta_log/"
"""The directory of a table that has its commits."""

BATCH_ID: Final = "waltz-batch"
"""The application whose transaction of a table is the number of the last batch it has."""

MARK_ID: Final = "waltz-mark-{}"
"""The application whose transaction of a table is the mark of a partition."""

JOINING: Final = "CREATE TABLE waltz_joining (place TEXT NOT NULL, tables TEXT NOT NULL) STRICT"
"""One row while tables are moved among the others: from where, and which come and go."""

OLD: Final = "old."
"""The prefix of the name of a directory of a table that has gone; no table can have it."""

STORE_ERROR: Final = "Generic S3 error"
"""The text by which delta-rs tells an error of a bucket from one of a table."""

Files = Mapping[int, list[tuple[str, int]]]
"""Files of a table, by their buckets: paths relative to the table, and sizes in bytes."""


class DeltaTables(LakeTables["DeltaTable", tuple[str, int]]):
    """The Delta tables in one directory of a local disk; a context manager."""

    format = "Delta"
    package = "deltalake"
    state = "waltz_delta"

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

    def _within_joining(self) -> VersionConflictError:
        return VersionConflictError(
            f"{TABLES_CONFLICT} {self.root}: a run was stopped while tables joined the others; run"
            " the pipeline to finish it"
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
        number, _ = self._state()
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
        if self._batches(table) == number:
            return
        commit = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(BATCH_ID, number)]
        )
        version = table.version() + 1
        table.create_write_transaction(
            [], "append", table.schema(), [BUCKET], commit_properties=commit
        )
        sync_log(path, version)

    def _conflicts(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import CommitFailedError

        return (CommitFailedError,)

    def _faults(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return (DeltaError,)

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

    def _storage_options(self) -> dict[str, str]:
        """Return how delta-rs reaches the tables."""
        return {}

    def _names(self) -> list[str]:
        return sorted(each.parent.name for each in self.directory.glob("*/_delta_log"))

    def _opened(self, name: str) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.table_root(name), storage_options=self._storage_options())

    def _versions(self, name: str) -> DeltaVersions:
        if self._joining() is not None:
            raise self._within_joining()
        table = self._opened(name)
        # Asked for later than the table, which has no partition that was not planned before.
        return DeltaVersions(table, self._known_partitions(), self._files)

    def _known_partitions(self) -> list[PartitionId]:
        """Return the partitions of which the tables may have something."""
        return sorted({*self.marks(), *self.planned()})

    def _batches(self, table: DeltaTable) -> int:
        return table.transaction_version(BATCH_ID) or 0

    def _files(self, table: DeltaTable) -> dict[int, list[tuple[str, int]]]:
        import pyarrow as pa

        found: dict[int, list[tuple[str, int]]] = {}
        actions = pa.table(table.get_add_actions(flatten=True))
        names = ("path", "size_bytes", f"partition.{BUCKET}")
        if not len(actions):
            return found
        for path, size, bucket in zip(*(actions[each].to_pylist() for each in names), strict=True):
            found.setdefault(bucket, []).append((path, size))
        return found

    def _read(self, table: DeltaTable, columns: list[str]) -> Iterator[Any]:
        yield from table.to_pyarrow_dataset().to_batches(columns=columns)

    def _join(self, table: DeltaTable, layout: Layout, files: Files, number: int) -> BucketJoin:
        present = {bucket: [path for path, _ in found] for bucket, found in files.items()}
        root = self.table_root(layout.definition.name)
        return BucketJoin(root, layout, present, number, self._buckets())

    def _commit(
        self,
        table: DeltaTable,
        layout: Layout,
        files: Files,
        joined: Sequence[JoinedBucket],
        number: int,
        ranges: Sequence[TransactionRange],
    ) -> None:
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
                if path in each.replaced
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

    def _tidied(self, name: str, retention_hours: int, delete: bool) -> TidiedTable:
        table = self._opened(name)
        version = table.version() + 1
        sizes = self._sizes(name)
        named = table.vacuum(
            retention_hours, dry_run=not delete, enforce_retention_duration=False, full=True
        )
        # In an object store delta-rs also names what an earlier call has removed.
        paths = sorted(each for each in named if each in sizes)
        if delete:
            table = self._opened(name)
            table.create_checkpoint()
            self._sync_log(name, version)
        return TidiedTable(name, tuple(paths), sum(sizes[each] for each in paths))

    def _sizes(self, name: str) -> dict[str, int]:
        """Return the bytes of the files there are beside a table's log, by their paths."""
        root = self.directory / name
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        return {
            path: file.stat().st_size for path, file in found.items() if not path.startswith(LOG)
        }

    def _sync_log(self, name: str, version: int) -> None:
        """Have the log of a table from `version` on on the disk; its files are there already."""
        sync_log(self.directory / name, version)


class DeltaVersions:
    """The versions that a table has in its log."""

    def __init__(
        self,
        table: DeltaTable,
        partitions: Sequence[PartitionId],
        files: Callable[[DeltaTable], Files],
    ) -> None:
        self._table = table
        self._partitions = partitions
        self._files = files
        self.table_id = UUID(str(table.metadata().id))
        self.newest = table.version()

    def marks(self, number: int) -> Marks | None:
        """Return how far the log was taken in; None: the log does not have the version any more."""
        if not self._load(number):
            return None
        asked = self._table.transaction_version
        return present({each: asked(MARK_ID.format(each)) or 0 for each in self._partitions})

    def files(self, number: int) -> dict[int, list[str]]:
        """Return the files of a version, by their buckets."""
        self._load(number)
        found = self._files(self._table)
        return {bucket: [path for path, _ in each] for bucket, each in found.items()}

    def _load(self, number: int) -> bool:
        from deltalake.exceptions import DeltaError

        if self._table.version() == number:
            return True
        try:
            self._table.load_as_version(number)
        except DeltaError as error:
            if STORE_ERROR in str(error):
                raise
            return False
        return True


def sync_log(path: Path, version: int) -> None:
    """Have the log of a table in a directory from `version` on on the disk."""
    log = path / LOG
    written = [each for each in log.glob("0*") if int(each.name.split(".")[0]) >= version]
    for file in (*written, *log.glob("_last_checkpoint"), log, path, path.parent):
        sync(file)


def _schema(layout: Layout) -> Any:
    import pyarrow as pa

    return arrow_schema(layout).append(pa.field(BUCKET, pa.int32()))
