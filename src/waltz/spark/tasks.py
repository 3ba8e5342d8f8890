"""Tasks: each reads one range of the log from the cluster itself.

Spark pickles readers and tasks and ships them, so they carry values only. Connections are opened
where they are used, and never travel (PS-05).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import InputPartition

import waltz
from waltz.errors import (
    ConfigurationError,
    HistoryChangedError,
    NotFoundError,
    RemoteProtocolError,
    WaltzError,
)
from waltz.spark.any_archive import read_file
from waltz.spark.archive_location import ArchiveLocation
from waltz.spark.codes import (
    CLUSTER_CHANGED,
    HISTORY_CHANGED,
    INCOMPLETE_READ,
    READ_FAILED,
    UNAVAILABLE,
    has_code,
)
from waltz.spark.followed_history import expect_history
from waltz.spark.offsets import TransactionRange
from waltz.spark.parquet_archive import ArchivedFile, Contents
from waltz.spark.reader_pool import POOL, ReaderKey
from waltz.spark.row_filter import ALL, Intervals
from waltz.spark.row_times import with_times, without_times
from waltz.spark.schema import (
    BATCH_BYTES_MAX,
    PLACE_COLUMNS,
    PLACE_ROWS_MAX,
    REQUEST_ID_BYTES,
    TIME_COLUMNS,
    Places,
    record_batch,
    regroup,
)
from waltz.types import PartitionId, TlsSettings, TransactionId

if TYPE_CHECKING:
    from waltz import LogReader, LogTimes, ReplicaReader, TransactionColumns, WantsData

REMEDY: Final = "Nothing was read. Read again"


class OpenReader(Protocol):
    def __call__(self, cluster: str, *, tls: TlsSettings) -> LogReader: ...


class OpenTimes(Protocol):
    def __call__(self, cluster: str, *, tls: TlsSettings) -> LogTimes: ...


class OpenReplicas(Protocol):
    def __call__(self, cluster: str, *, tls: TlsSettings) -> ReplicaReader: ...


@dataclass(frozen=True)
class WaltzInputPartition(InputPartition):
    """One task: a range, and the cluster and the history it was planned on; None: any."""

    range: TransactionRange
    cluster_key: UUID
    history: UUID | None = None


@dataclass(frozen=True)
class ArchiveInputPartition(InputPartition):
    """One task: a range within a file of the archive."""

    range: TransactionRange
    file: ArchivedFile
    directory: ArchiveLocation
    cluster_key: UUID


Piece: TypeAlias = WaltzInputPartition | ArchiveInputPartition


@dataclass(frozen=True)
class JoinedInputPartition(InputPartition):
    """One task of several pieces, which are read one after the other."""

    pieces: tuple[Piece, ...]


def as_task(pieces: Sequence[Piece]) -> InputPartition:
    """Return the task that reads `pieces`, at least one."""
    return pieces[0] if len(pieces) == 1 else JoinedInputPartition(tuple(pieces))


def pieces_of(
    wanted: TransactionRange,
    contents: Contents,
    directory: ArchiveLocation | None,
    cluster_key: UUID,
    history: UUID | None,
) -> list[Piece]:
    """Return the pieces of a range: from the archive in `directory` as far as it goes, from the log
    beyond."""
    pieces: list[Piece] = []
    first = wanted.first
    if directory is not None:
        for file, part in contents.within(wanted):
            pieces.append(ArchiveInputPartition(part, file, directory, cluster_key))
            first = part.end
    if first < wanted.end:
        rest = TransactionRange(wanted.partition_id, first, wanted.end)
        pieces.append(WaltzInputPartition(rest, cluster_key, history))
    return pieces


@contextmanager
def coded_errors(cluster: str) -> Iterator[None]:
    """Give every WaltzError a text that starts with its code and names the cluster."""
    try:
        yield
    except WaltzError as error:
        if has_code(error):
            raise
        code = UNAVAILABLE if error.retryable else READ_FAILED
        if isinstance(error, HistoryChangedError):
            code = HISTORY_CHANGED
        raise type(error)(f"{code} cluster {cluster}: {error}") from error


@dataclass(frozen=True)
class LogAccess:
    """Opens the log, wherever a task runs."""

    cluster: str
    tls: TlsSettings = field(default_factory=TlsSettings)
    open_reader: OpenReader = waltz.open_reader
    open_replicas: OpenReplicas = waltz.open_replicas
    open_times: OpenTimes = waltz.open_times

    @contextmanager
    def opened(self, cluster_key: UUID | None = None) -> Iterator[LogReader]:
        """Open it for the block. With the key of its cluster, the reader is one that this process
        keeps from task to task.

        Raises WaltzError, its text led by a code; ConfigurationError: it is not the cluster with
        that key any more.
        """
        opening = partial(self.open_reader, self.cluster, tls=self.tls)
        if cluster_key is None:
            with coded_errors(self.cluster), opening() as log:
                yield log
            return
        key = ReaderKey(self.cluster, self.tls, cluster_key, self.open_reader, os.getpid())
        with coded_errors(self.cluster), POOL.lent(key, opening) as log:
            self._expect_cluster(log.cluster_key, cluster_key)
            yield log

    @contextmanager
    def opened_replicas(self, cluster_key: UUID) -> Iterator[ReplicaReader]:
        """Open a reader of what storage nodes hold, and close it after the block. Raises as
        `opened`."""
        with coded_errors(self.cluster), self.open_replicas(self.cluster, tls=self.tls) as nodes:
            self._expect_cluster(nodes.cluster_key, cluster_key)
            yield nodes

    @contextmanager
    def opened_times(self, cluster_key: UUID) -> Iterator[LogTimes]:
        """Open access to the times of transactions, and close it after the block. Raises as
        `opened`."""
        with coded_errors(self.cluster), self.open_times(self.cluster, tls=self.tls) as times:
            self._expect_cluster(times.cluster_key(), cluster_key)
            yield times

    def with_times(
        self, cluster_key: UUID, partition_id: PartitionId, batches: Iterator[Any], schema: Any
    ) -> Iterator[Any]:
        """Yield `batches` of one partition, read in the schema of `without_times`, in the columns
        of `schema`. Raises as `opened`."""
        if TIME_COLUMNS.keys().isdisjoint(schema.names):
            yield from batches
            return
        with self.opened_times(cluster_key) as times:
            yield from with_times(batches, schema, partition_id, times.times_of)

    def _expect_cluster(self, found: UUID, planned: UUID) -> None:
        if found != planned:
            raise ConfigurationError(
                f"{CLUSTER_CHANGED} {self.cluster} leads to cluster {found}; the read was planned"
                f" on cluster {planned}"
            )

    def read(
        self,
        cluster_key: UUID,
        wanted: TransactionRange,
        schema: Any,
        *,
        rows_max: int,
        headers: Intervals = ALL,
        history: UUID | None = None,
    ) -> Iterator[Any]:
        """Yield `wanted` as Arrow record batches of the columns in `schema`, dense and whole but
        for the rows with other headers. Data that is in neither is not fetched (PS-06).

        If all columns follow from the places of the transactions, no transaction is read: the log
        is asked for its mark alone, so one that no replica can give is a row as others are.
        `history` is the one that the read was planned on, None for any. Raises as `opened`;
        NotFoundError: the log ends before `wanted` does; HistoryChangedError: it was restored, and
        has others in the place of `wanted`.
        """
        if headers == ALL and PLACE_COLUMNS.issuperset(schema.names):
            with self.opened(cluster_key) as log:
                mark = log.high_water_mark(wanted.partition_id)
                planned = {wanted.partition_id: wanted.end}
                if history is not None:
                    expect_history(log.histories, history, planned, who="the plan", remedy=REMEDY)
                _expect_in_log(wanted, mark)
            rows = min(rows_max, PLACE_ROWS_MAX)
            for first in range(wanted.first, wanted.end, rows):
                places = Places(TransactionId(first), min(rows, wanted.end - first))
                yield record_batch(wanted.partition_id, places, schema)
            return
        wants_data: WantsData | None = None
        if "data" not in schema.names:
            wants_data = _no_data
        elif headers != ALL:
            wants_data = headers.mask
        with self.opened(cluster_key) as log:
            columns = log.read(
                wanted.partition_id,
                wanted.first,
                wanted.end,
                wants_data=wants_data,
                history=history,
            )
            yield from regroup(
                (
                    _wanted_rows(wanted.partition_id, each, schema, headers)
                    for each in complete(columns, wanted)
                ),
                rows_max=rows_max,
                bytes_max=BATCH_BYTES_MAX,
            )


def _expect_in_log(wanted: TransactionRange, high_water_mark: TransactionId) -> None:
    """Raises NotFoundError: the log ends before `wanted` does."""
    if high_water_mark < wanted.end - 1:
        raise NotFoundError(
            f"the log of partition {wanted.partition_id} ends before transaction"
            f" {high_water_mark + 1}; expected it to go on to {wanted.end - 1}"
        )


def _no_data(headers: NDArray[np.int32]) -> NDArray[np.bool_]:
    return np.zeros(len(headers), np.bool_)


def _wanted_rows(
    partition_id: PartitionId, columns: TransactionColumns, schema: Any, headers: Intervals
) -> Any:
    batch = record_batch(partition_id, columns, schema)
    return batch if headers == ALL else batch.filter(pa.array(headers.mask(columns.headers)))


def read_task(
    access: LogAccess | None,
    schema: Any,
    task: InputPartition,
    *,
    rows_max: int,
    headers: Intervals = ALL,
) -> Iterator[Any]:
    """Yield the Arrow record batches of one task; without `access` it is one of an archive alone.
    Raises WaltzError, its text led by a code."""
    for piece in task.pieces if isinstance(task, JoinedInputPartition) else (task,):
        # Spark calls this once even for a plan without any task.
        if not isinstance(piece, WaltzInputPartition | ArchiveInputPartition):
            return
        wanted, key, inner = piece.range, piece.cluster_key, without_times(schema)
        if isinstance(piece, ArchiveInputPartition):
            batches = _read_archived(piece, inner, headers)
            if access is None or inner is schema:
                yield from batches
                continue
        else:
            assert access is not None, "planned on a cluster"
            batches = access.read(
                key, wanted, inner, rows_max=rows_max, headers=headers, history=piece.history
            )
        yield from access.with_times(key, wanted.partition_id, batches, schema)


def _read_archived(piece: ArchiveInputPartition, schema: Any, headers: Intervals) -> Iterator[Any]:
    names = list(dict.fromkeys((*schema.names, "header")))
    for batch in read_file(piece.directory, piece.file, piece.range, names):
        if headers != ALL:
            batch = batch.filter(pa.array(headers.mask(batch.column("header").to_numpy())))
        arrays = [batch.column(name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def complete(
    columns: Iterable[TransactionColumns], wanted: TransactionRange
) -> Iterator[TransactionColumns]:
    """Yield `columns` unchanged and check that they are `wanted`, dense and to its end.

    Raises RemoteProtocolError at the first gap, repetition, ragged or missing column.
    """
    expected = wanted.first
    for each in columns:
        count = len(each.headers)
        if each.first_transaction_id != expected:
            raise RemoteProtocolError(
                f"{INCOMPLETE_READ} {wanted}: expected transaction {expected}, found"
                f" {each.first_transaction_id}"
            )
        if len(each.request_ids) != REQUEST_ID_BYTES * count:
            raise RemoteProtocolError(
                f"{INCOMPLETE_READ} {wanted}: {count} headers and {len(each.request_ids)} bytes of"
                f" request IDs at transaction {expected}"
            )
        expected = TransactionId(expected + count)
        yield each
    if expected != wanted.end:
        raise RemoteProtocolError(
            f"{INCOMPLETE_READ} {wanted}: the last transaction read is {expected - 1}"
        )
