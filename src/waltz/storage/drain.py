"""Answers all waiting requests of a partition together: adjoining appends share one write, and all
share one sync.

Owns the order of requests and the rule that no answer rests on bytes that are not synced. Knows
nothing of files. Source: Waltz Storage, "Messages".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from waltz.errors import (
    FencedError,
    NotFoundError,
    SegmentFailedError,
    StorageError,
    UnavailableError,
)
from waltz.limits import (
    DAMAGED_RANGES_MAX,
    DRAIN_BYTES_MAX,
    RECORD_LIST_BYTES_MAX,
    RECORD_LIST_RECORDS_MAX,
)
from waltz.record import Record, RecordBatch, join_batches
from waltz.storage.log.segment import first_stranger
from waltz.storage.partition_replica import StoragePartition
from waltz.storage.permission import is_offline
from waltz.types import NO_SESSION, SessionId, TransactionId
from waltz.wire.header_columns import (
    HeaderColumns,
    header_columns,
    join_headers,
    no_headers,
)
from waltz.wire.storage_protocol import (
    AcceptDamageRequest,
    AppendRecordsRequest,
    DamagedRange,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    NoteClientsRequest,
    RecordHeader,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordHeaderRequest,
    RecordHeaderResponse,
    RecordListRequest,
    RecordListResponse,
    RecordRequest,
    RecordResponse,
    RepairRequest,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

HEADER_READ_BYTES: Final = 2 * 1024 * 1024
"""Bytes of records read at a time to answer with headers. The checks of larger pieces cost less per
record, as long as the pieces stay in a processor's cache."""


REFUSALS: Final = (StorageError, FencedError, UnavailableError, NotFoundError, OSError)
"""Errors that answer one request with a failure; any other error is a bug and ends the
partition."""


def error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def failure(request: StorageMessage, error: BaseException) -> FailureResponse:
    """Return the answer that reports `error`."""
    return FailureResponse(
        request.session_id,
        request.sequence_number,
        request.partition_id,
        error_text(error),
        (),
    )


def _session(request: StorageMessage) -> SessionId:
    """Return the session whose accepted damage counts for `request`: none for an administrator who
    repairs the replica offline, for damage that a server accepted is not accepted there."""
    return NO_SESSION if is_offline(request) else request.session_id


def _replica_state(
    partition: StoragePartition, request: ReplicaStateRequest
) -> ReplicaStateResponse:
    """Answer the questions of a recovery; unlike a vote, damage does not prevent the answer.

    Raises CorruptionError.
    """
    info, log = partition.promises.info, partition.log
    return ReplicaStateResponse(
        request.session_id,
        request.sequence_number,
        request.partition_id,
        partition.promises.session_info,
        TransactionId(log.next_transaction_id - 1),
        partition.directory_id,
        readable=info.is_readable,
        writable=info.is_writable and partition.writer.is_open,
        damaged=tuple(DamagedRange(*found) for found in log.damage[:DAMAGED_RANGES_MAX]),
        refusal=_append_refusal(partition),
    )


def _append_refusal(partition: StoragePartition) -> str | None:
    """Return the reason for which any append would be refused now; None: appends are taken."""
    try:
        partition.check_healthy()
        if not partition.promises.info.is_writable:
            return "an administrator has closed it to writes"
        partition.writer.check()
        if partition.writer.space is not None:
            partition.writer.space.check(0)
    except (StorageError, UnavailableError) as error:
        return str(error)
    return None


