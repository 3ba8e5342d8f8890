"""Joins a batch with the buckets of a table that it touches: the work of Spark's executors.

A bucket is the part of a table whose keys share a hash. It has several files, each key in one of
them. A task looks for the batch's keys in the files that one version of the table has of a bucket,
joins the rows of those that have one with the batch's rows of this bucket, writes one new file and
returns what a commit has to say of it. Files without any of these keys stay as they are, unless
there are many (`file_levels.py`), so new keys cost what they are, not what the table has. A task
that runs twice, or whose commit never comes, leaves a file that no version names. Knows nothing of
commits: a table's format makes them.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.pipelines.definition import BUCKETS_MAX
from waltz.spark.pipelines.file_levels import PresentFile, fan_in, merged_files
from waltz.spark.pipelines.frames import Grouped, plain_columns, stored_array
from waltz.spark.pipelines.table_files import TableFiles, open_files
from waltz.spark.pipelines.table_store import (
    Layout,
    Rows,
    TableRows,
    create_table,
    join_rows,
    table_rows,
)

BUCKET: Final = "waltz_bucket"
"""The column with the bucket of a row, by which a table is partitioned."""

JOINED_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes as Arrow that a task has in memory of a bucket: a batch's rows, and the files that have a
key of these. If there are more, the batch fails with the advice to have more buckets."""

FULL_FRACTION: Final = 4
"""A file whose rows would take more than this part of the bound only becomes part of another one if
a batch has a key of it."""

STATISTICS_TEXT_MAX: Final = 32
"""Characters of a text that a file's statistics may contain; a column with a longer smallest or
largest text has none."""

_ERROR: Final = "waltz_error"
_REFUSED: Final = -1
"""The bucket that stands for rows which no table can have."""

JOINED: Final = (
    f"{BUCKET} int, path string, size bigint, row_count bigint, written_at bigint,"
    " statistics string, replaced array<string>, error string, is_too_large boolean"
)
"""The result of a task for one bucket, as Spark's types: a `JoinedBucket` or an error."""

_ARROW_TYPES: Final = {
    "INTEGER": pa.int64(),
    "TEXT": pa.string(),
    "REAL": pa.float64(),
    "BLOB": pa.binary(),
}
_SPARK_TYPES: Final = {"INTEGER": "bigint", "TEXT": "string", "REAL": "double", "BLOB": "binary"}


@dataclass(frozen=True, slots=True)
class JoinedBucket:
    """A new file of a bucket, which has the batch's rows and those of the files that it replaces.

    path        relative to the join's `root`.
    size        bytes of the file.
    written_at  milliseconds since 1970.
    statistics  the JSON of Delta's protocol.
    replaced    those of the join's `files` whose rows are in this one.
    """

    bucket: int
    path: str
    size: int
    row_count: int
    written_at: int
    statistics: str
    replaced: frozenset[str]


