"""Requests of the store's machines to replicas and the coordinator, and what comes back.

Values only. A `ReplicaLink` names one attempt of one store session to talk to one replica; answers
repeat it, so that what belongs to an attempt given up can be told from the present one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from waltz.cluster.partition_metadata import PartitionMetadata
from waltz.record import RecordBatch
from waltz.types import ReplicaId, SessionId, TransactionId
from waltz.wire.storage_protocol import DamagedRange, SessionInfo


class ReplicaLink(NamedTuple):
    """`attempt` counts from 1 per session and replica."""

    session_id: SessionId
    replica_id: ReplicaId
    attempt: int


# Requests to a replica


@dataclass(frozen=True, slots=True)
class AskSessionInfo:
    """Fence out older sessions and learn the replica's last one; answered by a `SessionInfo`."""


@dataclass(frozen=True, slots=True)
class AskMaxTransactionId:
    """Answered by the ID of the last record stored, committed or not."""


@dataclass(frozen=True, slots=True)
class TruncateReplica:
    """Remove everything after `transaction_id`; answered by the ID of the last record left."""

    transaction_id: TransactionId


@dataclass(frozen=True, slots=True)
class SetLowWaterMark:
    """Make the session durable there, with the mark it starts from; answered by None."""

    low_water_mark: TransactionId


@dataclass(frozen=True, slots=True)
class AppendToReplica:
    """Answered by None once `batch`, and all before it, is synced."""

    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class ReadFromReplica:
    """Answered by a batch that starts at `first`, empty if the replica lacks it.

    `reader` is the replica the records are for; None: for nobody in the session.
    """

    first: TransactionId
    count_max: int
    reader: ReplicaLink | None


@dataclass(frozen=True, slots=True)
class ReadHeaders:
    """Read for nobody in the session, without the data; answered by `HeaderColumns`."""

    first: TransactionId
    count_max: int


class Condition(NamedTuple):
    """A replica's word on itself, damaged or not."""

    session_info: SessionInfo
    last: TransactionId
    """The last record stored, committed or not."""
    damaged: tuple[DamagedRange, ...]
    """Ascending; only the beginning if it is too long."""
    refusal: str | None = None
    """Why it would refuse an append; None if it would take one, or its version cannot say."""


@dataclass(frozen=True, slots=True)
class AskCondition:
    """Learn what the replica has damaged; answered by a `Condition`. `number` tells the questions
    to one replica apart. As `RepairRecords` only for replicas that are `repairable`."""

    number: int


@dataclass(frozen=True, slots=True)
class ReadToRepair:
    """As `ReadFromReplica`, for the replica of the link `patient`, where these are damaged."""

    first: TransactionId
    count_max: int
    patient: ReplicaLink


@dataclass(frozen=True, slots=True)
class RepairRecords:
    """Put `batch` where a damaged range begins; answered by None once that is durable."""

    batch: RecordBatch


@dataclass(frozen=True, slots=True)
class AcceptDamage:
    """Take part in the link's session with these records damaged, for no replica can give them;
    answered by None. Only for replicas that are `tolerant`."""

    damaged: tuple[DamagedRange, ...]


RepairerRequest: TypeAlias = AskCondition | ReadToRepair | RepairRecords | AcceptDamage

ReplicaRequest: TypeAlias = (
    AskSessionInfo
    | AskMaxTransactionId
    | TruncateReplica
    | SetLowWaterMark
    | AppendToReplica
    | ReadFromReplica
    | RepairerRequest
)

ReplicaAnswer: TypeAlias = SessionInfo | TransactionId | RecordBatch | Condition | None


# Effects. What each append makes one of per replica is not frozen: that costs more than the rest.


@dataclass(frozen=True, slots=True)
class ConnectReplica:
    """After about `delay_seconds`, wait for a connection, then report `ReplicaConnected`."""

    link: ReplicaLink
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class DropReplica:
    """Forget the link: nothing that comes over it matters any more."""

    link: ReplicaLink
    reason: str


@dataclass(slots=True)
class SendRequest:
    link: ReplicaLink
    request: ReplicaRequest
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """After about `delay_seconds`, read the partition's metadata, created if absent, and its
    replica assignment."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Replace the partition's metadata if it is still at `version`."""

    metadata: PartitionMetadata
    version: int


# Events. As with effects: what comes once per append and replica is not frozen.


@dataclass(frozen=True, slots=True)
class ReplicaConnected:
    link: ReplicaLink
    repairable: bool = False
    """Whether it says what it has damaged and takes repairs: storage protocol 1."""
    tolerant: bool = False
    """Whether it can take part with records that every replica has lost: storage protocol 5."""


@dataclass(frozen=True, slots=True)
class ReplicaSuspected:
    """It could not give a record that it should hold."""

    link: ReplicaLink


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """The connection ended, or was given up: what was sent and not answered is unknown."""

    link: ReplicaLink
    reason: str


@dataclass(slots=True)
class RequestAnswered:
    link: ReplicaLink
    request: ReplicaRequest
    answer: ReplicaAnswer


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """Refused by the replica, or not answered in time: whether it took effect is unknown."""

    link: ReplicaLink
    request: ReplicaRequest
    reason: str
    fence: SessionId | None = None
    """The session that the replica has promised instead; None: it was not that."""


ReplicaEvent: TypeAlias = (
    ReplicaConnected | ReplicaSuspected | ReplicaLost | RequestAnswered | RequestFailed
)


@dataclass(frozen=True, slots=True)
class MetadataRead:
    metadata: PartitionMetadata
    version: int
    assigned: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class MetadataReadFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    version: int


@dataclass(frozen=True, slots=True)
class MetadataWriteFailed:
    """A conflict, or the coordinator was lost: the metadata may have been written."""

    reason: str


MetadataEvent: TypeAlias = MetadataRead | MetadataReadFailed | MetadataWritten | MetadataWriteFailed
