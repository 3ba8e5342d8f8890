"""Messages between tools and the admin port of a storage node: protocol A, versions 0 to 4.

Owns the messages. There is no session here: these requests bypass fencing. Version 0 is the Java
original's; version 1 adds code 5, which the original left out; version 2 is that of nodes that
follow when the cluster gets more partitions; version 3 asks for the journal next to the records; in
version 4 records come as the block that lies on disk.
Source: Waltz Storage, "Administration".
"""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

from waltz.limits import PARTITIONS_MAX
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId
from waltz.wire.columns import STORED_BLOCK
from waltz.wire.fields import (
    BOOLEAN,
    INT,
    LENIENT_TEXT,
    LONG,
    PARTITION_IDS,
    TEXT,
    UUID_16,
    Blob,
    ListOf,
    Pair,
)
from waltz.wire.message import Codec, Message, Refusal, message, message_fields, since
from waltz.wire.records import RECORDS, SESSION_INFO, STACK
from waltz.wire.records import SessionInfo as SessionInfo
from waltz.wire.records import StackFrame as StackFrame

ADMIN_CLIENT_GREETING: Final = "Waltz Storage Admin Client"
ADMIN_SERVER_GREETING: Final = "Waltz Storage Admin Server"
GROWTH_SINCE: Final = 2
"""The version of nodes that follow when the cluster gets more partitions."""

JOURNALS_SINCE: Final = 3
"""The version of nodes that keep a journal next to their records."""

ADMIN_BLOCKS_SINCE: Final = 4
"""The version in which a list of records is the block that lies on disk."""

JOURNAL_ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Bytes of journal entries in one answer; no journal file is larger."""

STATUSES: Final = ListOf(Pair(INT, BOOLEAN), PARTITIONS_MAX)
JOURNAL_ENTRIES: Final = Blob("length, then journal entries", JOURNAL_ANSWER_BYTES_MAX)


@message_fields
class AdminMessage(Message):
    """The fields that every message of this protocol starts with."""

    sequence_number: Annotated[int, LONG]


@message(1)
class AdminSuccessResponse(AdminMessage): ...


@message(2)
class AdminFailureResponse(AdminMessage, Refusal):
    message: Annotated[str, LENIENT_TEXT]
    stack: Annotated[tuple[StackFrame, ...], STACK]


@message(3)
class AdminOpenRequest(AdminMessage):
    """Show that both sides belong to one cluster; the sequence number is -1."""

    cluster_key: Annotated[UUID, UUID_16]
    partition_count: Annotated[int, INT]


@message(4)
class PartitionAvailableRequest(AdminMessage):
    """Allow or refuse reads and writes by servers; refused, offline recovery is allowed."""

    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]
    available: Annotated[bool, BOOLEAN]


@message(5, since=1)
class PartitionAccessRequest(AdminMessage):
    """Allow or refuse reads and writes by servers apart; with both refused, offline recovery is
    allowed."""

    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]
    readable: Annotated[bool, BOOLEAN]
    writable: Annotated[bool, BOOLEAN]


@message(6)
class PartitionAssignmentRequest(AdminMessage):
    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]
    assigned: Annotated[bool, BOOLEAN]
    delete_storage_files: Annotated[bool, BOOLEAN]


@message(7)
class AdminRecordListRequest(AdminMessage):
    partition_id: Annotated[PartitionId, INT]
    first_transaction_id: Annotated[TransactionId, LONG]
    count_max: Annotated[int, INT]


@message(8)
class AdminRecordListResponse(AdminMessage):
    """Records from the first one asked for on; an empty batch starts at 0."""

    partition_id: Annotated[PartitionId, INT]
    records: Annotated[RecordBatch, RECORDS, STORED_BLOCK, since(ADMIN_BLOCKS_SINCE)]


@message(9)
class AdminLastSessionInfoRequest(AdminMessage):
    partition_id: Annotated[PartitionId, INT]


@message(10)
class AdminLastSessionInfoResponse(AdminMessage):
    partition_id: Annotated[PartitionId, INT]
    session_info: Annotated[SessionInfo, SESSION_INFO]


@message(11)
class MetricsRequest(AdminMessage): ...


@message(12)
class MetricsResponse(AdminMessage):
    metrics_json: Annotated[str, TEXT]


@message(13)
class AssignedPartitionStatusRequest(AdminMessage): ...


@message(14)
class AssignedPartitionStatusResponse(AdminMessage):
    """Whether each assigned partition is available; the order has no meaning."""

    statuses: Annotated[tuple[tuple[PartitionId, bool], ...], STATUSES]


@message(15, since=GROWTH_SINCE)
class PartitionCountRequest(AdminMessage):
    """Look how many partitions the cluster has, make room for those that are new, and say how many
    there is room for."""


@message(16, since=GROWTH_SINCE)
class PartitionCountResponse(AdminMessage):
    partition_count: Annotated[int, INT]


@message(17, since=JOURNALS_SINCE)
class JournalRequest(AdminMessage):
    """Ask what the node has noted of the transactions from the first to the last."""

    partition_id: Annotated[PartitionId, INT]
    first_transaction_id: Annotated[TransactionId, LONG]
    last_transaction_id: Annotated[TransactionId, LONG]


@message(18, since=JOURNALS_SINCE)
class JournalResponse(AdminMessage):
    """Journal entries, as a journal file has them after its header, with the checksums of an answer
    that begins with them. They tell of the transactions from the first one asked for to the one
    before the next, from which on the rest may be asked for."""

    partition_id: Annotated[PartitionId, INT]
    next_transaction_id: Annotated[TransactionId, LONG]
    entries: Annotated[bytes, JOURNAL_ENTRIES]


ADMIN_CODEC: Final = Codec(
    ord("A"),
    (0, 1, GROWTH_SINCE, JOURNALS_SINCE, ADMIN_BLOCKS_SINCE),
    (
        AdminSuccessResponse,
        AdminFailureResponse,
        AdminOpenRequest,
        PartitionAvailableRequest,
        PartitionAccessRequest,
        PartitionAssignmentRequest,
        AdminRecordListRequest,
        AdminRecordListResponse,
        AdminLastSessionInfoRequest,
        AdminLastSessionInfoResponse,
        MetricsRequest,
        MetricsResponse,
        AssignedPartitionStatusRequest,
        AssignedPartitionStatusResponse,
        PartitionCountRequest,
        PartitionCountResponse,
        JournalRequest,
        JournalResponse,
    ),
)