@dataclass(frozen=True, slots=True)
class BucketJoin:
    """The work on the buckets of one table in one batch, the same on whatever machine.

    root     the directory of the new files, or its URL in an object store.
    files    the present files of each bucket, relative to `root` or, on a disk, absolute.
    number   the number of the batch.
    buckets  the number of buckets of the table.
    fields   the ID that a file says of each column, the bucket's among them; empty for files with
             neither IDs nor a column of the bucket.
    """

    root: str
    layout: Layout
    files: Mapping[int, Sequence[str]]
    number: int
    buckets: int
    bytes_max: int = JOINED_BYTES_MAX
    fields: Mapping[str, int] = field(default_factory=dict)

    def run(self, rows: TableRows) -> list[JoinedBucket]:
        """Join `rows` with the table: those of a frame on Spark's executors, others here.

        Raises CorruptionError: rows that no table can have, a file that cannot be read or written;
        ConfigurationError: a bucket is too large; Spark's errors.
        """
        if isinstance(rows, Grouped):
            results = [each.asDict() for each in self._frame(rows).collect()]
        else:
            results = [each for part in self._parts(rows) for each in self(part).to_pylist()]
        for each in results:
            if each["error"] is not None:
                kind = ConfigurationError if each["is_too_large"] else CorruptionError
                raise kind(f"{INVALID_TABLES} {self.root}: {each['error']}")
        return [
            JoinedBucket(
                each[BUCKET],
                each["path"],
                each["size"],
                each["row_count"],
                each["written_at"],
                each["statistics"],
                frozenset(each["replaced"]),
            )
            for each in results
        ]

    def _parts(self, rows: TableRows) -> Iterator[pa.Table]:
        """Yield the rows of one bucket after the other, as a task is given them."""
        parts: dict[int, list[tuple[Any, ...]]] = {}
        width = len(self.layout.definition.keys)
        for row in rows.values:
            parts.setdefault(bucket_of(row[:width], self.buckets), []).append(row)
        for bucket, values in parts.items():
            table = _table(self.layout, values)
            numbers = pa.array([bucket] * len(table), pa.int32())
            error = pa.nulls(len(table), pa.string())
            yield table.append_column(BUCKET, numbers).append_column(_ERROR, error)

    def _frame(self, rows: Grouped) -> Any:
        """Return a frame of `JOINED`, a row per bucket that `rows` touch."""
        frame, texts = plain_columns(rows.frame)
        columns = [f"`{each.name}` {_SPARK_TYPES[each.type]}" for each in self.layout.columns]
        schema = ", ".join([*columns, f"{BUCKET} int", f"{_ERROR} string"])
        bucketed = frame.mapInArrow(_Bucketing(self.layout, texts, self.buckets), schema)
        return bucketed.groupBy(BUCKET).applyInArrow(lambda table: self(table), JOINED)

    def __call__(self, fresh: pa.Table) -> pa.Table:
        """Join the batch's rows of one bucket with the present ones; return one row of `JOINED`."""
        bucket = fresh.column(BUCKET)[0].as_py()
        found: dict[str, Any] = {"error": None, "is_too_large": False}
        try:
            if bucket == _REFUSED:
                raise CorruptionError(fresh.column(_ERROR)[0].as_py())
            names = [each.name for each in self.layout.columns]
            found |= self._written(bucket, fresh.select(names).cast(arrow_schema(self.layout)))
        except (CorruptionError, sqlite3.Error, OSError, ValueError) as error:
            found["error"] = f"bucket {bucket}: {error}" if bucket >= 0 else str(error)
        except _TooLargeError as error:
            found |= {"error": str(error), "is_too_large": True}
        row = {BUCKET: bucket} | found
        return pa.Table.from_pylist([{each: row.get(each) for each in _JOINED.names}], _JOINED)

    def _written(self, bucket: int, fresh: pa.Table) -> dict[str, Any]:
        """Write the bucket's new file; return what is known of it. Raises OSError, sqlite3.Error,
        ValueError, _TooLargeError."""
        files = open_files(self.root)
        taken = self._taken(files, bucket, fresh)
        present = pa.concat_tables([arrow_schema(self.layout).empty_table(), *taken.values()])
        table = joined(self.layout, present, fresh)
        path = f"{BUCKET}={bucket}/part-{self.number:09}-{uuid4()}.zstd.parquet"
        return {
            "path": path,
            "size": files.write(path, self._with_ids(table, bucket)),
            "row_count": len(table),
            "written_at": time.time_ns() // 1_000_000,
            "statistics": json.dumps(_statistics(table)),
            "replaced": list(taken),
        }

    def _with_ids(self, table: pa.Table, bucket: int) -> pa.Table:
        """Return the content of a bucket's file."""
        if not self.fields:
            return table
        whole = table.append_column(BUCKET, pa.array([bucket] * len(table), pa.int32()))
        ids = [{"PARQUET:field_id": str(self.fields[each.name])} for each in whole.schema]
        named = [each.with_metadata(id_) for each, id_ in zip(whole.schema, ids, strict=True)]
        return pa.table(whole.columns, schema=pa.schema(named))

    def _taken(self, files: TableFiles, bucket: int, fresh: pa.Table) -> dict[str, pa.Table]:
        """Return the rows of each file that the bucket's new file replaces."""
        keys = _Keys(self.layout, fresh)
        room = self.bytes_max - fresh.nbytes
        taken: dict[str, pa.Table] = {}
        others: list[PresentFile] = []
        for path in self.files.get(bucket, ()):
            with files.opened(path) as file:
                if keys.has_one_in(self._batches(file, keys.names)):
                    rows = self._rows(file, room)
                    if rows is None:
                        raise self._too_large(bucket)
                    taken[path] = rows
                    room -= rows.nbytes
                else:
                    others.append(PresentFile(path, file.metadata.num_rows))
        if room < 0:
            raise self._too_large(bucket)
        row_bytes = fresh.nbytes / len(fresh)
        full = self.bytes_max / FULL_FRACTION
        small = [each for each in others if each.row_count * row_bytes <= full]
        row_count = len(fresh) + sum(map(len, taken.values()))
        for each in merged_files(row_count, small, fan_in(bucket, self.number)):
            with files.opened(each.path) as file:
                rows = self._rows(file, room)
            if rows is None:  # rows are larger than those of the batch
                break
            taken[each.path] = rows
            room -= rows.nbytes
        return taken

    def _rows(self, file: Any, bytes_max: int) -> pa.Table | None:
        """Return the rows of a file; None: they take more than `bytes_max`."""
        schema = arrow_schema(self.layout)
        batches = []
        for batch in self._batches(file, schema.names):
            batches.append(batch)
            bytes_max -= batch.nbytes
            if bytes_max < 0:
                return None
        return pa.Table.from_batches(batches, schema)

    def _batches(self, file: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of a file, as a table has them."""
        whole = arrow_schema(self.layout)
        schema = pa.schema([whole.field(each) for each in names])
        for batch in file.iter_batches(columns=list(names)):
            yield batch.select(names).cast(schema)

    def _too_large(self, bucket: int) -> _TooLargeError:
        more = min(self.buckets * 4, BUCKETS_MAX)
        return _TooLargeError(
            f"bucket {bucket} has more than {self.bytes_max:,} bytes in files with a key of this"
            f" batch; write `buckets: {more}` into the definition, and run `waltz pipeline rebuild`"
        )


class _Keys:
    """The keys of a batch's rows in one bucket."""

    def __init__(self, layout: Layout, fresh: pa.Table) -> None:
        self.names = [name for name, _ in layout.definition.keys]
        self._values = [fresh.column(each).unique() for each in self.names]
        self._keys = set(_tuples(fresh.select(self.names)))

    def may_be(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """Return which rows may have one of the keys: each of the row's values is one that some key
        has there."""
        found = None
        for name, values in zip(self.names, self._values, strict=True):
            is_in = pc.is_in(rows.column(name), value_set=values)
            found = is_in if found is None else pc.and_(found, is_in)
        return found

    def has_one_in(self, batches: Iterable[pa.RecordBatch]) -> bool:
        """Return whether a row has one of the keys; of the rows only the keys are needed."""
        for batch in batches:
            near = batch.filter(self.may_be(batch))
            if len(near) and (
                len(self.names) == 1 or not self._keys.isdisjoint(_tuples(near.select(self.names)))
            ):
                return True
        return False


def _tuples(rows: pa.Table | pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    return zip(*(each.to_pylist() for each in rows.columns), strict=True)


class _TooLargeError(Exception):
    """The rows that are joined in a bucket exceed what a task may have in memory."""


@dataclass(frozen=True, slots=True)
class _Bucketing:
    """A task that gives rows the values that a table has, and their bucket."""

    layout: Layout
    texts: Mapping[str, Callable[[int], str]]
    buckets: int

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        schema = pa.schema(
            [*arrow_schema(self.layout), (BUCKET, pa.int32()), (_ERROR, pa.string())]
        )
        for batch in batches:
            try:
                arrays = [
                    stored_array(each.name, batch.column(each.name), self.texts).cast(
                        _ARROW_TYPES[each.type]
                    )
                    for each in self.layout.columns
                ]
            except (CorruptionError, pa.ArrowInvalid) as error:
                refused = {BUCKET: _REFUSED, _ERROR: str(error)}
                row = {each: refused.get(each) for each in schema.names}
                yield pa.RecordBatch.from_pylist([row], schema)
                continue
            keys = [each.to_pylist() for each in arrays[: len(self.layout.definition.keys)]]
            numbers = [bucket_of(key, self.buckets) for key in zip(*keys, strict=True)]
            made = [*arrays, pa.array(numbers, pa.int32()), pa.nulls(len(numbers), pa.string())]
            yield pa.RecordBatch.from_arrays(made, schema=schema)


def joined(layout: Layout, present: pa.Table, fresh: pa.Table) -> pa.Table:
    """Return the present rows of a bucket and those of a batch, joined. Raises sqlite3.Error: a sum
    beyond 64 bits.

    The statements are those of tables in SQLite, so a measure is defined once. Only rows whose
    keys may be among those of the batch go through them: a row is left out if one of its keys has
    a value that the batch has nowhere.
    """
    touched = _Keys(layout, fresh).may_be(present)
    # A database without a name is a file that is gone when it is closed.
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        create_table(database, layout)
        database.execute("BEGIN")
        for table in (present.filter(touched), fresh):
            join_rows(database, Rows(layout, list(_tuples(table))))
        rows = list(table_rows(database, layout))
    return pa.concat_tables([present.filter(pc.invert(touched)), _table(layout, rows)])


def bucket_of(key: Sequence[int | str | None], buckets: int) -> int:
    """Return the bucket of a key as it is in a table."""
    crc = 0
    for value in key:
        if value is None:
            part = b"n"
        elif isinstance(value, str):
            part = b"t" + value.encode()
        else:
            part = b"i%d" % value
        crc = zlib.crc32(part, crc)
    return crc % buckets


def arrow_schema(layout: Layout) -> pa.Schema:
    """Return the columns of a table's files."""
    return pa.schema([(each.name, _ARROW_TYPES[each.type]) for each in layout.columns])


def _table(layout: Layout, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    schema = arrow_schema(layout)
    values = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def _statistics(table: pa.Table) -> dict[str, Any]:
    """Return what a reader may skip the file by: nulls of each column, ends of numbers and short
    texts."""
    ends: dict[str, tuple[Any, Any]] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not (pa.types.is_int64(column.type) or pa.types.is_string(column.type)):
            continue
        found = pc.min_max(column).as_py()
        low, high = found["min"], found["max"]
        is_short = all(not isinstance(e, str) or len(e) <= STATISTICS_TEXT_MAX for e in (low, high))
        if low is not None and is_short:
            ends[name] = low, high
    return {
        "numRecords": len(table),
        "minValues": {name: low for name, (low, _) in ends.items()},
        "maxValues": {name: high for name, (_, high) in ends.items()},
        "nullCount": {
            name: column.null_count
            for name, column in zip(table.column_names, table.columns, strict=True)
        },
    }


_JOINED: Final = pa.schema(
    [
        (BUCKET, pa.int32()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("row_count", pa.int64()),
        ("written_at", pa.int64()),
        ("statistics", pa.string()),
        ("replaced", pa.list_(pa.string())),
        ("error", pa.string()),
        ("is_too_large", pa.bool_()),
    ]
)
