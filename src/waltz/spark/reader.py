"""The batch reader: plans once, then every task reads its range by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

import waltz
from waltz.spark.offsets import resolve_ranges, select_partitions, split_ranges
from waltz.spark.options import ReadOptions
from waltz.spark.tasks import LogAccess, OpenReader, WaltzInputPartition, read_task


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
        self._access = LogAccess(options.cluster, options.tls, open_reader)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read. Raises WaltzError, its text led by a code."""
        options = self._options
        with self._access.opened() as log:
            selected = select_partitions(options.partitions, log.partition_count)
            marks = {each: log.high_water_mark(each) for each in selected}
            cluster_key = log.cluster_key
        ranges = resolve_ranges(
            options.starting,
            options.ending,
            marks,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        tasks = split_ranges(ranges, task_count_min=options.task_count_min)
        return [WaltzInputPartition(each, cluster_key) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
        return read_task(
            self._access, self._schema, partition, rows_max=self._options.batch_rows_max
        )
