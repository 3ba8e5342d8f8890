from __future__ import annotations

from uuid import UUID

import pytest

from waltz.errors import RemoteProtocolError
from waltz.record import empty_batch
from waltz.store.messages import answer_to, message_for, records_or_headers
from waltz.store.requests import (
    AppendRecords,
    AskCondition,
    AskMaxTransactionId,
    AskSessionInfo,
    Condition,
    ReadHeaders,
    ReadRecords,
    ReadToRepair,
    RepairRecords,
    ReplicaAnswer,
    ReplicaLink,
    ReplicaRequest,
    SetLowWaterMark,
    TruncateReplica,
)
from waltz.types import PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.header_columns import no_headers
from waltz.wire.storage_protocol import (
    AppendRecordsRequest,
    DamagedRange,
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
    SessionInfo,
    SetLowWaterMarkRequest,
    StorageMessage,
    SuccessResponse,
    TruncateRequest,
)

LINK = ReplicaLink(SessionId(9), ReplicaId("a:1"), 2)
HEAD = (SessionId(9), 41, PartitionId(3))
FIVE = TransactionId(5)
NO_RECORDS = empty_batch(FIVE)
INFO = SessionInfo(SessionId(8), FIVE, FIVE)

DAMAGED = (DamagedRange(TransactionId(2), FIVE),)

PAIRS: list[tuple[ReplicaRequest, StorageMessage, StorageMessage, ReplicaAnswer]] = [
    (
        AskSessionInfo(),
        LastSessionInfoRequest(*HEAD, offline=False),
        LastSessionInfoResponse(*HEAD, session_info=INFO),
        INFO,
    ),
    (
        AskMaxTransactionId(),
        MaxTransactionIdRequest(*HEAD, offline=False),
        MaxTransactionIdResponse(*HEAD, transaction_id=FIVE),
        FIVE,
    ),
    (
        TruncateReplica(FIVE),
        TruncateRequest(*HEAD, transaction_id=FIVE, offline=False),
        MaxTransactionIdResponse(*HEAD, transaction_id=FIVE),
        FIVE,
    ),
    (
        SetLowWaterMark(FIVE),
        SetLowWaterMarkRequest(*HEAD, low_water_mark=FIVE, offline=False),
        SuccessResponse(*HEAD),
        None,
    ),
    (
        AppendRecords(NO_RECORDS),
        AppendRecordsRequest(*HEAD, records=NO_RECORDS, offline=False),
        SuccessResponse(*HEAD),
        None,
    ),
    (
        ReadRecords(FIVE, 20, None),
        RecordListRequest(*HEAD, first_transaction_id=FIVE, count_max=20),
        RecordListResponse(*HEAD, records=NO_RECORDS),
        NO_RECORDS,
    ),
    (
        ReadToRepair(FIVE, 20, LINK),
        RecordListRequest(*HEAD, first_transaction_id=FIVE, count_max=20),
        RecordListResponse(*HEAD, records=NO_RECORDS),
        NO_RECORDS,
    ),
    (
        AskCondition(7),
        ReplicaStateRequest(*HEAD),
        ReplicaStateResponse(*HEAD, INFO, FIVE, UUID(int=1), True, False, DAMAGED),
        Condition(INFO, FIVE, DAMAGED),
    ),
    (
        RepairRecords(NO_RECORDS),
        RepairRequest(*HEAD, records=NO_RECORDS),
        SuccessResponse(*HEAD),
        None,
    ),
]


@pytest.mark.parametrize(("request_", "message", "response", "answer"), PAIRS)
def test_requests_and_answers_map_to_the_protocol(
    request_: ReplicaRequest,
    message: StorageMessage,
    response: StorageMessage,
    answer: ReplicaAnswer,
) -> None:
    """ST-04: the session ID is in every message."""
    assert message_for(request_, LINK, PartitionId(3), 41) == message
    assert answer_to(request_, response) == answer


def test_an_answer_of_another_kind_is_the_peers_fault() -> None:
    for request, _, response, _ in PAIRS:
        for _, _, other, _ in PAIRS:
            if type(other) is not type(response):
                with pytest.raises(RemoteProtocolError):
                    answer_to(request, other)


def test_headers_are_asked_for_without_their_data() -> None:
    request = ReadHeaders(FIVE, 20)
    headers = no_headers(FIVE)
    assert message_for(request, LINK, PartitionId(3), 41) == RecordHeaderListRequest(
        *HEAD, first_transaction_id=FIVE, count_max=20
    )
    answer = RecordHeaderListResponse(*HEAD, headers=headers)
    assert records_or_headers(request, answer) == headers
    records = RecordListResponse(*HEAD, records=NO_RECORDS)
    assert records_or_headers(ReadRecords(FIVE, 20, None), records) == NO_RECORDS
    with pytest.raises(RemoteProtocolError, match="RecordListResponse as the answer to ReadH"):
        records_or_headers(request, records)
    with pytest.raises(RemoteProtocolError, match="RecordHeaderListResponse as the answer"):
        records_or_headers(ReadRecords(FIVE, 20, None), answer)
