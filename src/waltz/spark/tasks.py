"""Tasks: each reads one range of the log from the cluster by itself.

Spark pickles readers and tasks and ships them, so they carry values only. Connections are opened
where they are used, and never travel (PS-05).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from waltz import LogReader, TransactionColumns
from waltz.errors import ConfigurationError, RemoteProtocolError, WaltzError
from waltz.spark.codes import (
    CLUSTER_CHANGED,
    INCOMPLETE_READ,
    READ_FAILED,
    UNAVAILABLE,
    has_code,
)
from waltz.spark.offsets import TransactionRange
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


@contextmanager
def coded_errors(cluster: str) -> Iterator[None]:
    """Give every WaltzError a text that starts with its code and names the cluster."""
    try:
        yield
    except WaltzError as error:
        if has_code(error):
            raise
        code = UNAVAILABLE if error.retryable else READ_FAILED
        raise type(error)(f"{code} cluster {cluster}: {error}") from error


@contextmanager
def opened_log(options: ReadOptions, open_reader: OpenReader) -> Iterator[LogReader]:
    """Raises WaltzError, its text led by a code."""
    with coded_errors(options.cluster), open_reader(options.cluster, tls=options.tls) as log:
        yield log


def read_task(
    options: ReadOptions, schema: Any, task: InputPartition, open_reader: OpenReader
) -> Iterator[Any]:
    """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
    # Spark calls this once even for a plan without any task.
    if not isinstance(task, WaltzInputPartition):
        return
    wanted = task.range
    with opened_log(options, open_reader) as log:
        if log.cluster_key != task.cluster_key:
            raise ConfigurationError(
                f"{CLUSTER_CHANGED} {options.cluster} leads to cluster {log.cluster_key};"
                f" the read was planned on {task.cluster_key}"
            )
        columns = log.read(wanted.partition_id, wanted.first, wanted.end)
        yield from regroup(
            (record_batch(wanted.partition_id, each, schema) for each in complete(columns, wanted)),
            rows_max=options.batch_rows_max,
            bytes_max=BATCH_BYTES_MAX,
        )


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
