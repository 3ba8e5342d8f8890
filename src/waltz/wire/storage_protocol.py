"""Messages between servers and storage nodes: protocol S, versions 0 to 6.

Owns the messages. Answers repeat session ID, sequence number and partition ID of their request; any
request may be answered by a failure. `offline` is true only from the recovery tool.
Version 0 is the Java original's; version 1 adds what a replica says of its damage, and repair;
version 2 carries lists of records as the block that lies on disk, version 3 those of headers as
columns; version 4 has a replica say why it would refuse an append; version 5 lets a session go on
with records that every replica has lost; version 6 tells nodes which clients have mounted a
partition.
Source: Waltz Storage, "Messages".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple
from uuid import UUID

from waltz.errors import LocalProtocolError
from waltz.limits import NOTE_TEXT_BYTES_MAX
from waltz.record import Record, RecordBatch
from waltz.types import ClientId, PartitionId, SessionId, TransactionId
from waltz.wire.columns import RECORD_BLOCK, STORED_BLOCK
from waltz.wire.fields import (
    BOOLEAN,
    INT,
    LENIENT_TEXT,
    LONG,
    NULLABLE_TEXT,
    UUID_16,
    ListOf,
    Optional,
    Structure,
    Text,
)
from waltz.wire.frame import encode_frame
from waltz.wire.header_columns import HEADER_COLUMNS, HEADER_ROWS, HeaderColumns
from waltz.wire.message import (
    Codec,
    FastPath,
    Message,
    Refusal,
    message,
    message_fields,
    since,
)
from waltz.wire.records import (
    DAMAGED_RANGES,
    RECORD,
    RECORD_HEADER_FIELD,
    RECORDS,
    SESSION_INFO,
    STACK,
)
from waltz.wire.records import (
    DamagedRange as DamagedRange,
)
from waltz.wire.records import (
    RecordHeader as RecordHeader,
)
from waltz.wire.records import (
    SessionInfo as SessionInfo,
)
from waltz.wire.records import (
    StackFrame as StackFrame,
)

STORAGE_CLIENT_GREETING: Final = "Waltz Storage Client"
STORAGE_SERVER_GREETING: Final = "Waltz Storage Server"

STORAGE_MAGIC: Final = ord("S")

REPAIRS_SINCE: Final = 1
BLOCKS_SINCE: Final = 2
HEADERS_SINCE: Final = 3
REFUSALS_SINCE: Final = 4
ACCEPTED_DAMAGE_SINCE: Final = 5
CLIENT_NOTES_SINCE: Final = 6

CLIENT_NOTES_MAX: Final = 1_000
"""Clients in one request to note them."""

_APPEND_START: Final = struct.Struct(">Bqqi")
_ONE_RECORD: Final = struct.Struct("<qIII")
"""The fields before the block of one record: first transaction ID, count, size, where it starts."""

_ONE_RECORD_BYTES: Final = _APPEND_START.size + _ONE_RECORD.size + 1
"""The bytes of an append of one record, but for the record: the last one says whether it is
offline."""


@message_fields
class StorageMessage(Message):
    """The fields that every message of this protocol starts with."""

    session_id: Annotated[SessionId, LONG]
    sequence_number: Annotated[int, LONG]
    partition_id: Annotated[PartitionId, INT]


@message(1)
class OpenRequest(StorageMessage):
    """Show that both sides belong to one cluster; session, sequence and partition are -1."""

    cluster_key: Annotated[UUID, UUID_16]
    partition_count: Annotated[int, INT]


@message(2)
class LastSessionInfoRequest(StorageMessage):
    """Ask for the last session; its own session ID fences out all older ones."""

    offline: Annotated[bool, BOOLEAN]


@message(3)
class LastSessionInfoResponse(StorageMessage):
    session_info: Annotated[SessionInfo, SESSION_INFO]


@message(4)
class SetLowWaterMarkRequest(StorageMessage):
    low_water_mark: Annotated[TransactionId, LONG]
    offline: Annotated[bool, BOOLEAN]


@message(5)
class TruncateRequest(StorageMessage):
    """Remove everything after `transaction_id`, the last one to keep; answered by the new last."""

    transaction_id: Annotated[TransactionId, LONG]
    offline: Annotated[bool, BOOLEAN]


@message(6)
class AppendRecordsRequest(StorageMessage):
    records: Annotated[RecordBatch, RECORDS, RECORD_BLOCK, since(BLOCKS_SINCE)]
    offline: Annotated[bool, BOOLEAN]


def append_body(records: RecordBatch) -> tuple[bytes, ...]:
    """Return what the requests of a server to append `records` have in common, for `append_frame`.

    Raises LocalProtocolError: more records than a peer would take.
    """
    parts: list[bytes] = []
    RECORD_BLOCK.write(parts, records)
    BOOLEAN.write(parts, False)
    return tuple(parts)


def append_frame(
    version: int,
    session_id: SessionId,
    sequence_number: int,
    partition_id: PartitionId,
    body: Sequence[bytes],
) -> bytes:
    """Return the frame of an AppendRecordsRequest, as the codec does, from `BLOCKS_SINCE` on.

    Raises LocalProtocolError: larger than a frame may be.
    """
    start = _APPEND_START.pack(AppendRecordsRequest.CODE, session_id, sequence_number, partition_id)
    return encode_frame(STORAGE_MAGIC, version, (start, *body))


def _encode_append(message: AppendRecordsRequest, version: int) -> bytes | None:
    if version < BLOCKS_SINCE or message.offline:
        return None
    try:
        body = append_body(message.records)
        head = message.session_id, message.sequence_number, message.partition_id
        return append_frame(version, *head, body)
    except (LocalProtocolError, struct.error):
        return None


def _decode_append(body: bytes, version: int) -> AppendRecordsRequest | None:
    """Decode the append of one record, whose price is mostly that of its parts."""
    if version < BLOCKS_SINCE or len(body) < _ONE_RECORD_BYTES:
        return None
    first, count, size, start = _ONE_RECORD.unpack_from(body, _APPEND_START.size)
    if count != 1 or start or len(body) != _ONE_RECORD_BYTES + size:
        return None
    block = body[_ONE_RECORD_BYTES - 1 : -1]
    records = RecordBatch(TransactionId(first), block, [0, size])
    if records.fault(with_data=True) is not None:
        return None
    _, session_id, sequence_number, partition_id = _APPEND_START.unpack_from(body)
    is_offline = body[-1] == 1
    return AppendRecordsRequest(session_id, sequence_number, partition_id, records, is_offline)


@message(7)
class SuccessResponse(StorageMessage): ...


@message(8)
class FailureResponse(StorageMessage, Refusal):
    """Refuse a request. The text is for people; the stack may be empty and is so from our side."""

    message: Annotated[str, LENIENT_TEXT]
    stack: Annotated[tuple[StackFrame, ...], STACK]


@message(9)
class RecordHeaderRequest(StorageMessage):
    transaction_id: Annotated[TransactionId, LONG]


@message(10)
class RecordHeaderResponse(StorageMessage):
    header: Annotated[RecordHeader | None, Optional(RECORD_HEADER_FIELD)]


@message(11)
class RecordRequest(StorageMessage):
    transaction_id: Annotated[TransactionId, LONG]


@message(12)
class RecordResponse(StorageMessage):
    record: Annotated[Record | None, Optional(RECORD)]


@message(13)
class MaxTransactionIdRequest(StorageMessage):
    offline: Annotated[bool, BOOLEAN]


@message(14)
class MaxTransactionIdResponse(StorageMessage):
    """The last transaction stored, committed or not; -1 for none."""

    transaction_id: Annotated[TransactionId, LONG]


@message(15)
class RecordHeaderListRequest(StorageMessage):
    first_transaction_id: Annotated[TransactionId, LONG]
    count_max: Annotated[int, INT]


@message(16)
class RecordHeaderListResponse(StorageMessage):
    """Headers from the first one asked for on; an empty answer starts at 0. The answer holds as
    many headers as a list may have, however large the data is."""

    headers: Annotated[HeaderColumns, HEADER_ROWS, HEADER_COLUMNS, since(HEADERS_SINCE)]


@message(17)
class RecordListRequest(StorageMessage):
    first_transaction_id: Annotated[TransactionId, LONG]
    count_max: Annotated[int, INT]


@message(18)
class RecordListResponse(StorageMessage):
    """Records from the first one asked for on; an empty batch starts at 0."""

    records: Annotated[RecordBatch, RECORDS, STORED_BLOCK, since(BLOCKS_SINCE)]


@message(19, since=REPAIRS_SINCE)
class ReplicaStateRequest(StorageMessage):
    """Ask for everything that a recovery wants to know of a replica, damaged or not."""


@message(20, since=REPAIRS_SINCE)
class ReplicaStateResponse(StorageMessage):
    """`transaction_id` is the last one stored, -1 for none. `readable` and `writable` tell what
    the replica answers now. `damaged` ascends; only its beginning if it is too long. `refusal` is
    why the replica would refuse an append, None if it would take one; before version 4 nobody is
    told."""

    session_info: Annotated[SessionInfo, SESSION_INFO]
    transaction_id: Annotated[TransactionId, LONG]
    directory_id: Annotated[UUID, UUID_16]
    readable: Annotated[bool, BOOLEAN]
    writable: Annotated[bool, BOOLEAN]
    damaged: Annotated[tuple[DamagedRange, ...], DAMAGED_RANGES]
    refusal: Annotated[
        str | None, NULLABLE_TEXT, since(REFUSALS_SINCE, absent=None, is_vital=False)
    ] = None


@message(21, since=REPAIRS_SINCE)
class RepairRequest(StorageMessage):
    """Put `records` where a damaged range begins, in place; answered by success once that is
    durable."""

    records: Annotated[RecordBatch, RECORDS, RECORD_BLOCK, since(BLOCKS_SINCE)]


@message(22, since=ACCEPTED_DAMAGE_SINCE)
class AcceptDamageRequest(StorageMessage):
    """Take part in this session although the records `damaged` are: no replica can give them. They
    stay damaged, and await repair. Answered by success; the next session has to ask again."""

    damaged: Annotated[tuple[DamagedRange, ...], DAMAGED_RANGES]


class ClientNote(NamedTuple):
    """A client that has mounted a partition, as its server knows it; any text may be empty."""

    client_id: ClientId
    name: str
    principal: str
    """The name in the client's verified certificate."""
    address: str
    program: str
    """Program and version, as the client tells."""


