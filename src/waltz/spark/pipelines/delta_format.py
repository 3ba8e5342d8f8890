"""Delta tables in one place, each by itself.

A commit names new files, has the number of the batch and the marks as application transactions, and
fails if another writer has made the version after the one that it was computed from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.bucket_join import BUCKET, BucketJoin, JoinedBucket, arrow_schema
from waltz.spark.pipelines.lake_format import LakeFormat
from waltz.spark.pipelines.row_changes import Marks, present
from waltz.spark.pipelines.table_files import sync
from waltz.spark.pipelines.table_store import Layout
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

STORE_ERROR: Final = "Generic S3 error"
"""The text by which delta-rs tells an error of a bucket from one of a table."""

DeltaFile = tuple[str, int]
"""The path of a file relative to its table, and its size in bytes."""

Files = Mapping[int, list[DeltaFile]]
"""Files of a table, by their buckets."""

Partitions = Callable[[], Collection[PartitionId]]
"""A function that returns the partitions of which the tables may have something: a table can be
asked for the mark of a partition, not for all its marks."""


class DeltaFormat(LakeFormat["DeltaTable", DeltaFile]):
    """The Delta tables in a directory, unless a class derived from this says otherwise."""

    name = "Delta"
    package = "deltalake"
    state_table = "waltz_delta"

    def __init__(
        self, root: str, partitions: Partitions, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Note the place, and how delta-rs reaches it."""
        super().__init__(root)
        self._partitions = partitions
        self._storage_options = dict(storage_options or {})

    def conflicts(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import CommitFailedError

        return (CommitFailedError,)

    def faults(self) -> tuple[type[Exception], ...]:
        from deltalake.exceptions import DeltaError

        return (DeltaError,)

    def create(self, layout: Layout, buckets: int) -> None:
        from deltalake import DeltaTable

        DeltaTable.create(
            self.table_root(layout.definition.name),
            _schema(layout),
            mode="ignore",
            partition_by=[BUCKET],
            description=f"{buckets} buckets of keys",
            storage_options=self._storage_options,
        )

    def names(self) -> list[str]:
        return sorted(each.parent.name for each in Path(self.root).glob("*/_delta_log"))

    def opened(self, name: str) -> DeltaTable:
        from deltalake import DeltaTable

        return DeltaTable(self.table_root(name), storage_options=self._storage_options)

    def versions(self, name: str) -> DeltaVersions:
        table = self.opened(name)
        # Asked for later than the table, which has no partition that was not planned before.
        return DeltaVersions(table, self._partitions(), self.files)

    def batches(self, table: DeltaTable) -> int:
        return table.transaction_version(BATCH_ID) or 0

    def files(self, table: DeltaTable) -> dict[int, list[DeltaFile]]:
        import pyarrow as pa

        found: dict[int, list[DeltaFile]] = {}
        actions = pa.table(table.get_add_actions(flatten=True))
        names = ("path", "size_bytes", f"partition.{BUCKET}")
        if not len(actions):
            return found
        for path, size, bucket in zip(*(actions[each].to_pylist() for each in names), strict=True):
            found.setdefault(bucket, []).append((path, size))
        return found

    def read(self, table: DeltaTable, columns: list[str]) -> Iterator[Any]:
        yield from table.to_pyarrow_dataset().to_batches(columns=columns)

    def join(
        self, table: DeltaTable, layout: Layout, files: Files, number: int, buckets: int
    ) -> BucketJoin:
        present = {bucket: [path for path, _ in found] for bucket, found in files.items()}
        root = self.table_root(layout.definition.name)
        return BucketJoin(root, layout, present, number, buckets)

    def commit(
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

    def tidied(self, name: str, retention_hours: int, delete: bool) -> TidiedTable:
        table = self.opened(name)
        version = table.version() + 1
        sizes = self._sizes(name)
        named = table.vacuum(
            retention_hours, dry_run=not delete, enforce_retention_duration=False, full=True
        )
        # In an object store delta-rs also names what an earlier call has removed.
        paths = sorted(each for each in named if each in sizes)
        if delete:
            table = self.opened(name)
            table.create_checkpoint()
            self._sync_log(name, version)
        return TidiedTable(name, tuple(paths), sum(sizes[each] for each in paths))

    def _sizes(self, name: str) -> dict[str, int]:
        """Return the bytes of the files there are beside a table's log, by their paths."""
        root = Path(self.table_root(name))
        found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        return {
            path: file.stat().st_size for path, file in found.items() if not path.startswith(LOG)
        }

    def _sync_log(self, name: str, version: int) -> None:
        """Have the log of a table from `version` on on the disk; its files are there already."""
        sync_log(Path(self.table_root(name)), version)


class DeltaVersions:
    """The versions that a table has in its log."""

    def __init__(
        self,
        table: DeltaTable,
        partitions: Collection[PartitionId],
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
