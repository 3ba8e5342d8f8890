"""The reader of a storage directory: a mounted disk, or a copy, read without any server.

Reads sealed segments only, and checks every record. Nothing is written, locked or repaired. One
task per segment, which must have the same path on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from waltz.errors import ConfigurationError, CorruptionError, NotFoundError, WaltzError
from waltz.reader.transaction_columns import columns_of_records
from waltz.spark.codes import INVALID_SEGMENT, OUTSIDE_LOG, UNKNOWN_PARTITION, has_code
from waltz.spark.decoding import RowDecoding, decoded
from waltz.spark.offsets import TransactionRange, resolve_ranges
from waltz.spark.row_filter import ALL
from waltz.spark.schema import BATCH_BYTES_MAX, record_batch, regroup
from waltz.spark.spark_options import ReadOptions
from waltz.spark.worker_garbage import GARBAGE
from waltz.storage.inspection.sealed import SealedSegment, read_sealed, sealed_segments
from waltz.system.real_disk import RealDisk
from waltz.types import PartitionId, TransactionId


@dataclass(frozen=True)
class SegmentInputPartition(InputPartition):
    """One task: a range within a segment."""

    range: TransactionRange
    segment: SealedSegment
    cluster_key: UUID


class WaltzSegmentReader(DataSourceReader):
    """Reads the columns of `schema`, an Arrow schema, from the directory of `options`."""

    def __init__(
        self, options: ReadOptions, schema: Any, *, decoding: RowDecoding | None = None
    ) -> None:
        assert options.path is not None
        self._path = options.path
        self._options = options
        self._schema = schema
        self._decoding = decoding

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks of the read. Raises WaltzError, its text led by a code."""
        options = self._options
        with _coded(self._path):
            cluster_key, segments = sealed_segments(RealDisk(), str(self._path))
        marks = self._marks(segments)
        ranges = resolve_ranges(
            options.starting, options.ending, marks, fail_on_data_loss=options.fail_on_data_loss
        )
        tasks = [
            SegmentInputPartition(part, segment, cluster_key)
            for each in ranges
            for segment in segments
            if segment.partition_id == each.partition_id
            and (part := _overlap(each, segment)).row_count > 0
        ]
        found = sum(task.range.row_count for task in tasks)
        if found < sum(each.row_count for each in ranges):
            raise NotFoundError(
                f"{OUTSIDE_LOG} {self._path} does not have all transactions of the read: its"
                f" segments begin at {self._firsts(segments)}"
            )
        return tasks

    def _marks(self, segments: Sequence[SealedSegment]) -> dict[PartitionId, TransactionId]:
        """The last sealed transaction of the partitions that are read."""
        ends = {each.partition_id: each.end for each in segments}
        for partition_id in self._options.partitions or ():
            if partition_id not in ends:
                raise ConfigurationError(
                    f"{UNKNOWN_PARTITION} option partitions names partition {partition_id};"
                    f" {self._path} has sealed segments of"
                    f" {', '.join(map(str, sorted(ends))) or 'none'}"
                )
        wanted = self._options.partitions or tuple(sorted(ends))
        return {each: TransactionId(ends[each] - 1) for each in wanted}

    def _firsts(self, segments: Sequence[SealedSegment]) -> str:
        firsts: dict[PartitionId, TransactionId] = {}
        for each in segments:
            firsts.setdefault(each.partition_id, each.first)
        return ", ".join(f"{first} in partition {each}" for each, first in firsts.items())

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the Arrow record batches of one task. Raises WaltzError, its text led by a code."""
        return GARBAGE.sparing(decoded(self._decoding, self._read(partition)))

    def _read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark calls this once even for a plan without any task.
        if not isinstance(partition, SegmentInputPartition):
            return
        with _coded(self._path):
            yield from regroup(
                self._batches(partition),
                rows_max=self._options.batch_rows_max,
                bytes_max=BATCH_BYTES_MAX,
            )

    def _batches(self, task: SegmentInputPartition) -> Iterator[Any]:
        wanted, headers = task.range, self._options.headers
        for records in read_sealed(
            RealDisk(), task.segment, task.cluster_key, first=wanted.first, end=wanted.end
        ):
            columns = columns_of_records(records)
            batch = record_batch(wanted.partition_id, columns, self._schema)
            yield batch if headers == ALL else batch.filter(pa.array(headers.mask(columns.headers)))


def _overlap(wanted: TransactionRange, segment: SealedSegment) -> TransactionRange:
    first, end = max(wanted.first, segment.first), min(wanted.end, segment.end)
    return TransactionRange(wanted.partition_id, first, TransactionId(max(first, end)))


@contextmanager
def _coded(path: Path) -> Iterator[None]:
    """Give whatever the files are a text that starts with a code."""
    try:
        yield
    except OSError as error:
        raise CorruptionError(f"{INVALID_SEGMENT} {path} cannot be read: {error}") from error
    except WaltzError as error:
        if has_code(error):
            raise
        raise type(error)(f"{INVALID_SEGMENT} {error}") from error
