"""Maintains an archive of the log: adds what is new, and proves that log and archive are equal.

The archive itself has the position: each partition continues where it has ended, so a run may be
killed at any moment and repeated. Tasks read the log and write files themselves; the driver commits
what they have written, all or nothing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from waltz import Histories
from waltz.errors import ConfigurationError, CorruptionError, VersionConflictError
from waltz.spark.any_archive import create_archive, open_archive, read_file, write_files
from waltz.spark.archive_files import SCHEMA
from waltz.spark.archive_location import ArchiveLocation, DeltaLocation, absolute
from waltz.spark.block_digests import Block, digested
from waltz.spark.codes import ARCHIVE_CONFLICT, DIFFERENT, INVALID_ARCHIVE
from waltz.spark.delta_archive import DeltaArchive
from waltz.spark.followed_history import later_history
from waltz.spark.offsets import (
    FIRST_TRANSACTION_ID,
    TransactionRange,
    select_partitions,
    split_ranges,
)
from waltz.spark.parquet_archive import (
    HEAD,
    ORPHAN_SECONDS_MIN,
    Archive,
    ArchivedFile,
    Contents,
)
from waltz.spark.pipelines.last_verify import remove_record
from waltz.spark.pipelines.target import TableWritten, TidiedTable
from waltz.spark.pipelines.watch import ARCHIVE, NOBODY, BatchSeen, Beginning, Watching
from waltz.spark.progress import PartitionLag, is_beyond
from waltz.spark.schema import BATCH_ROWS
from waltz.spark.tasks import LogAccess
from waltz.spark.work import run_tasks
from waltz.types import PartitionId, TransactionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ArchiveDifference:
    """The first difference between an archived file, its manifest and the log.

    transaction_id  the first transaction that is different, or may be: the first one of the block
                    or the file that `detail` speaks of, if no single one can be told.
    columns         the columns of that transaction that differ between file and log.
    """

    partition_id: PartitionId
    transaction_id: TransactionId
    columns: tuple[str, ...]
    path: str
    detail: str

    def __str__(self) -> str:
        what = f"{', '.join(self.columns)}: " if self.columns else ""
        return (
            f"{DIFFERENT} partition {self.partition_id}, transaction {self.transaction_id}:"
            f" {what}{self.detail}"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition_id,
            "transaction": self.transaction_id,
            "columns": list(self.columns),
            "file": self.path,
            "text": str(self),
        }


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """The result of a run. No `differences` means equal."""

    contents: Contents
    transactions: int
    files: int
    byte_count: int
    swept: tuple[str, ...] = ()
    differences: tuple[ArchiveDifference, ...] = ()


@dataclass(frozen=True)
class ArchivePlace:
    """Gives tasks access to the log and the archive."""

    access: LogAccess
    directory: ArchiveLocation
    cluster_key: UUID
    history: UUID | None = None
    """The history that is archived, or compared with; None: any."""

    def read_log(self, wanted: TransactionRange) -> Iterator[Any]:
        return self.access.read(
            self.cluster_key, wanted, SCHEMA, rows_max=BATCH_ROWS, history=self.history
        )

    def archive(self, wanted: TransactionRange) -> list[ArchivedFile]:
        """The work of one task."""
        return write_files(self.directory, wanted, self.read_log(wanted))

    def compare(self, file: ArchivedFile) -> ArchiveDifference | None:
        """The work of one task: return how the log and the archived file differ, if they do."""
        try:
            cut = [each.range for each in file.blocks]
            stored = digested(file.range, read_file(self.directory, file, file.range), cut)
            logged = digested(file.range, self.read_log(file.range), cut)
            for manifest, ours, theirs in zip(file.blocks, stored, logged, strict=True):
                if not manifest == ours == theirs:
                    return self._in_block(file, manifest, ours, theirs)
        except CorruptionError as error:
            # Rows out of their order, IDs that are none: the digests do not get as far as that.
            return self._in_rows(file, file.range, str(error)) or ArchiveDifference(
                file.range.partition_id, file.range.first, (), file.path, str(error)
            )
        return None

    def _in_block(
        self, file: ArchivedFile, manifest: Block, ours: Block, theirs: Block
    ) -> ArchiveDifference:
        run = f"transactions {manifest.range.first} to {manifest.range.end - 1}"
        if manifest == theirs:
            changed = f"the log equals what was archived, {file.path} was changed since"
        elif manifest == ours:
            changed = f"{file.path} equals what was archived, the log does not"
        else:
            changed = f"neither {file.path} nor the log equals what the manifest has of {run}"
        return self._in_rows(file, manifest.range, changed) or ArchiveDifference(
            file.range.partition_id,
            manifest.range.first,
            (),
            file.path,
            f"log and {file.path} are equal, their digest in the manifest is another for {run}",
        )

    def _in_rows(
        self, file: ArchivedFile, wanted: TransactionRange, changed: str
    ) -> ArchiveDifference | None:
        """Return the first transaction of `wanted` that differs between file and log, if any."""
        try:
            archived = _rows(read_file(self.directory, file, wanted))
            expected = int(wanted.first)
            for ours, theirs in zip_longest(archived, _rows(self.read_log(wanted))):
                names = [
                    name
                    for name in SCHEMA.names
                    if ours is None or theirs is None or ours[name] != theirs[name]
                ]
                if names:
                    return ArchiveDifference(
                        wanted.partition_id,
                        TransactionId(expected),
                        tuple(names),
                        file.path,
                        changed,
                    )
                expected += 1
        except CorruptionError:
            pass  # the file cannot be read: the caller knows why
        return None


def _rows(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    return (row for batch in batches for row in batch.to_pylist())


def add_to_archive(
    spark: SparkSession,
    access: LogAccess,
    directory: ArchiveLocation,
    *,
    partitions: Sequence[PartitionId] | None = None,
    tasks_min: int = 1,
    watch: Watching = NOBODY,
) -> ArchiveReport:
    """Archive what the log has beyond the archive in `directory`, which is created if missing;
    `watch` is told once that is part of the archive.

    Every machine with a task must see `directory`. Raises ConfigurationError: it is no archive of
    this cluster; NotFoundError: the archive has more than the log; VersionConflictError: another
    run has added the same meanwhile; and Spark's error when a task has failed.
    """
    histories, marks = _marks(access, partitions)
    cluster_key = histories.cluster_key
    archive = create_archive(directory, cluster_key)
    before = archive.contents()
    histories, marks = _marks_of_now(access, partitions, before, histories, marks)
    watch.log_has({each: TransactionId(mark + 1) for each, mark in marks.items()})
    before.expect_in_log(marks, histories, directory)
    swept = archive.sweep(before)
    ranges = _missing(before, marks)
    if ranges:
        watch.begins(Beginning(cluster_key, before.next_ids()))
    place = ArchivePlace(access, absolute(directory), cluster_key, histories.current)
    tasks = split_ranges(ranges, task_count_min=tasks_min)
    began = time.monotonic()
    written = [file for files in run_tasks(spark, tasks, place.archive) for file in files]
    read = time.monotonic()
    contents = archive.commit(before, written, later_history(histories)) if written else before
    transactions = sum(each.range.row_count for each in written)
    byte_count = sum(each.byte_count for each in written)
    if written:
        seconds = {"read": read - began, "commit": time.monotonic() - read}
        found = {ARCHIVE: TableWritten(transactions, byte_count, len(written))}
        watch.took_in(BatchSeen(contents.next_ids(), transactions, 0, byte_count, seconds, found))
    return ArchiveReport(
        contents,
        transactions=transactions,
        files=len(written),
        byte_count=byte_count,
        swept=tuple(swept),
    )


def rebuild_archive(
    spark: SparkSession,
    access: LogAccess,
    directory: ArchiveLocation,
    *,
    partitions: Sequence[PartitionId] | None = None,
    watch: Watching = NOBODY,
) -> ArchiveReport:
    """Archive the whole log anew, then replace the old archive, of either format, and delete it.

    The old archive stays until the new one is whole; `watch` is told of the new one. Raises
    ConfigurationError: there is no archive to replace, or it is in a bucket; VersionConflictError:
    another rebuild is at work; otherwise as `add_to_archive`.
    """
    path = directory if isinstance(directory, Path) else directory.directory
    if path is None:
        raise ConfigurationError(
            f"{INVALID_ARCHIVE} {directory} cannot be rebuilt in its place, since a bucket renames"
            " nothing: name another prefix as the target, run the pipeline, let readers read from"
            " there, and delete this one"
        )
    fresh = path.with_name(f".{path.name}.rebuild")
    old = path.with_name(f".{path.name}.replaced")
    if old.exists() and not path.exists():
        old.rename(path)  # a rebuild was killed between its last two steps
    if (path / HEAD).exists():
        Archive.open(path)
    else:
        open_archive(DeltaLocation(str(path)))
    with _held(path):
        for left_behind in (fresh, old):
            shutil.rmtree(left_behind, ignore_errors=True)
        made = fresh if isinstance(directory, Path) else DeltaLocation(str(fresh))
        report = add_to_archive(spark, access, made, partitions=partitions, watch=watch)
        remove_record(path)  # before, not after: a rebuild may be killed in between
        path.rename(old)
        fresh.rename(path)
        shutil.rmtree(old)
    return report


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Let one rebuild at a time be at work on the archive in a directory. Raises
    VersionConflictError: another one is."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise VersionConflictError(
                f"{ARCHIVE_CONFLICT} another run rebuilds {path}; wait until it is done"
            ) from None
        yield
    finally:
        os.close(descriptor)


def tidy_archive(directory: ArchiveLocation, retention_hours: int, *, delete: bool) -> TidiedTable:
    """Find, and `delete`, files of a Delta table that no commit names and that are older than the
    last hours, and than a day: younger ones may be those of a run that is about to commit them.
    Raises ConfigurationError: there is no such table."""
    if isinstance(directory, Path):
        raise ConfigurationError(
            f"{INVALID_ARCHIVE} {directory} is swept by each run; only Delta tables are tidied"
        )
    archive = DeltaArchive.open(directory)
    found = archive.unnamed(max(retention_hours * 3600.0, ORPHAN_SECONDS_MIN))
    paths = tuple(path for path, _ in found)
    if delete:
        archive.remove(paths)
    return TidiedTable("archive", paths, sum(size for _, size in found))


def archive_lag(
    access: LogAccess,
    directory: ArchiveLocation,
    *,
    partitions: Sequence[PartitionId] | None = None,
) -> list[PartitionLag]:
    """Return how far the archive is, per partition. Raises as `add_to_archive`."""
    archive = open_archive(directory)
    histories, marks = _marks(access, partitions)
    archive.expect_cluster(histories.cluster_key)
    contents = archive.contents()
    histories, marks = _marks_of_now(access, partitions, contents, histories, marks)
    contents.expect_in_log(marks, histories, directory)
    ends = contents.next_ids()
    return [PartitionLag(each, ends.get(each, 0), mark + 1) for each, mark in marks.items()]


def _marks(
    access: LogAccess, partitions: Sequence[PartitionId] | None
) -> tuple[Histories, dict[PartitionId, TransactionId]]:
    with access.opened() as log:
        selected = select_partitions(partitions, log.partition_count)
        marks = log.high_water_marks(selected)
        return log.histories, marks


def _marks_of_now(
    access: LogAccess,
    partitions: Sequence[PartitionId] | None,
    contents: Contents,
    histories: Histories,
    marks: dict[PartitionId, TransactionId],
) -> tuple[Histories, dict[PartitionId, TransactionId]]:
    """Return histories and marks, asked for again if `contents`, which were read after them, have
    more: another run may have added it meanwhile."""
    ends = {each: TransactionId(mark + 1) for each, mark in marks.items()}
    return (
        _marks(access, partitions) if is_beyond(contents.next_ids(), ends) else (histories, marks)
    )


def _missing(contents: Contents, marks: dict[PartitionId, TransactionId]) -> list[TransactionRange]:
    next_ids = contents.next_ids()
    ranges = (
        TransactionRange(
            partition_id, next_ids.get(partition_id, FIRST_TRANSACTION_ID), TransactionId(mark + 1)
        )
        for partition_id, mark in sorted(marks.items())
    )
    return [each for each in ranges if each.first < each.end]


def verify_archive(
    spark: SparkSession, access: LogAccess, directory: ArchiveLocation
) -> ArchiveReport:
    """Compare every archived transaction with its manifest and with the log.

    Raises ConfigurationError, CorruptionError: there is no archive to compare.
    """
    archive = open_archive(directory)
    contents = archive.contents()
    history = contents.history or archive.cluster_key
    place = ArchivePlace(access, absolute(directory), archive.cluster_key, history)
    found = run_tasks(spark, contents.files, place.compare)
    differences = [each for each in found if each is not None]
    return ArchiveReport(
        contents,
        transactions=sum(each.range.row_count for each in contents.files),
        files=len(contents.files),
        byte_count=sum(each.byte_count for each in contents.files),
        differences=tuple(differences),
    )
