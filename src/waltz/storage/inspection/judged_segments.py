"""One segment judged: its two headers, every record, every index entry.

Owns the difference between damage, a torn tail and an index that is merely behind. Knows nothing of
other segments: their demands on this one come as an `Expectation`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from waltz.errors import NotFoundError
from waltz.limits import DATA_BYTES_MAX, INDEX_CHECKPOINT_RECORDS
from waltz.record import RECORD_HEADER, RECORD_OVERHEAD_BYTES, RecordBatch
from waltz.storage.inspection.findings import Finding, FindingKind, Report
from waltz.storage.inspection.survey import PartitionFiles
from waltz.storage.inspection.walk import Gap, Run, SegmentView, read_run, walk
from waltz.storage.log.examination import may_have_record
from waltz.storage.log.segment import (
    DATA_SUFFIX,
    FORMAT_VERSION,
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    SEGMENT_HEADER,
    SEGMENT_HEADER_BYTES,
)
from waltz.types import PartitionId, TransactionId

FIRST: Final = TransactionId(0)

CREATION_MILLISECONDS_MAX: Final = 60_000
"""The creation times of the two files may differ by this much: the original takes the time of each
file at the moment it makes it."""

PARTITION_OF_REQUEST: Final = slice(8, 12)
"""The bytes of a request ID that are its partition ID."""

Progress = Callable[[int], None]
"""Called with the number of bytes checked since the last call."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Requirements on a segment; None where there is nothing to compare with.

    `following` is the first ID of the next segment, None for the last segment. All records before
    `durable_next` were promised. With `index_is_proof` every index entry proves that its record was
    durable.
    """

    cluster_key: UUID | None = None
    partition_id: PartitionId | None = None
    following: TransactionId | None = None
    durable_next: TransactionId = FIRST
    index_is_proof: bool = False


def proved_next(view: SegmentView, expected: Expectation) -> TransactionId:
    """Return the ID before which every record of the segment is known to have been durable, by the
    node's own rule in `segment_recovery.py`."""
    first, count = view.data.first_transaction_id, view.index.count
    if expected.following is not None:
        return expected.following
    proved = max(first, expected.durable_next)
    header = view.index_file.read_at(0, SEGMENT_HEADER_BYTES)
    is_own = not any(header_problems(header, first, expected))
    if expected.index_is_proof:
        # A hole was once an entry, and so were entries under a damaged header.
        proved = max(proved, TransactionId(first + count))
    elif is_own and count:
        indexed_last = first + count - 1
        thousand = indexed_last - indexed_last % INDEX_CHECKPOINT_RECORDS
        proved = max(proved, TransactionId(thousand))
    return proved


