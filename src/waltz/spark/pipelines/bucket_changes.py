"""The changes between two versions of a bucket: its Parquet files before and after, compared.

A commit of Delta or Iceberg tables replaces files of the buckets that its batch touches, and both
versions are kept until they are tidied away. So changes cost nothing until they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from waltz.errors import CorruptionError, NotFoundError
from waltz.spark.codes import INVALID_TABLES
from waltz.spark.pipelines.row_changes import Row, RowChange, missing
from waltz.spark.pipelines.table_files import open_files
from waltz.spark.pipelines.tables import TableDefinition, columns_of

FilePaths = Mapping[int, Sequence[str]]
"""The files of each bucket of a version, relative to the table's root or, on a disk, absolute."""

_SIDE: Final = "waltz_side"
"""The column that says of which version a row is; no column of a table has this name."""

_BEFORE, _AFTER = 0, 1


@dataclass(frozen=True, slots=True)
class BucketFiles:
    """The files of one table, in whatever version.

    root   the directory of the files, or its URL in an object store.
    place  the table, as a message names it.
    """

    root: str
    place: str
    definition: TableDefinition

    def changes(self, before: FilePaths, after: FilePaths) -> Iterator[RowChange]:
        """Yield what has changed between two versions; in memory are the files of one bucket that
        only one of them has, or a single one of these if the other version has none.

        Raises ChangesMissingError: a file is not there any more; CorruptionError: a file cannot be
        read, or has a key twice; ArchiveUnreachableError.
        """
        for bucket in sorted({*before, *after}):
            old, new = (frozenset(each.get(bucket, ())) for each in (before, after))
            if old != new:
                yield from self._bucket(sorted(old - new), sorted(new - old))

    def _bucket(self, before: Sequence[str], after: Sequence[str]) -> Iterator[RowChange]:
        if not before or not after:
            for path in before or after:
                for row in _rows(self._read([path])):
                    change = ("delete", row, None) if before else ("insert", None, row)
                    yield RowChange(*change)
            return
        sides = [
            table.append_column(_SIDE, pa.array([side] * len(table), pa.int8()))
            for side, table in ((_BEFORE, self._read(before)), (_AFTER, self._read(after)))
        ]
        # A row that is on both sides forms a group of two; nulls are equal here.
        names = columns_of(self.definition)
        groups = pa.concat_tables(sides, promote_options="permissive").group_by(names)
        counted = groups.aggregate([(_SIDE, "min"), (_SIDE, "count")])
        alone = counted.filter(pc.equal(counted.column(f"{_SIDE}_count"), 1))
        old, new = (
            self._by_key(alone.filter(pc.equal(alone.column(f"{_SIDE}_min"), side)))
            for side in (_BEFORE, _AFTER)
        )
        for key, row in old.items():
            if key not in new:
                yield RowChange("delete", row, None)
        for key, row in new.items():
            was = old.get(key)
            yield RowChange("insert" if was is None else "update", was, row)

    def _by_key(self, table: pa.Table) -> dict[Row, Row]:
        width = len(self.definition.keys)
        found: dict[Row, Row] = {}
        for row in _rows(table.select(columns_of(self.definition))):
            if row[:width] in found:
                raise CorruptionError(
                    f"{INVALID_TABLES} {self.place} has the key {row[:width]!r:.80} twice; run"
                    " `waltz pipeline verify`"
                )
            found[row[:width]] = row
        return found

    def _read(self, paths: Sequence[str]) -> pa.Table:
        files, names = open_files(self.root), columns_of(self.definition)
        tables = []
        for path in paths:
            try:
                with files.opened(path) as file:
                    tables.append(file.read(columns=names).select(names))
            except FileNotFoundError:
                raise self._tidied(path) from None
            except CorruptionError as error:
                if isinstance(error.__cause__, NotFoundError):
                    raise self._tidied(path) from None
                raise
            except (OSError, pa.ArrowException, KeyError) as error:
                raise CorruptionError(f"{INVALID_TABLES} {self.place}: {path}: {error}") from error
        return pa.concat_tables(tables, promote_options="permissive")

    def _tidied(self, path: str) -> Exception:
        return missing(f"{self.place} has no file {path} any more: it was tidied away")


def _rows(table: pa.Table) -> Iterator[Row]:
    for batch in table.to_batches():
        columns: list[Any] = [each.to_pylist() for each in batch.columns]
        yield from zip(*columns, strict=True)
