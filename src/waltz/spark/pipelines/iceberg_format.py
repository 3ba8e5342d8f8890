"""Iceberg tables in one directory of a local disk, each by itself.

A commit is a snapshot that names new files in the place of others, and has the number of the batch
and the marks as its properties. Which metadata of a table is the present one, a catalog says: it is
in the database next to the tables, so that a rebuild replaces all of them at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from waltz.errors import CorruptionError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.offsets import TransactionRange
from waltz.spark.pipelines.bucket_join import BUCKET, BucketJoin, JoinedBucket
from waltz.spark.pipelines.lake_format import LakeFormat
from waltz.spark.pipelines.row_changes import Marks, present
from waltz.spark.pipelines.table_files import make_directory, sync
from waltz.spark.pipelines.table_store import BUSY_SECONDS, Layout
from waltz.spark.pipelines.target import TidiedTable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

CATALOG: Final = "waltz"
NAMESPACE: Final = "tables"
"""The catalog and the namespace in which the tables have the names of the definition."""

DATA: Final = "data"
"""The directory of a table that has the files of its rows."""

BATCH_ID: Final = "waltz.batch"
"""The property of a snapshot that has the number of the last batch in it."""

MARK: Final = "waltz.mark."
MARK_ID: Final = MARK + "{}"
"""The property of a snapshot that has the mark of a partition."""

HINT: Final = "version-hint.text"
"""The file that tells readers without a catalog which metadata is the present one."""

_SPEC: Final = 0
"""The ID of the partitioning that a table is made with."""

Files = Mapping[int, "list[DataFile]"]


class IcebergFormat(LakeFormat["Table", "DataFile"]):
    """The Iceberg tables in one directory, with their catalog in a database of SQLite."""

    name = "Iceberg"
    package = "pyiceberg"
    state_table = "waltz_iceberg"

    def __init__(self, directory: Path, database: Path) -> None:
        """Note both places. The catalog is opened when it is first asked, to be closed."""
        super().__init__(str(directory))
        self._directory = directory
        self._database = database

    def close(self) -> None:
        """Close the catalog, if it was opened."""
        if "catalog" in self.__dict__:
            self.catalog.close()

    @cached_property
    def catalog(self) -> SqlCatalog:
        """The catalog, whose tables are in the database."""
        from pyiceberg.catalog.sql import SqlCatalog
        from sqlalchemy import URL

        place = URL.create(
            "sqlite", database=str(self._database.absolute()), query={"timeout": str(BUSY_SECONDS)}
        )
        return SqlCatalog(
            CATALOG,
            uri=place.render_as_string(),
            **{"py-io-impl": "waltz.spark.pipelines.iceberg_commit.SyncedFileIO"},
        )

    def conflicts(self) -> tuple[type[Exception], ...]:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        return (CommitFailedException, ValidationException)

    def faults(self) -> tuple[type[Exception], ...]:
        from pyiceberg import exceptions
        from sqlalchemy.exc import SQLAlchemyError

        return (exceptions.NoSuchTableError, SQLAlchemyError, ValueError)

    def create(self, layout: Layout, buckets: int) -> None:
        from pyiceberg.partitioning import PartitionField, PartitionSpec
        from pyiceberg.schema import Schema
        from pyiceberg.transforms import IdentityTransform
        from pyiceberg.types import (
            BinaryType,
            DoubleType,
            IntegerType,
            LongType,
            NestedField,
            StringType,
        )

        types = {
            "INTEGER": LongType(),
            "TEXT": StringType(),
            "REAL": DoubleType(),
            "BLOB": BinaryType(),
        }
        columns = [(each.name, types[each.type]) for each in layout.columns]
        fields = [
            NestedField(number, name, kind)
            for number, (name, kind) in enumerate([*columns, (BUCKET, IntegerType())], 1)
        ]
        self.catalog.create_namespace_if_not_exists(NAMESPACE)
        self.catalog.create_table_if_not_exists(
            (NAMESPACE, layout.definition.name),
            Schema(*fields),
            location=f"file://{self.home(layout.definition.name)}",
            partition_spec=PartitionSpec(
                PartitionField(len(fields), 1000, IdentityTransform(), BUCKET)
            ),
            properties={
                "comment": f"{buckets} buckets of keys",
                "write.metadata.delete-after-commit.enabled": "true",
            },
        )

    def home(self, name: str) -> Path:
        """Return the directory of a table, as its locations name it."""
        return (self._directory / name).absolute()

    def names(self) -> list[str]:
        if not self.catalog.namespace_exists(NAMESPACE):
            return []  # a definition without tables, whose past is only looked at
        return sorted(name for _, name in self.catalog.list_tables(NAMESPACE))

    def directories(self) -> list[str]:
        left = (each.parent.name for each in self._directory.glob("*/metadata"))
        return sorted({*self.names(), *left})

    def opened(self, name: str) -> Table:
        return self.catalog.load_table((NAMESPACE, name))

    def batches(self, table: Table) -> int:
        return int(noted(table).get(BATCH_ID, 0))

    def versions(self, name: str) -> IcebergVersions:
        return IcebergVersions(self.opened(name), self.files)

    def files(self, table: Table, snapshot_id: int | None = None) -> dict[int, list[DataFile]]:
        found: dict[int, list[DataFile]] = {}
        for task in table.scan(snapshot_id=snapshot_id).plan_files():
            specs = {task.file.spec_id, table.spec().spec_id}
            bucket = task.file.partition[0] if specs == {_SPEC} else None
            if task.delete_files or type(bucket) is not int:
                raise CorruptionError(
                    f"{INVALID_TABLES} {table.location()}: another program has cut the table"
                    " otherwise, or deleted rows without rewriting their files; run"
                    " `waltz pipeline rebuild`"
                )
            found.setdefault(bucket, []).append(task.file)
        return found

    def read(self, table: Table, columns: list[str]) -> Iterator[Any]:
        for batch in table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader():
            yield batch.select(columns)

    def join(
        self, table: Table, layout: Layout, files: Files, number: int, buckets: int
    ) -> BucketJoin:
        fields = {each.name: each.field_id for each in table.schema().fields}
        if missing := {BUCKET, *(each.name for each in layout.columns)} - fields.keys():
            raise CorruptionError(
                f"{INVALID_TABLES} {table.location()} has no column {min(missing)}; run"
                " `waltz pipeline rebuild`"
            )
        present = {
            bucket: [str(local_path(each.file_path)) for each in found]
            for bucket, found in files.items()
        }
        root = self.home(layout.definition.name) / DATA
        make_directory(root)
        return BucketJoin(
            str(root),
            layout,
            present,
            number,
            buckets,
            fields=fields,
        )

    def commit(
        self,
        table: Table,
        layout: Layout,
        files: Files,
        joined: Sequence[JoinedBucket],
        number: int,
        ranges: Sequence[TransactionRange],
    ) -> None:
        marks = {MARK_ID.format(each.partition_id): str(each.end) for each in ranges}
        root = self.home(layout.definition.name) / DATA
        replace_files(
            table,
            [_data_file(table, root, each) for each in joined],
            [
                file
                for each in joined
                for file in files.get(each.bucket, ())
                if str(local_path(file.file_path)) in each.replaced
            ],
            noted(table) | marks | {BATCH_ID: str(number)},
        )

    def hint(self) -> None:
        """Name the present metadata of each table next to it."""
        for name in self.names():
            location = local_path(self.opened(name).metadata_location)
            hint = location.with_name(HINT)
            text = location.name.removesuffix(".metadata.json")
            if hint.exists() and hint.read_text() == text:
                continue
            fresh = hint.with_name(f"{HINT}.{uuid4()}")
            fresh.write_text(text)
            sync(fresh)
            fresh.rename(hint)
            sync(hint.parent)

    def tidied(self, name: str, retention_hours: int, delete: bool) -> TidiedTable:
        until = time.time_ns() - retention_hours * 3_600_000_000_000
        root = self.home(name)
        needed: set[Path] = set()
        if name in self.names():
            table = self.opened(name)
            expired = _expired(table, until // 1_000_000)
            needed = _needed(table, expired) | {root / "metadata" / HINT}
        found = {}
        for path in root.rglob("*"):
            if path.is_file() and path not in needed:
                state = path.stat()
                if state.st_mtime_ns <= until:
                    found[str(path.relative_to(root))] = state.st_size
        if delete:
            if name in self.names() and expired:
                table.maintenance.expire_snapshots().by_ids(expired).commit()
                self.hint()
            for each in found:
                (root / each).unlink(missing_ok=True)
        return TidiedTable(name, tuple(sorted(found)), sum(found.values()))


class IcebergVersions:
    """The snapshots that the present one of a table comes from, as far as they are kept. Version 0
    is the table without rows, or what was let go."""

    def __init__(self, table: Table, files: Callable[[Table, int], Files]) -> None:
        from pyiceberg.table.snapshots import ancestors_of

        self._table = table
        self._files = files
        self._snapshots = list(ancestors_of(table.current_snapshot(), table.metadata))[::-1]
        self.table_id = table.metadata.table_uuid
        self.newest = len(self._snapshots)

    def marks(self, number: int) -> Marks | None:
        """Return how far the log was taken in; None: the snapshot is not kept any more."""
        while number:
            found = _ours(self._snapshots[number - 1])
            if BATCH_ID in found:  # other snapshots are of other programs
                return present(
                    {
                        int(key.removeprefix(MARK)): int(value)
                        for key, value in found.items()
                        if key.startswith(MARK)
                    }
                )
            number -= 1
        # Once snapshots before it were let go, the oldest one has no parent either.
        is_whole = not self._snapshots or self._snapshots[0].sequence_number == 1
        return {} if is_whole else None

    def files(self, number: int) -> dict[int, list[str]]:
        """Return the files of a snapshot, by their buckets."""
        if not number:
            return {}
        found = self._files(self._table, self._snapshots[number - 1].snapshot_id)
        return {
            bucket: [str(local_path(each.file_path)) for each in files]
            for bucket, files in found.items()
        }


def local_path(location: str) -> Path:
    """Return the path of a location that a table of this machine has. Raises ValueError: it is on
    another."""
    path = location.removeprefix("file://")
    if not path.startswith("/"):
        raise ValueError(f"{location:.200} is not on a disk of this machine")
    return Path(path)


def replace_files(
    table: Table, added: Sequence[DataFile], removed: Sequence[DataFile], properties: dict[str, str]
) -> None:
    """Commit a snapshot on top of the version `table`. Raises CommitFailedException: there is one
    already."""
    from waltz.spark.pipelines.iceberg_commit import ReplacedFiles

    transaction = table.transaction()
    files = ReplacedFiles(transaction, properties, is_append=not removed)
    for each in added:
        files.append_data_file(each)
    for each in removed:
        files.delete_data_file(each)
    files.commit()
    transaction.commit_transaction()


def _data_file(table: Table, root: Path, joined: JoinedBucket) -> DataFile:
    """Return what a manifest says of a bucket's new file."""
    from pyiceberg.conversions import to_bytes
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record
    from pyiceberg.types import PrimitiveType

    facts = json.loads(joined.statistics)
    fields = {each.name: each for each in table.schema().fields}

    def bounds(values: dict[str, Any]) -> dict[int, bytes]:
        found = {}
        for name, value in (values | {BUCKET: joined.bucket}).items():
            kind = fields[name].field_type
            assert isinstance(kind, PrimitiveType)
            found[fields[name].field_id] = to_bytes(kind, value)
        return found

    nulls = facts["nullCount"] | {BUCKET: 0}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{root / joined.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(joined.bucket),
        record_count=joined.row_count,
        file_size_in_bytes=joined.size,
        value_counts={each.field_id: joined.row_count for each in fields.values()},
        null_value_counts={fields[name].field_id: count for name, count in nulls.items()},
        lower_bounds=bounds(facts["minValues"]),
        upper_bounds=bounds(facts["maxValues"]),
        spec_id=_SPEC,
    )