class SegmentCheck:
    """Checks one segment, once; `run` or `run_one` returns the report."""

    def __init__(
        self,
        files: PartitionFiles,
        view: SegmentView,
        expected: Expectation,
        *,
        data_checksums: bool,
        progress: Progress,
    ) -> None:
        self._view = view
        self._first = view.data.first_transaction_id
        self._expected = expected
        self._proved = proved_next(view, expected)
        self._good_next = self._first
        """One past the last record that checks out."""
        self._data_checksums = data_checksums
        self._progress = progress
        self._data_path = files.path(self._first, DATA_SUFFIX)
        self._index_path = files.path(self._first, INDEX_SUFFIX)
        self._report = Report(files=view.has_data + view.has_index)

    def run(self) -> Report:
        """Check the whole segment."""
        view = self._view
        self._report.bytes = view.data_file.size() + view.index_file.size()
        if not view.has_data:
            if view.has_index:
                self._check_without_data()
        elif self._is_unfinished():
            text = "left by a crash in the middle of a roll-over, empty"
            self._add(FindingKind.ORPHAN, self._data_path, text)
        else:
            self._check_headers()
            self._check_records()
            self._check_end_of_index()
        return self._report

    def run_one(self, transaction_id: TransactionId) -> Report:
        """Check both headers, and one record with its entry. Raises NotFoundError."""
        following = TransactionId(transaction_id + 1)
        if not self._view.has_data:
            self._add_lost("the data file is missing", transaction_id, following)
            return self._report
        self._check_headers()
        for part in self._walk_to(transaction_id):
            if isinstance(part, Run) and part.batch.next_transaction_id > transaction_id:
                start = transaction_id - part.batch.first_transaction_id
                batch = part.batch.slice(transaction_id, 1)
                self._check_run(Run(batch, part.offset + int(part.batch.offsets[start])))
                self._report.bytes = len(batch.block)
                return self._report
            if isinstance(part, Gap) and (part.next_transaction_id or following) > transaction_id:
                text = f"from transaction {part.first} on: {part.reason}"
                if transaction_id < self._proved:
                    self._add_lost(text, transaction_id, following, part.offset)
                else:
                    self._add(FindingKind.TORN_TAIL, self._data_path, text, offset=part.offset)
                return self._report
        if transaction_id >= self._proved:
            raise NotFoundError(f"{self._data_path} ends before transaction {transaction_id}")
        self._add_lost("missing", transaction_id, following)
        return self._report

    def _walk_to(self, transaction_id: TransactionId) -> Iterator[Run | Gap]:
        """Yield the record if it is where the index has it, otherwise all records from the start
        on."""
        for offset in self._view.entries(transaction_id - self._first, 1).tolist():
            if self._view.data.record_end(transaction_id, offset) is not None:
                run = read_run(self._view.data, transaction_id, offset)
                assert run is not None
                yield run
        yield from walk(self._view)

    def _is_unfinished(self) -> bool:
        """Whether a crash left the segment while it was created, so that nothing is lost."""
        header = self._view.data_file.read_at(0, SEGMENT_HEADER_BYTES)
        return (
            self._proved == self._first
            and self._expected.following is None
            and (len(header) < SEGMENT_HEADER_BYTES or not any(header))
        )

    def _check_without_data(self) -> None:
        index_file = self._view.index_file
        if self._proved == self._first and index_file.size() <= SEGMENT_HEADER_BYTES:
            self._add(FindingKind.ORPHAN, self._index_path, "an index file that has no data file")
            return
        self._check_header(self._index_path, index_file.read_at(0, SEGMENT_HEADER_BYTES))
        indexed = TransactionId(self._first + self._view.index.proved_count())
        self._add_lost("the data file is missing", self._first, max(self._proved, indexed))

    # Headers

    def _check_headers(self) -> None:
        header = self._view.data_file.read_at(0, SEGMENT_HEADER_BYTES)
        self._check_header(self._data_path, header)
        if not self._view.has_index:
            self._add(
                FindingKind.INDEX, self._index_path, "there is no index file; it can be made anew"
            )
            return
        index_header = self._view.index_file.read_at(0, SEGMENT_HEADER_BYTES)
        if len(index_header) < SEGMENT_HEADER_BYTES or not any(index_header):
            self._add(
                FindingKind.INDEX, self._index_path, "there is no header; it can be made anew"
            )
            return
        self._check_header(self._index_path, index_header)
        self._compare_headers(header, index_header)

    def _check_header(self, path: str, header: bytes) -> None:
        for problem in header_problems(header, self._first, self._expected):
            self._add(FindingKind.HEADER, path, problem)

    def _compare_headers(self, header: bytes, index_header: bytes) -> None:
        if min(len(header), len(index_header)) < SEGMENT_HEADER_BYTES:
            return
        _, created, key, *_ = SEGMENT_HEADER.unpack(header)
        _, index_created, index_key, *_ = SEGMENT_HEADER.unpack(index_header)
        if key != index_key:
            self._add(
                FindingKind.HEADER,
                self._data_path,
                f"cluster key {UUID(bytes=key)}, in the index file {UUID(bytes=index_key)}",
            )
        if created != index_created:
            by_original = 0 < created - index_created <= CREATION_MILLISECONDS_MAX
            self._add(
                FindingKind.NOTE if by_original else FindingKind.HEADER,
                self._data_path,
                f"created at {created}, its index file at {index_created}; this release writes"
                " the same time into both, the original may write a later one into the data file",
            )

    # Records

    def _check_records(self) -> None:
        """Check the records and their index entries."""
        next_transaction_id = self._first
        end = SEGMENT_HEADER_BYTES
        for part in walk(self._view):
            if isinstance(part, Run):
                self._check_run(part)
                next_transaction_id = self._good_next = part.batch.next_transaction_id
                end = part.offset + len(part.batch.block)
                self._progress(len(part.batch.block))
            elif part.first >= self._proved:
                self._add_tail(part)
                return
            else:
                next_transaction_id = part.next_transaction_id or self._proved
                text = part.reason + self._behind(part)
                self._add_lost(text, part.first, next_transaction_id, part.offset)
                end = part.end
                self._progress(part.end - part.offset)
        if next_transaction_id < self._proved:
            text = f"missing: the file ends at byte {end}"
            self._add_lost(text, next_transaction_id, self._proved, end)
        following_first = self._expected.following
        if following_first is not None and next_transaction_id > following_first:
            text = "also in the next segment"
            self._add(
                FindingKind.DAMAGE, self._data_path, text, following_first, next_transaction_id
            )

    def _behind(self, gap: Gap) -> str:
        """Return what is to be said of records that the index does not know behind damage at the
        end of the log; nothing if there are none."""
        is_end = gap.next_transaction_id is None and self._expected.following is None
        if is_end and may_have_record(self._view.data, gap.offset, self._proved):
            return (
                f"; behind it lies a record from {self._proved} on, which the index does not know"
            )
        return ""

    def _is_without_index(self) -> bool:
        """Whether nothing of the index is left that could tell damage from a torn tail."""
        header = self._view.index_file.read_at(0, SEGMENT_HEADER_BYTES)
        is_strange = any(header_problems(header, self._first, self._expected))
        return is_strange and not self._view.index.count

    def _add_tail(self, gap: Gap) -> None:
        """Judge the bytes after the last record known to have been durable."""
        size = self._view.data.size
        head = self._view.data.read(gap.offset, RECORD_HEADER.size)
        if len(head) == RECORD_HEADER.size:
            found_id, _, _, length, _ = RECORD_HEADER.unpack(head)
            room = size - gap.offset - RECORD_OVERHEAD_BYTES
            if found_id == gap.first and DATA_BYTES_MAX < length <= room:
                text = f"{length} bytes of data; this release takes {DATA_BYTES_MAX}"
                self._add_lost(text, gap.first, TransactionId(gap.first + 1), gap.offset)
                return
        if self._expected.following is not None:
            text = f"{size - gap.offset} bytes after the last record of a complete segment"
            self._add(FindingKind.DAMAGE, self._data_path, text, offset=gap.offset)
            return
        text = f"{size - gap.offset} bytes from transaction {gap.first} on: {gap.reason}"
        if self._is_without_index():
            text += "; without an index nobody knows whether they were durable"
            self._add(FindingKind.DAMAGE, self._data_path, text, offset=gap.offset)
            return
        self._add(FindingKind.TORN_TAIL, self._data_path, text, offset=gap.offset)

    def _check_run(self, run: Run) -> None:
        batch = run.batch
        self._report.records += len(batch)
        start = batch.first_transaction_id - self._first
        offsets = batch.offsets[:-1] + run.offset
        entries = self._view.entries(start, len(batch))
        self._report.entries += len(entries)
        for begin, end in stretches(entries != offsets[: len(entries)]):
            self._add_wrong_entries(batch, begin, end, entries, offsets)
        foreign = np.zeros(len(batch), np.bool_)
        partition_id = self._expected.partition_id
        if partition_id is not None:
            found = partitions_by_request(batch)
            foreign = found != partition_id
            for begin, end in stretches(foreign):
                text = f"of partition {found[begin]}, by its request ID"
                self._add_records(batch, begin, end, offsets, text)
        if self._data_checksums:
            for begin, end in stretches(batch.wrong_data() & ~foreign):
                text = "the CRC-32 of the data is not the one that the client gave with it"
                self._add_records(batch, begin, end, offsets, text)

    def _add_records(
        self, batch: RecordBatch, begin: int, end: int, offsets: NDArray[np.int64], text: str
    ) -> None:
        first = TransactionId(batch.first_transaction_id + begin)
        following = TransactionId(batch.first_transaction_id + end)
        self._add(FindingKind.DAMAGE, self._data_path, text, first, following, int(offsets[begin]))

    def _add_lost(
        self,
        text: str,
        first: TransactionId,
        following: TransactionId,
        offset: int | None = None,
    ) -> None:
        """Add damage of missing records, which are not counted yet."""
        self._report.records += following - first
        self._add(FindingKind.DAMAGE, self._data_path, text, first, following, offset)

    def _add_wrong_entries(
        self,
        batch: RecordBatch,
        begin: int,
        end: int,
        entries: NDArray[np.int64],
        offsets: NDArray[np.int64],
    ) -> None:
        text = f"the record is at byte {offsets[begin]}, the entry says {entries[begin]}"
        if not entries[begin:end].any():
            text = "the entry is zero"
        first = TransactionId(batch.first_transaction_id + begin)
        following = TransactionId(batch.first_transaction_id + end)
        self._add(FindingKind.INDEX, self._index_path, text, first, following)

    def _check_end_of_index(self) -> None:
        if not self._view.has_index:
            return
        index = self._view.index
        end = TransactionId(self._first + index.count)
        spare = max(0, self._view.index_file.size() - SEGMENT_HEADER_BYTES) % INDEX_ENTRY_BYTES
        if spare:
            text = f"{spare} bytes at the end, which are no entry"
            self._add(FindingKind.INDEX_SHORT, self._index_path, text)
        known_next = max(self._good_next, self._proved)
        if end > known_next:
            # The original writes an entry before its record, so a crash may leave only the entry.
            text = "entries for records that are not there"
            self._add(FindingKind.TORN_TAIL, self._index_path, text, known_next, end)
        elif end < self._good_next:
            text = "the entries are missing at the end"
            self._report.entries += self._good_next - end
            self._add(FindingKind.INDEX_SHORT, self._index_path, text, end, self._good_next)

    def _add(
        self,
        kind: FindingKind,
        path: str,
        text: str,
        first: TransactionId | None = None,
        following: TransactionId | None = None,
        offset: int | None = None,
    ) -> None:
        self._report.add(Finding(kind, path, text, first, following, offset))


