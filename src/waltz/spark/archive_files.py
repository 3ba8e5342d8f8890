"""Writing and reading the Parquet files of an archive, in the tasks that Spark runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from waltz.errors import CorruptionError
from waltz.spark.block_digests import Block, BlockDigester, at_block_ends
from waltz.spark.codes import INVALID_ARCHIVE
from waltz.spark.log_columns import log_schema
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import ArchivedFile, sync_directory
from waltz.spark.schema import BATCH_BYTES_MAX, BATCH_ROWS, arrow_schema, regroup
from waltz.types import TransactionId

FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Data of one file, in memory's bytes; a file ends with the block that reaches it."""

ROW_GROUP_ROWS: Final = 100_000
ROW_GROUP_BYTES_MAX: Final = 32 * 1024 * 1024

SCHEMA: Final = arrow_schema(log_schema())


def write_files(
    directory: Path, wanted: TransactionRange, batches: Iterable[Any]
) -> list[ArchivedFile]:
    """Write `wanted`, given as Arrow record batches of all columns, and return its files.

    They are durable, and no manifest names them yet. Raises CorruptionError as `at_block_ends`.
    """
    folder = directory / f"partition={wanted.partition_id}"
    folder.mkdir(exist_ok=True)
    files: list[ArchivedFile] = []
    draft: _Draft | None = None
    try:
        for block, batch in at_block_ends(wanted, batches):
            draft = draft or _Draft(folder, block)
            draft.write(block, batch)
            if draft.is_full:
                files.append(draft.finish(directory))
                draft = None
        if draft is not None:
            files.append(draft.finish(directory))
            draft = None
    finally:
        if draft is not None:
            draft.discard()
    sync_directory(folder)
    sync_directory(directory)
    return files


class RowGroups:
    """Writes a Parquet file in row groups of a fair size, from batches of any size.

    byte_count  bytes of the rows so far, in memory.
    """

    def __init__(self, path: Path, schema: Any) -> None:
        self._path = path
        self._writer = pq.ParquetWriter(path, schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0
        self.byte_count = 0

    def write(self, batch: Any) -> None:
        self._waiting.append(batch)
        self._waiting_rows += len(batch)
        self._waiting_bytes += batch.nbytes
        self.byte_count += batch.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES_MAX:
            self._write_row_group()

    def _write_row_group(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=max(1, len(table)))
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def finish(self) -> int:
        """End the file and return its size in bytes; its content is durable."""
        self._write_row_group()
        self._writer.close()
        with self._path.open("rb") as written:
            os.fsync(written.fileno())
            return os.fstat(written.fileno()).st_size

    def close(self) -> None:
        self._writer.close()


class _Draft:
    """A file while it is written, under a name that no other attempt has."""

    def __init__(self, folder: Path, block: TransactionRange) -> None:
        self._folder = folder
        self._unique = uuid4().hex[:8]
        self._path = folder / f"{block.first:020d}-{self._unique}.parquet.tmp"
        self._rows = RowGroups(self._path, SCHEMA)
        self._digester = BlockDigester()
        self._blocks: list[Block] = []
        self.is_full = False

    def write(self, block: TransactionRange, batch: Any) -> None:
        whole = self._digester.add(block, batch)
        self._rows.write(batch)
        if whole is not None:
            self._blocks.append(whole)
            self.is_full = self._rows.byte_count >= FILE_BYTES_MAX

    def finish(self, directory: Path) -> ArchivedFile:
        byte_count = self._rows.finish()
        first, last = self._blocks[0].range, self._blocks[-1].range
        run = TransactionRange(first.partition_id, first.first, last.end)
        path = self._folder / f"{run.first:020d}-{run.end:020d}-{self._unique}.parquet"
        self._path.rename(path)
        return ArchivedFile(str(path.relative_to(directory)), run, byte_count, tuple(self._blocks))

    def discard(self) -> None:
        self._rows.close()
        self._path.unlink(missing_ok=True)


def read_file(
    directory: Path, file: ArchivedFile, wanted: TransactionRange, columns: list[str] | None = None
) -> Iterator[Any]:
    """Yield the Arrow record batches of `wanted`, which `file` has, all columns or some.

    Raises CorruptionError: the file is missing, damaged or not the one that was archived.
    """
    path = directory / file.path
    try:
        with pq.ParquetFile(path) as parquet:
            yield from read_row_groups(parquet, str(path), file.range, wanted, columns)
    except (OSError, pa.ArrowException) as error:
        raise CorruptionError(f"{INVALID_ARCHIVE} {path} cannot be read: {error}") from error


def read_row_groups(
    parquet: Any,
    path: str,
    held: TransactionRange,
    wanted: TransactionRange,
    columns: list[str] | None,
) -> Iterator[Any]:
    """Yield the Arrow record batches of `wanted` from an open file that has `held`.

    Raises CorruptionError: it has more or less; ArrowException, OSError: it is damaged.
    """
    if parquet.metadata.num_rows != held.row_count:
        raise CorruptionError(
            f"{INVALID_ARCHIVE} {path} has {parquet.metadata.num_rows} rows; expected"
            f" {held.row_count}, as its manifest says"
        )
    position = held.first
    for index in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(index).num_rows
        start, end = position, TransactionId(position + rows)
        position = end
        if end <= wanted.first or wanted.end <= start:
            continue
        group = parquet.read_row_group(index, columns=columns)
        skipped = max(0, wanted.first - start)
        group = group.slice(skipped, min(end, wanted.end) - start - skipped)
        yield from regroup(group.to_batches(), rows_max=BATCH_ROWS, bytes_max=BATCH_BYTES_MAX)