CLIENT_NOTE_TEXT: Final = Text(f"text of at most {NOTE_TEXT_BYTES_MAX} bytes", NOTE_TEXT_BYTES_MAX)
CLIENT_NOTE: Final = Structure(
    "client",
    ClientNote,
    client_id=INT,
    name=CLIENT_NOTE_TEXT,
    principal=CLIENT_NOTE_TEXT,
    address=CLIENT_NOTE_TEXT,
    program=CLIENT_NOTE_TEXT,
)


@message(23, since=CLIENT_NOTES_SINCE)
class NoteClientsRequest(StorageMessage):
    """Note in the partition's journal that these clients have mounted it. Answered by success, at
    once: nothing of a journal is promised."""

    clients: Annotated[tuple[ClientNote, ...], ListOf(CLIENT_NOTE, CLIENT_NOTES_MAX)]


STORAGE_CODEC: Final = Codec(
    STORAGE_MAGIC,
    (
        0,
        REPAIRS_SINCE,
        BLOCKS_SINCE,
        HEADERS_SINCE,
        REFUSALS_SINCE,
        ACCEPTED_DAMAGE_SINCE,
        CLIENT_NOTES_SINCE,
    ),
    (
        OpenRequest,
        LastSessionInfoRequest,
        LastSessionInfoResponse,
        SetLowWaterMarkRequest,
        TruncateRequest,
        AppendRecordsRequest,
        SuccessResponse,
        FailureResponse,
        RecordHeaderRequest,
        RecordHeaderResponse,
        RecordRequest,
        RecordResponse,
        MaxTransactionIdRequest,
        MaxTransactionIdResponse,
        RecordHeaderListRequest,
        RecordHeaderListResponse,
        RecordListRequest,
        RecordListResponse,
        ReplicaStateRequest,
        ReplicaStateResponse,
        RepairRequest,
        AcceptDamageRequest,
        NoteClientsRequest,
    ),
    (FastPath(AppendRecordsRequest, _encode_append, _decode_append),),
)