def header_problems(header: bytes, first: TransactionId, expected: Expectation) -> Iterator[str]:
    """Yield the faults of a segment file's header."""
    if len(header) < SEGMENT_HEADER_BYTES:
        yield f"header of {len(header)} bytes; expected {SEGMENT_HEADER_BYTES}"
        return
    if not any(header):
        yield "a header of zeros"
        return
    version, _, key, partition_id, found_first = SEGMENT_HEADER.unpack(header)
    if version != FORMAT_VERSION:
        yield f"format version {version}; this release knows {FORMAT_VERSION}"
    if expected.cluster_key is not None and key != expected.cluster_key.bytes:
        yield f"cluster key {UUID(bytes=key)}; expected {expected.cluster_key}"
    if expected.partition_id is not None and partition_id != expected.partition_id:
        yield f"partition {partition_id}; expected {expected.partition_id}"
    if found_first != first:
        yield f"first transaction {found_first}; expected {first}"
    reserved = header[SEGMENT_HEADER_BYTES - 88 :]
    if any(reserved):
        yield "reserved bytes that are not zero"


def partitions_by_request(batch: RecordBatch) -> NDArray[np.int32]:
    """Return the partition of each record, according to its request ID."""
    rows = np.ascontiguousarray(batch.request_ids()[:, PARTITION_OF_REQUEST])
    return rows.view(">i4").ravel().astype(np.int32)


def stretches(flags: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each stretch of true values."""
    if not flags.any():
        return
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
