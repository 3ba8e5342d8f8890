"""The writers that Spark makes: a new one per write or micro-batch, shipped to every task.

A task is identified, for a stream, by Spark's query ID and batch ID, which it finds in its local
properties; for a write, by the option `writeId`, or by an ID made with the writer, of which all
tasks have a copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from waltz.errors import WaltzError
from waltz.spark.sink import SinkAccess, TaskRows, end_once, expect_all_tasks, write_rows
from waltz.spark.sink_progress import TaskIdentity
from waltz.spark.spark_options import SinkOptions
from waltz.spark.tasks import coded_errors

log = logging.getLogger(__name__)

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Local properties that Spark gives the jobs of a streaming query; the group is the run's ID."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """The result of a task."""

    identity: TaskIdentity
    written: TaskRows


class WaltzWriter(DataSourceArrowWriter):
    """Writes a data frame (PS-07). With a `writeId` a second write of the same one adds nothing."""

    def __init__(self, options: SinkOptions) -> None:
        """Called on the driver. Raises as `SinkAccess.bound`."""
        is_once = options.write_id is None
        write_id = options.write_id or f"once-{uuid4().hex}"
        self._first = TaskIdentity(write_id, options.batch, 0, uuid4().hex, is_once)
        self._access = _bound(options, self._first if is_once else None)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        identity = replace(self._first, task=_task_number())
        with coded_errors(self._access.cluster):
            return TaskWritten(identity, write_rows(self._access, identity, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish the write: all rows are in the log. The notes of a write without a name are
        deleted.

        Raises ConfigurationError: an earlier write of this name had more tasks.
        """
        if self._first.is_once:
            self._forget()
        else:
            _expect_all_tasks(self._access, cast(Sequence[TaskWritten], messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the write up, of which rows may be in the log. The notes of one without a name are
        deleted: nobody writes under its ID again."""
        if self._first.is_once:
            self._forget()

    def _forget(self) -> None:
        try:
            end_once(self._access, self._first)
        except WaltzError as error:
            # Notes that are left change no row: a write that succeeded is not told as failed.
            log.warning("sink_notes_left write=%s reason=%s", self._first.write_id, error)


class WaltzStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query (PS-07). Rows are in the log before a task has ended, and
    cannot be taken back."""

    def __init__(self, options: SinkOptions) -> None:
        """Called on the driver, for each micro-batch. Raises as `SinkAccess.bound`."""
        self._access = _bound(options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query_id, batch_id, run_id = (
            context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID, RUN_ID)
        )
        assert query_id is not None, "set by Spark for every query"
        assert batch_id is not None, "set by Spark for every micro-batch"
        identity = TaskIdentity(query_id, int(batch_id), _task_number(), run_id or "")
        with coded_errors(self._access.cluster):
            return TaskWritten(identity, write_rows(self._access, identity, iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Finish the batch: all rows are in the log. Raises ConfigurationError: the batch once had
        more tasks."""
        _expect_all_tasks(self._access, cast(Sequence[TaskWritten], messages))


def _bound(options: SinkOptions, once: TaskIdentity | None = None) -> SinkAccess:
    with coded_errors(options.cluster):
        access = SinkAccess(options.cluster, options.tls, options.cluster_key)
        return access.bound(options.checkpoint, once)


def _expect_all_tasks(access: SinkAccess, written: Sequence[TaskWritten]) -> None:
    if written:
        with coded_errors(access.cluster):
            expect_all_tasks(access, written[0].identity, len(written))


def _task_number() -> int:
    context = TaskContext.get()
    assert context is not None, "Spark calls this in a task"
    return int(context.partitionId())
