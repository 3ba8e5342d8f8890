"""Replaces damaged records by good ones.

Owns the question where their bytes belong: right after the good record before them, and exactly up
to the good record after them. Writes nothing that would touch a good record.
"""

from __future__ import annotations

from waltz.errors import CorruptionError, StorageError
from waltz.record import RECORD_OVERHEAD_BYTES, RecordBatch
from waltz.storage.log.damage import DamagedRange, range_text
from waltz.storage.log.examination import DataFile, data_of_segment
from waltz.storage.log.segment import SEGMENT_HEADER_BYTES, NoFile, Segment, SegmentHome
from waltz.types import TransactionId


def repair_segment(
    home: SegmentHome,
    segment: Segment,
    damaged: DamagedRange,
    batch: RecordBatch,
    *,
    wall_milliseconds: int,
) -> None:
    """Replace the first records of `damaged` by `batch`, durably; a lost data file is made anew.
    The batch starts where the range does and does not exceed it.

    Raises StorageError: the batch does not fit, and nothing was written; CorruptionError: a record
    next to the range is not good either; SegmentFailedError; UnavailableError: no space.
    """
    assert batch.first_transaction_id == damaged.first
    assert batch.next_transaction_id <= damaged.next_transaction_id
    at_lost_end = segment.has_lost_end and (
        damaged.next_transaction_id == segment.next_transaction_id
    )
    data = data_of_segment(segment)
    offset = _end_of_record_before(data, damaged.first)
    if not at_lost_end:
        limit = segment.durable_size
        if damaged.next_transaction_id < segment.next_transaction_id:
            limit = _place(data, damaged.next_transaction_id)
        _check_fit(segment, damaged, batch, offset, limit)
    if isinstance(segment.data_file, NoFile):
        segment.make_data_file(home, wall_milliseconds)
    segment.overwrite(batch, offset, at_lost_end=at_lost_end)


def _end_of_record_before(data: DataFile, transaction_id: TransactionId) -> int:
    if transaction_id == data.first_transaction_id:
        return SEGMENT_HEADER_BYTES
    before = TransactionId(transaction_id - 1)
    end = data.record_end(before, _place(data, before))
    assert end is not None
    return end


def _place(data: DataFile, transaction_id: TransactionId) -> int:
    offset = data.indexed_place(transaction_id)
    if offset is None:
        raise CorruptionError(
            f"record {transaction_id}, next to the ones to repair, does not check out either"
        )
    return offset


def _check_fit(
    segment: Segment, damaged: DamagedRange, batch: RecordBatch, offset: int, limit: int
) -> None:
    left = damaged.next_transaction_id - batch.next_transaction_id
    end = offset + len(batch.block)
    if end == limit if left == 0 else end + left * RECORD_OVERHEAD_BYTES <= limit:
        return
    raise StorageError(
        f"{segment.data_path}: {len(batch)} records of {len(batch.block)} bytes do not fit where"
        f" {range_text(damaged)} had {limit - offset} bytes: they are not what was here; truncate"
        " the replica before them"
    )
