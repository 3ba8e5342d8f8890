"""The batch reader: plans once, then every task reads its range itself.

A range is read from the archive as far as the archive has it, and from the log beyond, so that a
data frame spans both without a seam.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from pyspark.sql.datasource import DataSourceReader, InputPartition

import waltz
from waltz import Histories
from waltz.errors import ConfigurationError
from waltz.spark.any_archive import AnyArchive, open_archive
from waltz.spark.codes import UNKNOWN_PARTITION
from waltz.spark.decoding import RowDecoding, decoded
from waltz.spark.offsets import (
    Offsets,
    TransactionRange,
    resolve_ranges,
    select_partitions,
    share_out,
    split_ranges,
    task_count_max,
)
from waltz.spark.parquet_archive import NOTHING_ARCHIVED, Contents
from waltz.spark.row_times import offsets_before, offsets_from
from waltz.spark.spark_options import ReadOptions
from waltz.spark.tasks import LogAccess, OpenReader, as_task, pieces_of, read_task
from waltz.spark.worker_garbage import GARBAGE
from waltz.types import PartitionId, TransactionId


class WaltzReader(DataSourceReader):
    """Reads the columns of `schema`, an Arrow schema, as `options` say.

    The marks are asked for once, so everything derived from one `load()` sees the same rows, even
    while the log grows and however often a task is run again.
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
        self._access = (
            None
            if options.cluster is None
            else LogAccess(options.cluster, options.tls, open_reader)
        )

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read. Raises WaltzError, its text led by a code."""
        options = self._options
        archive = open_archive(options.archive) if options.archive is not None else None
        contents = NOTHING_ARCHIVED if archive is None else archive.contents()
        histories, marks = self._marks(archive, contents)
        cluster_key = histories.cluster_key
        starting, ending = self._ends(cluster_key, marks)
        ranges = resolve_ranges(
            starting,
            ending,
            marks,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        archived_to = contents.next_ids()
        pieces = [
            piece
            for each in split_ranges(
                _cut(ranges, archived_to), task_count_min=options.task_count_min
            )
            for piece in pieces_of(each, contents, options.archive, cluster_key, histories.current)
        ]
        rows = [piece.range.row_count for piece in pieces]
        count_max = task_count_max(sum(rows), options.task_count_min)
        return [as_task(each) for each in share_out(pieces, rows, count_max)]

    def _ends(
        self, cluster_key: UUID, marks: Mapping[PartitionId, TransactionId]
    ) -> tuple[Offsets, Offsets]:
        """Return where the read begins and ends; times become transactions here, once."""
        options = self._options
        starting, ending = options.starting, options.ending
        if options.starting_time is None and options.ending_time is None:
            return starting, ending
        assert self._access is not None, "options that name times name a cluster"
        with self._access.opened_times(cluster_key) as times:
            if options.starting_time is not None:
                starting = offsets_from(times, options.starting_time, marks)
            if options.ending_time is not None:
                ending = offsets_before(times, options.ending_time, marks)
        if options.starting_time is not None and options.ending_time is not None:
            starting = _not_after(starting, ending)
        return starting, ending

    def _marks(
        self, archive: AnyArchive | None, contents: Contents
    ) -> tuple[Histories, dict[PartitionId, TransactionId]]:
        """Return the log's histories and the last transactions of the partitions that are read."""
        selected = self._options.partitions
        if self._access is None:
            assert archive is not None
            ends = contents.next_ids()
            for partition_id in selected or ():
                if partition_id not in ends:
                    raise ConfigurationError(
                        f"{UNKNOWN_PARTITION} option partitions names partition {partition_id};"
                        f" {archive.directory} has {', '.join(map(str, sorted(ends))) or 'none'}"
                    )
            wanted = ends if selected is None else selected
            marks = {each: TransactionId(ends[each] - 1) for each in wanted}
            return Histories(archive.cluster_key), marks
        with self._access.opened() as log:
            if archive is not None:
                archive.expect_cluster(log.cluster_key)
            partition_ids = select_partitions(selected, log.partition_count)
            marks = log.high_water_marks(partition_ids)
            if archive is not None:
                contents.expect_in_log(marks, log.histories, archive.directory)
            return log.histories, marks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
        batches = read_task(
            self._access,
            self._schema,
            partition,
            rows_max=self._options.batch_rows_max,
            headers=self._options.headers,
        )
        return GARBAGE.sparing(decoded(self._decoding, batches))


def _not_after(starting: Offsets, ending: Offsets) -> Offsets:
    """Return `starting`, at the end where clocks that disagree put it after the end: nothing is
    then known to be of the times."""
    positions = {}
    for partition_id, first in starting.positions.items():
        end = ending.positions[partition_id]
        is_after = isinstance(first, int) and isinstance(end, int) and first > end
        positions[partition_id] = end if is_after else first
    return Offsets(starting.otherwise, positions)


def _cut(
    ranges: Sequence[TransactionRange], archived_to: Mapping[PartitionId, TransactionId]
) -> list[TransactionRange]:
    """Cut each range where the archive ends."""
    pieces = []
    for each in ranges:
        border = min(max(each.first, archived_to.get(each.partition_id, each.first)), each.end)
        pieces += [
            TransactionRange(each.partition_id, first, end)
            for first, end in ((each.first, border), (border, each.end))
            if first < end
        ]
    return pieces
