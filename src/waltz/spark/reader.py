"""The batch reader: plans once, then every task reads its range from the cluster by itself.

Spark pickles a reader and ships it, so it carries values only. Connections are opened where they
are used, in the planning process and in each task, and never travel (PS-05).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, InputPartition

import waltz
from waltz import LogReader, TransactionColumns
from waltz.errors import ConfigurationError, RemoteProtocolError, WaltzError
from waltz.spark.codes import (
    CLUSTER_CHANGED,
    INCOMPLETE_READ,
    READ_FAILED,
    UNAVAILABLE,
    has_code,
)
from waltz.spark.offsets import TransactionRange, resolve_ranges, select_partitions, split_ranges
from waltz.spark.options import ReadOptions
from waltz.spark.schema import BATCH_BYTES_MAX, REQUEST_ID_BYTES, record_batch, regroup
from waltz.types import TlsSettings, TransactionId


class OpenReader(Protocol):
    def __call__(self, cluster: str, *, tls: TlsSettings) -> LogReader: ...


@dataclass(frozen=True)
class WaltzInputPartition(InputPartition):
    """One task: a range, and the cluster it was planned on."""

    range: TransactionRange
    cluster_key: UUID


class WaltzReader(DataSourceReader):
    """Reads the columns of `schema`, an Arrow schema, as `options` say.

    The marks are asked for once, so everything derived from one `load()` sees the same rows, even
    while the log grows and however often a task is run again.
    """

    def __init__(
        self, options: ReadOptions, schema: Any, open_reader: OpenReader = waltz.open_reader
    ) -> None:
        self._options = options
        self._schema = schema
        self._open_reader = open_reader

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read. Raises WaltzError, its text led by a code."""
        options = self._options
        with self._log() as log:
            selected = select_partitions(options.partitions, log.partition_count)
            marks = {each: log.high_water_mark(each) for each in selected}
            cluster_key = log.cluster_key
        ranges = resolve_ranges(options.starting, options.ending, marks)
        tasks = split_ranges(ranges, task_count_min=options.task_count_min)
        return [WaltzInputPartition(each, cluster_key) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
        # Spark calls this once even for a plan without any task.
        if not isinstance(partition, WaltzInputPartition):
            return
        wanted = partition.range
        with self._log() as log:
            if log.cluster_key != partition.cluster_key:
                raise ConfigurationError(
                    f"{CLUSTER_CHANGED} {self._options.cluster} leads to cluster {log.cluster_key};"
                    f" the read was planned on {partition.cluster_key}"
                )
            columns = log.read(wanted.partition_id, wanted.first, wanted.end)
            yield from regroup(
                (
                    record_batch(wanted.partition_id, each, self._schema)
                    for each in complete(columns, wanted)
                ),
                rows_max=self._options.batch_rows_max,
                bytes_max=BATCH_BYTES_MAX,
            )

    @contextmanager
    def _log(self) -> Iterator[LogReader]:
        try:
            with self._open_reader(self._options.cluster, tls=self._options.tls) as log:
                yield log
        except WaltzError as error:
            if has_code(error):
                raise
            code = UNAVAILABLE if error.retryable else READ_FAILED
            raise type(error)(f"{code} cluster {self._options.cluster}: {error}") from error


def complete(
    columns: Iterable[TransactionColumns], wanted: TransactionRange
) -> Iterator[TransactionColumns]:
    """Yield `columns` as they come and make sure that they are `wanted`, dense and to its end.

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
