"""The stream reader: one process per query plans the offsets, tasks read by themselves.

Spark keeps the offsets, as `Progress` encodes them, in the query's checkpoint, and asks for the
tasks between two of them, after a failure the same two again. It accepts an offset that goes back
silently and would read rows twice, so no offset here goes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

import waltz
from waltz import Histories, LogReader
from waltz.errors import WaltzError
from waltz.spark.byte_limit import admit_bytes, data_lengths
from waltz.spark.decoding import RowDecoding, decoded
from waltz.spark.followed_history import later_history
from waltz.spark.offsets import resolve_position, select_partitions, split_ranges
from waltz.spark.progress import NextIds, Progress, admit, available
from waltz.spark.row_times import offsets_from
from waltz.spark.spark_options import ReadOptions
from waltz.spark.tasks import LogAccess, OpenReader, WaltzInputPartition, coded_errors, read_task
from waltz.types import PartitionId, TransactionId


class WaltzStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the columns of `schema`, an Arrow schema, as `options` say (PS-02).

    Keeps one connection to the cluster for planning while the query runs.
    """

    def __init__(
        self,
        options: ReadOptions,
        schema: Any,
        open_reader: OpenReader = waltz.open_reader,
        *,
        decoding: RowDecoding | None = None,
    ) -> None:
        self._options = options
        self._schema = schema
        self._decoding = decoding
        assert options.cluster is not None, "an archive grows only through a pipeline"
        self._access = LogAccess(options.cluster, options.tls, open_reader)
        self._log: LogReader | None = None
        self._initial: Progress | None = None
        self._target: NextIds | None = None
        """The end of the query, if it ends with the log as of its beginning."""

    def initialOffset(self) -> dict[str, str | int]:
        """Return the start of a new query. Raises WaltzError, its text led by a code."""
        if self._initial is None:  # Spark asks twice, and the log may grow in between
            histories, marks = self._marks()
            cluster_key = histories.cluster_key
            starting = self._options.starting
            if (moment := self._options.starting_time) is not None:
                with self._access.opened_times(cluster_key) as times:
                    starting = offsets_from(times, moment, marks)
            starting.expect_partitions("startingOffsets", marks)
            self._initial = Progress(
                cluster_key,
                {
                    partition_id: resolve_position(
                        "startingOffsets",
                        starting,
                        partition_id,
                        mark,
                        fail_on_data_loss=self._options.fail_on_data_loss,
                    )
                    for partition_id, mark in marks.items()
                },
                later_history(histories),
            )
        return self._initial.encode()

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.trigger_rows_max is not None:
            return ReadMaxRows(options.trigger_rows_max)
        if options.trigger_bytes_max is not None:
            return ReadMaxBytes(options.trigger_bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str | int]:
        """Return how far the next micro-batch goes. Raises WaltzError, its text led by a code."""
        options = self._options
        progress = Progress.decode(start)
        histories, marks = self._marks()
        progress.expect_cluster(histories.cluster_key, self._access.cluster)
        progress.expect_history(histories)
        ends = available(progress, _next_ids(marks), fail_on_data_loss=options.fail_on_data_loss)
        if self._target is not None:
            ends = {
                each: TransactionId(
                    max(progress.next_id(each), min(end, self._target.get(each, 0)))
                )
                for each, end in ends.items()
            }
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        admitted = admit(progress, ends, rows_max)
        if options.trigger_bytes_max is not None and not isinstance(limit, ReadAllAvailable):
            admitted = self._within_bytes(progress, admitted, options.trigger_bytes_max)
        # Partitions that are not read any more keep their place.
        reached = {**progress.next_ids, **admitted}
        return Progress(histories.cluster_key, reached, later_history(histories)).encode()

    def _within_bytes(self, start: Progress, ends: NextIds, bytes_max: int) -> NextIds:
        """Return the end of a batch of at most `bytes_max` bytes. Only the log knows the sizes, so
        the admitted transactions are read here to count them."""

        def lengths_of(
            partition_id: PartitionId, first: TransactionId, end: TransactionId
        ) -> Iterator[Any]:
            assert self._log is not None, "its marks were asked for"
            return map(data_lengths, self._log.read(partition_id, first, end))

        with coded_errors(self._access.cluster):
            try:
                return admit_bytes(start, ends, bytes_max, lengths_of)
            except WaltzError:
                self.stop()
                raise

    def reportLatestOffset(self) -> dict[str, str | int]:
        """Return the end of the log, so that the query's progress shows how far it is behind."""
        histories, marks = self._marks()
        reached = Progress(histories.cluster_key, _next_ids(marks), later_history(histories))
        return reached.encode()

    def prepareForTriggerAvailableNow(self) -> None:
        _, marks = self._marks()
        self._target = _next_ids(marks)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks between two offsets, the same ones each time.

        Raises ConfigurationError: not offsets of one log.
        """
        first, last = Progress.decode(start), Progress.decode(end)
        last.expect_cluster(first.cluster_key, self._access.cluster)
        tasks = split_ranges(first.ranges_to(last), task_count_min=self._options.task_count_min)
        history = last.history or last.cluster_key
        return [WaltzInputPartition(each, last.cluster_key, history) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
        batches = read_task(
            self._access,
            self._schema,
            partition,
            rows_max=self._options.batch_rows_max,
            headers=self._options.headers,
        )
        return decoded(self._decoding, batches)

    def stop(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    def __getstate__(self) -> dict[str, Any]:
        """Without the connection, which never travels."""
        return {**self.__dict__, "_log": None}

    def _marks(self) -> tuple[Histories, dict[PartitionId, TransactionId]]:
        """Return the log's histories and the high-water marks of the partitions that are read."""
        options = self._options
        with coded_errors(self._access.cluster):
            try:
                if self._log is None:
                    access = self._access
                    self._log = access.open_reader(access.cluster, tls=access.tls)
                log = self._log
                selected = select_partitions(options.partitions, log.partition_count)
                marks = log.high_water_marks(selected)
                return log.histories, marks
            except WaltzError:
                self.stop()  # the next question finds its own way
                raise


def _next_ids(marks: dict[PartitionId, TransactionId]) -> NextIds:
    return {each: TransactionId(mark + 1) for each, mark in marks.items()}