def _ours(snapshot: Snapshot) -> dict[str, str]:
    """Return the number and the marks that a snapshot has; none of another program's."""
    if snapshot.summary is None:
        return {}
    properties = snapshot.summary.additional_properties
    return {key: value for key, value in properties.items() if key.startswith("waltz.")}


def noted(table: Table) -> dict[str, str]:
    """Return the number and the marks of the last batch that a table has; none if it has none."""
    last = _last_of_ours(table)
    return {} if last is None else _ours(last)


def _last_of_ours(table: Table) -> Snapshot | None:
    """Return the last snapshot of a batch: another program may have added snapshots without one,
    such as those of a compaction."""
    from pyiceberg.table.snapshots import ancestors_of

    for each in ancestors_of(table.current_snapshot(), table.metadata):
        if each.summary is not None and BATCH_ID in each.summary.additional_properties:
            return each
    return None


def _expired(table: Table, until: int) -> list[int]:
    """Return the snapshots that had a successor at `until`, in milliseconds since 1970, and that no
    branch or tag names."""
    kept = {each.snapshot_id for each in table.metadata.refs.values()}
    if (last := _last_of_ours(table)) is not None:
        kept.add(last.snapshot_id)
    replaced: dict[int, int] = {}
    for each in table.metadata.snapshots:
        if each.parent_snapshot_id is not None:
            known = replaced.get(each.parent_snapshot_id, each.timestamp_ms)
            replaced[each.parent_snapshot_id] = min(known, each.timestamp_ms)
    return [
        each.snapshot_id
        for each in table.metadata.snapshots
        if each.snapshot_id not in kept
        and replaced.get(each.snapshot_id, each.timestamp_ms) <= until
    ]


def _needed(table: Table, expired: Iterable[int]) -> set[Path]:
    """Return the files that a table's snapshots without the expired ones name, and its metadata."""
    metadata = table.metadata
    found = {table.metadata_location, *(each.metadata_file for each in metadata.metadata_log)}
    found.update(each.statistics_path for each in metadata.statistics)
    found.update(each.statistics_path for each in metadata.partition_statistics)
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in expired:
            continue
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in found:
                found.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                found.update(each.data_file.file_path for each in entries)
    return {local_path(each) for each in found}
