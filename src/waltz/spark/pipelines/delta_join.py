"""Joins a batch with the buckets of a Delta table that it touches: the work of Spark's executors.

A bucket is the part of a table whose keys share a hash. A task reads the files that one version of
the table has of a bucket, joins them with the batch's rows of this bucket, writes one new file and
returns what a commit has to say of it. A task that runs twice, or whose commit never comes, leaves
a file that no version names. Knows nothing of commits; `delta_tables.py` makes them.
"""

from __future__ import annotations

import json
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.pipelines.definition import BUCKETS_MAX
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

BUCKET_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of a bucket as Arrow: its present rows and those of a batch, which a task has in memory.
A larger bucket fails the batch, with the advice to have more buckets."""

STATISTICS_TEXT_MAX: Final = 32
"""Characters of a text that a file's statistics may contain; a column with a longer smallest or
largest text has none."""

_ERROR: Final = "waltz_error"
_REFUSED: Final = -1
"""The bucket that stands for rows which no table can have."""

JOINED: Final = (
    f"{BUCKET} int, path string, size bigint, row_count bigint, written_at bigint,"
    " statistics string, error string, is_too_large boolean"
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
    """A new file, which has all rows of a bucket.

    path        relative to the table.
    size        bytes of the file.
    written_at  milliseconds since 1970.
    statistics  the JSON of Delta's protocol.
    """

    bucket: int
    path: str
    size: int
    row_count: int
    written_at: int
    statistics: str


@dataclass(frozen=True, slots=True)
class BucketJoin:
    """The work on the buckets of one table in one batch, the same on whatever machine.

    root     the table's directory, or its URL in a bucket.
    files    the present files of each bucket, relative to the table.
    number   the number of the batch.
    buckets  the number of buckets of the table.
    """

    root: str
    layout: Layout
    files: Mapping[int, Sequence[str]]
    number: int
    buckets: int
    bytes_max: int = BUCKET_BYTES_MAX

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
        table = joined(self.layout, self._present(files, bucket, fresh.nbytes), fresh)
        path = f"{BUCKET}={bucket}/part-{self.number:09}-{uuid4()}.zstd.parquet"
        return {
            "path": path,
            "size": files.write(path, table),
            "row_count": len(table),
            "written_at": time.time_ns() // 1_000_000,
            "statistics": json.dumps(_statistics(table)),
        }

    def _present(self, files: TableFiles, bucket: int, fresh_bytes: int) -> pa.Table:
        schema = arrow_schema(self.layout)
        total = fresh_bytes
        batches = []
        for path in self.files.get(bucket, ()):
            with files.opened(path) as file:
                for batch in file.iter_batches(columns=schema.names):
                    batches.append(batch.select(schema.names).cast(schema))
                    total += batch.nbytes
                    self._expect_room(bucket, total)
        self._expect_room(bucket, total)
        return pa.Table.from_batches(batches, schema)

    def _expect_room(self, bucket: int, total: int) -> None:
        if total > self.bytes_max:
            more = min(self.buckets * 4, BUCKETS_MAX)
            raise _TooLargeError(
                f"bucket {bucket} has more than {self.bytes_max:,} bytes; write `buckets: {more}`"
                " into the definition, and run `waltz pipeline rebuild`"
            )


class _TooLargeError(Exception):
    """A bucket exceeds what a task may have in memory."""


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
    touched = None
    for name, _ in layout.definition.keys:
        found = pc.is_in(present.column(name), value_set=fresh.column(name).unique())
        touched = found if touched is None else pc.and_(touched, found)
    # A database without a name is a file that is gone when it is closed.
    with closing(sqlite3.connect("", isolation_level=None)) as database:
        create_table(database, layout)
        database.execute("BEGIN")
        for table in (present.filter(touched), fresh):
            columns = (each.to_pylist() for each in table.columns)
            join_rows(database, Rows(layout, list(zip(*columns, strict=True))))
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
        ("error", pa.string()),
        ("is_too_large", pa.bool_()),
    ]
)
