"""The verb that each message of the client, storage and admin protocols needs.

Owns the one table, and for which partitions a message asks. Knows no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from waltz.access.policy import Verb
from waltz.types import PartitionId
from waltz.wire.admin_protocol import (
    AdminFailureResponse,
    AdminLastSessionInfoRequest,
    AdminLastSessionInfoResponse,
    AdminOpenRequest,
    AdminRecordListRequest,
    AdminRecordListResponse,
    AdminSuccessResponse,
    AssignedPartitionStatusRequest,
    AssignedPartitionStatusResponse,
    JournalRequest,
    JournalResponse,
    MetricsRequest,
    MetricsResponse,
    PartitionAccessRequest,
    PartitionAssignmentRequest,
    PartitionAvailableRequest,
    PartitionCountRequest,
    PartitionCountResponse,
)
from waltz.wire.batch_protocol import (
    AppendBatch,
    AppendRejected,
    DataWanted,
    FeedBatch,
    HeaderBlock,
    HeadersRequest,
    OutcomeRequest,
    OutcomeResponse,
    ReadRequest,
    RecordBlock,
)
from waltz.wire.client_protocol import (
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    AppendRequest,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ClientMessage,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
    TransactionDataRequest,
    TransactionDataResponse,
)
from waltz.wire.clients_protocol import AppliedMarks, ClientsRequest, ClientsResponse
from waltz.wire.cut_protocol import HoldAnswer, HoldReleaseAnswer, HoldReleaseRequest, HoldRequest
from waltz.wire.denial_protocol import Denied
from waltz.wire.discovery_protocol import (
    ClientIdRequest,
    ClientIdResponse,
    GrowthReport,
    GrowthRequest,
    PartitionProblems,
    PartitionProblemsRequest,
    Topology,
    TopologyRequest,
)
from waltz.wire.history_protocol import HistoriesAnswer, HistoriesRequest, MarksAnswer, MarksRequest
from waltz.wire.lifecycle_protocol import (
    Acknowledgement,
    ConnectionEnd,
    ConnectionRestoreRequest,
    ConnectionRestoreResponse,
    HandshakeRequest,
    HandshakeResponse,
    Heartbeat,
)
from waltz.wire.message import Audience, Message
from waltz.wire.report_protocol import (
    CoordinatorLocation,
    CoordinatorRequest,
    DurationsReport,
    DurationsRequest,
    HotLocksReport,
    HotLocksRequest,
    PartitionReports,
    PartitionReportsRequest,
    RefusalsReport,
    RefusalsRequest,
)
from waltz.wire.storage_protocol import (
    AcceptDamageRequest,
    AppendRecordsRequest,
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    NoteClientsRequest,
    OpenRequest,
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
    SuccessResponse,
    TruncateRequest,
)

_REQUESTS: Final[Mapping[Verb, tuple[type[Message], ...]]] = {
    Verb.CONNECT: (TopologyRequest, ClientIdRequest, OpenRequest, AdminOpenRequest),
    Verb.APPEND: (AppendRequest, AppendBatch),
    Verb.READ: (
        MountRequest,
        FeedRequest,
        TransactionDataRequest,
        FlushRequest,
        HighWaterMarkRequest,
        DataWanted,
        OutcomeRequest,
        ReadRequest,
        HeadersRequest,
        HistoriesRequest,
        MarksRequest,
        AppliedMarks,
        AdminRecordListRequest,
    ),
    Verb.STATUS: (
        CheckStorageConnectivityRequest,
        ServerPartitionsAssignmentRequest,
        ServerPartitionsHealthRequest,
        PartitionProblemsRequest,
        PartitionReportsRequest,
        GrowthRequest,
        DurationsRequest,
        ClientsRequest,
        CoordinatorRequest,
        AdminLastSessionInfoRequest,
        MetricsRequest,
        AssignedPartitionStatusRequest,
        PartitionCountRequest,
    ),
    Verb.EXPLAIN: (RefusalsRequest, HotLocksRequest, JournalRequest),
    Verb.PREFER: (AddPreferredPartitionRequest, RemovePreferredPartitionRequest),
    Verb.CUT: (HoldRequest, HoldReleaseRequest),
    Verb.SERVER: (  # each names a session, and a replica promises one that is new to it
        LastSessionInfoRequest,
        SetLowWaterMarkRequest,
        TruncateRequest,
        AppendRecordsRequest,
        RecordHeaderRequest,
        RecordRequest,
        MaxTransactionIdRequest,
        RecordHeaderListRequest,
        RecordListRequest,
        ReplicaStateRequest,
        RepairRequest,
        AcceptDamageRequest,
        NoteClientsRequest,
    ),
    Verb.ADMIN: (
        PartitionAvailableRequest,
        PartitionAccessRequest,
        PartitionAssignmentRequest,
    ),
}

NEEDED_VERB: Final[Mapping[type[Message], Verb]] = {
    kind: verb for verb, kinds in _REQUESTS.items() for kind in kinds
}
"""The verb that a peer needs for each request."""

WITHOUT_VERB: Final[frozenset[type[Message]]] = frozenset(
    {
        MountResponse,
        FeedData,
        FeedSuspended,
        TransactionDataResponse,
        FlushResponse,
        LockFailure,
        HighWaterMarkResponse,
        CheckStorageConnectivityResponse,
        ServerPartitionsAssignmentResponse,
        AddPreferredPartitionResponse,
        RemovePreferredPartitionResponse,
        ServerPartitionsHealthResponse,
        HandshakeRequest,
        HandshakeResponse,
        ConnectionRestoreRequest,
        ConnectionRestoreResponse,
        Heartbeat,
        Acknowledgement,
        ConnectionEnd,
        Topology,
        ClientIdResponse,
        PartitionProblems,
        GrowthReport,
        AppendRejected,
        FeedBatch,
        OutcomeResponse,
        RecordBlock,
        HeaderBlock,
        PartitionReports,
        CoordinatorLocation,
        RefusalsReport,
        HotLocksReport,
        DurationsReport,
        ClientsResponse,
        HoldAnswer,
        HoldReleaseAnswer,
        HistoriesAnswer,
        MarksAnswer,
        Denied,
        LastSessionInfoResponse,
        SuccessResponse,
        FailureResponse,
        RecordHeaderResponse,
        RecordResponse,
        MaxTransactionIdResponse,
        RecordHeaderListResponse,
        RecordListResponse,
        ReplicaStateResponse,
        AdminSuccessResponse,
        AdminFailureResponse,
        AdminRecordListResponse,
        AdminLastSessionInfoResponse,
        MetricsResponse,
        AssignedPartitionStatusResponse,
        PartitionCountResponse,
        JournalResponse,
    }
)
"""Answers, and messages of the logical connection itself: nothing is asked by them."""


def partitions_asked(message: Message) -> tuple[PartitionId, ...]:
    """Return the partitions for which a request needs its verb; empty: for the node as a whole, or
    for no single partition."""
    if isinstance(message, AppliedMarks):
        return tuple(mark.partition_id for mark in message.marks)
    many: tuple[PartitionId, ...] = getattr(message, "partition_ids", ())
    if many or (isinstance(message, ClientMessage) and message.AUDIENCE is not Audience.PARTITION):
        return many
    one: PartitionId = getattr(message, "partition_id", PartitionId(-1))
    return (one,) if one >= 0 else ()  # an open request has -1
