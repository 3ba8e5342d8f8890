from __future__ import annotations

from uuid import UUID
from zlib import crc32

import pytest

from waltz.errors import RemoteProtocolError
from waltz.record import NewRecord, empty_batch, pack_records
from waltz.store.messages import RequestFrames, answer_to, message_for, records_or_headers
from waltz.store.requests import (
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
from waltz.types import PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.handshake import Hello, Link
from waltz.wire.header_columns import no_headers
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
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
        AppendToReplica(NO_RECORDS),
        AppendRecordsRequest(*HEAD, records=NO_RECORDS, offline=False),
        SuccessResponse(*HEAD),
        None,
    ),
    (
        ReadFromReplica(FIVE, 20, None),
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


def agreed(version: int) -> Link:
    link = Link(STORAGE_CODEC, "a server")
    link.receive(Hello((version,), "a node").encode())
    return link


@pytest.mark.parametrize("version", STORAGE_CODEC.versions)
def test_the_frames_of_one_append_differ_by_their_number_only(version: int) -> None:
    """ST-04, whatever the nodes speak: what is made once is what the codec makes each time."""
    frames, wire = RequestFrames(PartitionId(3)), agreed(version)
    for first in (0, 2):
        records = [NewRecord(b"r" * 16, 5, b"data", crc32(b"data"))] * 2
        request = AppendToReplica(pack_records(TransactionId(first), records))
        for number in (41, 42, 2**40):
            made = frames.frame(request, LINK, wire, number)
            assert made == wire.encode(message_for(request, LINK, PartitionId(3), number))


def test_what_is_no_append_is_made_as_the_codec_makes_it() -> None:
    wire = agreed(1)
    made = RequestFrames(PartitionId(3)).frame(AskCondition(1), LINK, wire, 41)
    assert made == wire.encode(message_for(AskCondition(1), LINK, PartitionId(3), 41))


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
    assert records_or_headers(ReadFromReplica(FIVE, 20, None), records) == NO_RECORDS
    with pytest.raises(RemoteProtocolError, match="RecordListResponse as the answer to ReadH"):
        records_or_headers(request, records)
    with pytest.raises(RemoteProtocolError, match="RecordHeaderListResponse as the answer"):
        records_or_headers(ReadFromReplica(FIVE, 20, None), answer)
