"""Requests to a replica as messages of the storage protocol, and its answers as values."""

from __future__ import annotations

import re
from typing import Final, assert_never

from waltz.errors import RemoteProtocolError
from waltz.record import RecordBatch
from waltz.store.requests import (
    AcceptDamage,
    AppendToReplica,
    AskCondition,
    AskMaxTransactionId,
    AskSessionInfo,
    Condition,
    ReadFromReplica,
    ReadHeaders,
    ReadToRepair,
    RepairRecords,
    ReplicaAnswer,
    ReplicaLink,
    ReplicaRequest,
    SetLowWaterMark,
    TruncateReplica,
)
from waltz.types import PartitionId, SessionId
from waltz.wire.handshake import Link
from waltz.wire.header_columns import HeaderColumns
from waltz.wire.storage_protocol import (
    BLOCKS_SINCE,
    AcceptDamageRequest,
    AppendRecordsRequest,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordListRequest,
    RecordListResponse,
    RepairRequest,
    ReplicaStateRequest,
    ReplicaStateResponse,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
    append_body,
    append_frame,
)

FENCED: Final = re.compile(r"session id\b.{0,40}? has changed to (\d{1,18})\b", re.IGNORECASE)


def message_for(
    request: ReplicaRequest | ReadHeaders,
    link: ReplicaLink,
    partition_id: PartitionId,
    sequence_number: int,
) -> StorageMessage:
    """Return the message that asks `request` in the name of the link's session."""
    head = (link.session_id, sequence_number, partition_id)
    match request:
        case AppendToReplica(batch):
            return AppendRecordsRequest(*head, records=batch, offline=False)
        case ReadFromReplica(first, count_max) | ReadToRepair(first, count_max):
            return RecordListRequest(*head, first_transaction_id=first, count_max=count_max)
        case ReadHeaders(first, count_max):
            return RecordHeaderListRequest(*head, first_transaction_id=first, count_max=count_max)
        case AskSessionInfo():
            return LastSessionInfoRequest(*head, offline=False)
        case AskMaxTransactionId():
            return MaxTransactionIdRequest(*head, offline=False)
        case TruncateReplica(transaction_id):
            return TruncateRequest(*head, transaction_id=transaction_id, offline=False)
        case SetLowWaterMark(mark):
            return SetLowWaterMarkRequest(*head, low_water_mark=mark, offline=False)
        case AskCondition():
            return ReplicaStateRequest(*head)
        case RepairRecords(batch):
            return RepairRequest(*head, records=batch)
        case AcceptDamage(damaged):
            return AcceptDamageRequest(*head, damaged=damaged)
        case _:
            assert_never(request)


class RequestFrames:
    """Makes the frames of the requests of one partition.

    An append goes to several replicas one after the other: what their frames have in common is made
    for the first of them.
    """

    def __init__(self, partition_id: PartitionId) -> None:
        self._partition_id = partition_id
        self._batch: RecordBatch | None = None
        self._body: tuple[bytes, ...] = ()
        """That of the frames that append `_batch`; the records themselves are the batch's own."""

    def frame(
        self,
        request: ReplicaRequest | ReadHeaders,
        link: ReplicaLink,
        wire: Link,
        sequence_number: int,
    ) -> bytes:
        """Return what asks `request`, in the name of the link's session, over `wire`.

        Raises LocalProtocolError: the version agreed on there lacks the message.
        """
        version = wire.version
        if type(request) is AppendToReplica and version is not None and version >= BLOCKS_SINCE:
            if request.batch is not self._batch:
                self._batch, self._body = request.batch, append_body(request.batch)
            return append_frame(
                version, link.session_id, sequence_number, self._partition_id, self._body
            )
        return wire.encode(message_for(request, link, self._partition_id, sequence_number))


def records_or_headers(
    request: ReadFromReplica | ReadHeaders, message: StorageMessage
) -> RecordBatch | HeaderColumns:
    """Return what `message` answers. Raises RemoteProtocolError: it answers something else."""
    match request, message:
        case ReadFromReplica(), RecordListResponse(records=batch):
            return batch
        case ReadHeaders(), RecordHeaderListResponse(headers=headers):
            return headers
        case _:
            raise RemoteProtocolError(
                f"{type(message).__name__} as the answer to {type(request).__name__}"
            )


def answer_to(request: ReplicaRequest, message: StorageMessage) -> ReplicaAnswer:
    """Return what `message` answers. Raises RemoteProtocolError: it answers something else."""
    match request, message:
        case (
            AppendToReplica() | SetLowWaterMark() | RepairRecords() | AcceptDamage(),
            SuccessResponse(),
        ):
            return None
        case ReadFromReplica() | ReadToRepair(), RecordListResponse(records=batch):
            return batch
        case AskSessionInfo(), LastSessionInfoResponse(session_info=session_info):
            return session_info
        case AskCondition(), ReplicaStateResponse():
            return condition_in(message)
        case AskMaxTransactionId() | TruncateReplica(), MaxTransactionIdResponse(
            transaction_id=transaction_id
        ):
            return transaction_id
        case _:
            raise RemoteProtocolError(
                f"{type(message).__name__} as the answer to {type(request).__name__}"
            )


def condition_in(message: ReplicaStateResponse) -> Condition:
    return Condition(message.session_info, message.transaction_id, message.damaged, message.refusal)


def fence_in(text: str) -> SessionId | None:
    """Return the session that a storage node, ours or the original's, says it has promised instead
    of the request's; None if its refusal says nothing of the kind."""
    found = FENCED.search(text)
    return None if found is None else SessionId(int(found[1]))
