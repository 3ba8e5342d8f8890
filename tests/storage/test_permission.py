"""What the two access flags of a partition allow (SN-17, SN-18, SN-21, CX-07)."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.storage.support import ZERO, batch, t
from waltz.errors import UnavailableError
from waltz.storage.directory.control_struct import ASSIGNED, PartitionInfo
from waltz.storage.permission import READS, WRITES, check_access, is_offline
from waltz.types import SessionId
from waltz.wire.storage_protocol import (
    STORAGE_CODEC,
    AcceptDamageRequest,
    AppendRecordsRequest,
    LastSessionInfoRequest,
    MaxTransactionIdRequest,
    NoteClientsRequest,
    OpenRequest,
    RecordHeaderListRequest,
    RecordHeaderRequest,
    RecordListRequest,
    RecordRequest,
    RepairRequest,
    ReplicaStateRequest,
    SetLowWaterMarkRequest,
    StorageMessage,
    TruncateRequest,
)

HEAD = (SessionId(3), 1, ZERO)

WRITE_REQUESTS: list[StorageMessage] = [
    AppendRecordsRequest(*HEAD, batch(0, 1), offline=False),
    TruncateRequest(*HEAD, t(0), offline=False),
    SetLowWaterMarkRequest(*HEAD, t(0), offline=False),
    RepairRequest(*HEAD, batch(0, 1)),
]
READ_REQUESTS: list[StorageMessage] = [
    RecordRequest(*HEAD, t(0)),
    RecordHeaderRequest(*HEAD, t(0)),
    RecordListRequest(*HEAD, t(0), 1),
    RecordHeaderListRequest(*HEAD, t(0), 1),
]
QUESTIONS: list[StorageMessage] = [
    LastSessionInfoRequest(*HEAD, offline=False),
    MaxTransactionIdRequest(*HEAD, offline=False),
    ReplicaStateRequest(*HEAD),
    AcceptDamageRequest(*HEAD, ()),
    NoteClientsRequest(*HEAD, ()),
]
OFFLINE: list[StorageMessage] = [
    LastSessionInfoRequest(*HEAD, offline=True),
    MaxTransactionIdRequest(*HEAD, offline=True),
    AppendRecordsRequest(*HEAD, batch(0, 1), offline=True),
    TruncateRequest(*HEAD, t(0), offline=True),
    SetLowWaterMarkRequest(*HEAD, t(0), offline=True),
]


def allowed(requests: list[StorageMessage], *, readable: bool, writable: bool) -> bool:
    """Whether all are allowed; it must be all or none of them."""
    info = PartitionInfo(flags=ASSIGNED).with_access(readable=readable, writable=writable)
    outcomes = set()
    for request in requests:
        try:
            check_access(info, request, offline=is_offline(request))
        except UnavailableError:
            outcomes.add(False)
        else:
            outcomes.add(True)
    (outcome,) = outcomes
    return outcome


@pytest.mark.parametrize(
    ("readable", "writable", "expected"),
    [
        (True, True, {"writes", "reads", "questions"}),
        (True, False, {"reads", "questions"}),
        (False, True, {"writes", "questions"}),
        (False, False, {"offline"}),
    ],
)
def test_access_is_a_table(readable: bool, writable: bool, expected: set[str]) -> None:
    kinds = {
        "writes": WRITE_REQUESTS,
        "reads": READ_REQUESTS,
        "questions": QUESTIONS,
        "offline": OFFLINE,
    }
    found = {
        name
        for name, requests in kinds.items()
        if allowed(requests, readable=readable, writable=writable)
    }
    assert found == expected


def test_every_request_is_in_the_table() -> None:
    requests = {
        kind
        for kind in STORAGE_CODEC.messages
        if kind.__name__.endswith("Request") and kind is not OpenRequest
    }
    assert requests == {type(r) for r in WRITE_REQUESTS + READ_REQUESTS + QUESTIONS}
    assert all(isinstance(request, WRITES) for request in WRITE_REQUESTS)
    assert all(isinstance(request, READS) for request in READ_REQUESTS)
    assert not any(isinstance(request, WRITES | READS) for request in QUESTIONS)


def test_only_the_recovery_tool_is_offline() -> None:
    assert all(is_offline(request) for request in OFFLINE)
    assert not any(is_offline(r) for r in WRITE_REQUESTS + READ_REQUESTS + QUESTIONS)
    assert not is_offline(OpenRequest(*HEAD, UUID(int=1), 4))


def test_what_is_disabled_is_named() -> None:
    """SN-17."""
    closed = PartitionInfo(flags=0)
    with pytest.raises(UnavailableError, match="read and write of partition 0 are disabled"):
        check_access(closed, QUESTIONS[0], offline=False)
    with pytest.raises(UnavailableError, match="write of partition 0 is disabled"):
        check_access(
            closed.with_access(readable=True, writable=False), WRITE_REQUESTS[0], offline=False
        )
    with pytest.raises(UnavailableError, match="read of partition 0 is disabled"):
        check_access(
            closed.with_access(readable=False, writable=True), READ_REQUESTS[0], offline=False
        )
    with pytest.raises(UnavailableError, match="offline recovery of partition 0 is disabled"):
        check_access(PartitionInfo(), OFFLINE[0], offline=True)
