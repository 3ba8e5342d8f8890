"""Writing and reading the files of an archive that is a Delta table, in the tasks that Spark runs.

The name of a file has its range and the digest of its rows, so the commit that names the file has
the digest, too. The number of the partition is in the commit and in the directory's name, and not
in the file, as Delta has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from waltz.errors import CorruptionError
from waltz.spark.archive_files import FILE_BYTES_MAX, SCHEMA, RowGroups, read_row_groups
from waltz.spark.archive_location import DeltaLocation
from waltz.spark.block_digests import Block, BlockDigester, at_block_ends
from waltz.spark.codes import INVALID_ARCHIVE
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import ArchivedFile, sync_directory
from waltz.spark.pipelines.table_files import expect_obstore, open_files
from waltz.types import PartitionId, TransactionId

PARTITION: Final = "partition"
FILE_SCHEMA: Final = SCHEMA.remove(SCHEMA.get_field_index(PARTITION))
NAME: Final = re.compile(r"partition=(\d+)/(\d{20})-(\d{20})-([0-9a-f]{64})-[0-9a-f]{8}\.parquet")


def file_of(path: str, byte_count: int) -> ArchivedFile | None:
    """Return the file with that path below the table; None: it is no name of an archive's file."""
    found = NAME.fullmatch(path)
    if found is None:
        return None
    partition, first, end, digest = found.groups()
    run = TransactionRange(
        PartitionId(int(partition)), TransactionId(int(first)), TransactionId(int(end))
    )
    return ArchivedFile(path, run, byte_count, (Block(run, digest),))


def write_delta_files(
    location: DeltaLocation, wanted: TransactionRange, batches: Iterable[Any]
) -> list[ArchivedFile]:
    """Write `wanted`, given as Arrow record batches of all columns, and return its files.

    They are durable, and no commit names them yet. Raises CorruptionError as `at_block_ends`;
    ConfigurationError: obstore is missing; ArchiveUnreachableError: the bucket does not answer.
    """
    folder = f"{PARTITION}={wanted.partition_id}"
    files: list[ArchivedFile] = []
    draft: _Draft | None = None
    with _drafts_of(location, folder) as directory:
        try:
            for _, batch in at_block_ends(wanted, batches):
                draft = draft or _Draft(directory, wanted, files)
                draft.write(batch)
                if draft.is_full:
                    files.append(draft.finish(location))
                    draft = None
            if draft is not None:
                files.append(draft.finish(location))
                draft = None
        finally:
            if draft is not None:
                draft.discard()
        if location.directory is not None:
            sync_directory(directory)
            sync_directory(location.directory)
    return files


@contextmanager
def _drafts_of(location: DeltaLocation, folder: str) -> Iterator[Path]:
    """Yield where files are while they are written: in their directory, or on this disk if they
    are for a bucket."""
    if location.directory is not None:
        directory = location.directory / folder
        directory.mkdir(exist_ok=True)
        yield directory
        return
    expect_obstore()
    with TemporaryDirectory(prefix="waltz-archive-") as name:
        yield Path(name)


class _Draft:
    """A file while it is written, under a name that no other attempt has."""

    def __init__(
        self, directory: Path, wanted: TransactionRange, before: list[ArchivedFile]
    ) -> None:
        self._partition_id = wanted.partition_id
        self._first = before[-1].range.end if before else wanted.first
        self._unique = uuid4().hex[:8]
        self._path = directory / f"{self._first:020d}-{self._unique}.parquet.tmp"
        self._rows = RowGroups(self._path, FILE_SCHEMA)
        self._digester = BlockDigester()
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._rows.byte_count >= FILE_BYTES_MAX

    def write(self, batch: Any) -> None:
        end = TransactionId(self._first + self._count + len(batch))
        self._digester.take(TransactionRange(self._partition_id, self._first, end), batch)
        self._rows.write(batch.select(FILE_SCHEMA.names))
        self._count += len(batch)

    def finish(self, location: DeltaLocation) -> ArchivedFile:
        byte_count = self._rows.finish()
        end = TransactionId(self._first + self._count)
        run = TransactionRange(self._partition_id, self._first, end)
        block = self._digester.finish(run)
        name = f"{run.first:020d}-{run.end:020d}-{block.digest}-{self._unique}.parquet"
        path = f"{PARTITION}={run.partition_id}/{name}"
        if location.directory is not None:
            self._path.rename(location.directory / path)
        else:
            from waltz.archive.archive_target import open_target

            # The name is this attempt's own, so a put may be sent again after a lost answer.
            open_target(location.root).put(path, self._path.read_bytes())
            self._path.unlink()
        return ArchivedFile(path, run, byte_count, (block,))

    def discard(self) -> None:
        self._rows.close()
        self._path.unlink(missing_ok=True)


def read_delta_file(
    location: DeltaLocation,
    file: ArchivedFile,
    wanted: TransactionRange,
    columns: list[str] | None = None,
) -> Iterator[Any]:
    """Yield the Arrow record batches of `wanted`, which `file` has, all columns or some.

    Raises CorruptionError: the file is missing, damaged or not the one that was archived;
    ConfigurationError: obstore is missing; ArchiveUnreachableError: the bucket does not answer.
    """
    names = SCHEMA.names if columns is None else columns
    stored = [each for each in names if each != PARTITION] or ["header"]
    path = f"{location.root}/{file.path}"
    try:
        with open_files(location.root).opened(file.path) as parquet:
            for batch in read_row_groups(parquet, path, file.range, wanted, stored):
                yield _with_partition(batch, file.range.partition_id, names)
    except (OSError, pa.ArrowException) as error:
        raise CorruptionError(f"{INVALID_ARCHIVE} {path} cannot be read: {error}") from error


def _with_partition(batch: Any, partition_id: PartitionId, names: list[str]) -> Any:
    if PARTITION not in names:
        return batch
    fields = [SCHEMA.field(PARTITION) if n == PARTITION else batch.schema.field(n) for n in names]
    numbers = pa.repeat(pa.scalar(partition_id, pa.int32()), len(batch))
    arrays = [numbers if name == PARTITION else batch.column(name) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