class Drain:
    """All requests that wait: the answers so far, and which of them rest on unsynced bytes."""

    def __init__(self, partition: StoragePartition, requests: Sequence[StorageMessage]) -> None:
        self._partition = partition
        self._requests = requests
        self._answers: list[StorageMessage] = []
        self._unsettled: int | None = None
        """Index of the first answer that waits for the sync."""
        self._waiting: list[RecordBatch] = []
        """Accepted appends that adjoin each other and are not written yet."""
        self._waiting_from = 0
        """Index of the answer to the first of these appends; only answers to appends follow it."""
        self._list_bytes_left = DRAIN_BYTES_MAX

    def run(self) -> list[StorageMessage]:
        """Take the requests in order and return one answer each.

        Appends that adjoin share one write, and all share one sync, which ends before this returns.
        Never raises for a disk's or a peer's fault.
        """
        partition = self._partition
        answer: StorageMessage
        for request in self._requests:
            if type(request) is not AppendRecordsRequest:
                self._write_waiting()
                if isinstance(request, TruncateRequest | SetLowWaterMarkRequest | RepairRequest):
                    self._settle()
            try:
                partition.admit(request)
                if type(request) is AppendRecordsRequest:
                    answer = self._append(request)
                else:
                    answer = self._answer(request)
            except REFUSALS as error:
                answer = failure(request, error)
            self._answers.append(answer)
        self._write_waiting()
        self._settle()
        if (space := partition.writer.space) is not None:
            space.settle()
        counters = partition.counters
        for answer in self._answers:
            counters.requests += 1
            if type(answer) is FailureResponse:
                counters.refusals += 1
        return self._answers

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        batch = self._waiting[0] if len(self._waiting) == 1 else join_batches(self._waiting)
        self._waiting = []
        try:
            self._partition.writer.write(batch)
        except UnavailableError as error:
            self._refuse_waiting(error)
            return
        except SegmentFailedError as error:
            self._fail_unsettled(error)
            return
        self._partition.counters.records_appended += batch.count
        self._partition.counters.bytes_appended += len(batch.block)

    def _settle(self) -> None:
        if self._unsettled is None:
            return
        try:
            self._partition.writer.sync()
        except SegmentFailedError as error:
            self._fail_unsettled(error)
            return
        self._partition.counters.drains_synced += 1
        self._unsettled = None

    def _refuse_waiting(self, error: UnavailableError) -> None:
        """Refuse the waiting appends, nothing of which was written; earlier appends are fine."""
        for position in range(self._waiting_from, len(self._answers)):
            if isinstance(self._answers[position], SuccessResponse):
                self._answers[position] = failure(self._requests[position], error)
        if self._unsettled == self._waiting_from:
            self._unsettled = None

    def _fail_unsettled(self, error: SegmentFailedError) -> None:
        assert self._unsettled is not None
        for position in range(self._unsettled, len(self._answers)):
            self._answers[position] = failure(self._requests[position], error)
        self._unsettled = None

    def _answer(self, request: StorageMessage) -> StorageMessage:
        head = (request.session_id, request.sequence_number, request.partition_id)
        partition = self._partition
        match request:
            case LastSessionInfoRequest():
                partition.accepted_damage.check_rest(_session(request))
                return LastSessionInfoResponse(*head, partition.promises.session_info)
            case MaxTransactionIdRequest():
                partition.accepted_damage.check_rest(_session(request))
                last = TransactionId(partition.log.next_transaction_id - 1)
                return MaxTransactionIdResponse(*head, last)
            case SetLowWaterMarkRequest():
                partition.accepted_damage.check_rest(_session(request))
                partition.set_low_water_mark(request.session_id, request.low_water_mark)
                return SuccessResponse(*head)
            case TruncateRequest():
                left = partition.truncate(request.transaction_id, _session(request))
                return MaxTransactionIdResponse(*head, left)
            case RecordRequest():
                return RecordResponse(*head, self._record(request.transaction_id))
            case RecordHeaderRequest():
                record = self._record(request.transaction_id)
                header = record and RecordHeader(*record[:3])
                return RecordHeaderResponse(*head, header)
            case RecordListRequest():
                records = self._list(request.first_transaction_id, request.count_max)
                return RecordListResponse(*head, records)
            case RecordHeaderListRequest():
                headers = self._headers(request.first_transaction_id, request.count_max)
                return RecordHeaderListResponse(*head, headers)
            case ReplicaStateRequest():
                return _replica_state(partition, request)
            case RepairRequest():
                partition.repair(request.records)
                return SuccessResponse(*head)
            case AcceptDamageRequest():
                partition.accepted_damage.add(request.session_id, request.damaged)
                return SuccessResponse(*head)
            case NoteClientsRequest():
                partition.note_clients(request.session_id, request.clients)
                return SuccessResponse(*head)
            case _:
                raise StorageError(f"{type(request).__name__} is not a request to a partition")

    def _append(self, request: AppendRecordsRequest) -> StorageMessage:
        """Accept an append, and return the answer to it once it is synced. Raises StorageError."""
        partition, records = self._partition, request.records
        if partition.writer.failure is not None:
            partition.writer.check()
        answer = SuccessResponse(request.session_id, request.sequence_number, request.partition_id)
        if not records.count:
            return answer
        stranger = first_stranger(records.block, records.offsets, partition.partition_id)
        if stranger is not None:
            raise StorageError(
                f"the request ID of record {records.first_transaction_id + stranger} names"
                f" another partition than {partition.partition_id}, to which it was to be"
                " appended"
            )
        next_transaction_id = (
            self._waiting[-1].next_transaction_id
            if self._waiting
            else partition.log.next_transaction_id
        )
        if records.first_transaction_id != next_transaction_id:
            raise StorageError(
                f"transaction out of order: expected {next_transaction_id},"
                f" found {records.first_transaction_id}"
            )
        if not self._waiting:
            self._waiting_from = len(self._answers)
        self._waiting.append(records)
        if self._unsettled is None:
            self._unsettled = len(self._answers)
        return answer

    def _record(self, transaction_id: TransactionId) -> Record | None:
        records = self._partition.log.records.read(transaction_id, count_max=1, bytes_max=1)
        return records.record(0) if len(records) else None

    def _list(self, first_transaction_id: TransactionId, count_max: int) -> RecordBatch:
        """Read records for one answer. The lists of one drain share a further bound, above which
        each still gets one record."""
        records = self._partition.log.records.read(
            first_transaction_id,
            count_max=min(count_max, RECORD_LIST_RECORDS_MAX),
            bytes_max=max(1, min(RECORD_LIST_BYTES_MAX, self._list_bytes_left)),
        )
        self._list_bytes_left -= len(records.block)
        return records

    def _headers(self, first_transaction_id: TransactionId, count_max: int) -> HeaderColumns:
        """Read headers for one answer, bounded as by `_list`. The records are read in parts, for
        their data is not kept."""
        count_left = min(count_max, RECORD_LIST_RECORDS_MAX)
        found: list[HeaderColumns] = []
        position = first_transaction_id
        while count_left > 0 and (not found or self._list_bytes_left > 0):
            try:
                records = self._partition.log.records.read(
                    position, count_max=count_left, bytes_max=HEADER_READ_BYTES
                )
            except (StorageError, OSError):
                if not found:
                    raise
                break  # what is before it is good
            if not len(records):
                break
            found.append(header_columns(records))
            self._list_bytes_left -= len(records.block)
            count_left -= len(records)
            position = records.next_transaction_id
        return join_headers(found) if found else no_headers(TransactionId(0))
