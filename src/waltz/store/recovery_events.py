"""What recovery is told, and what it asks for. Values only; `recovery.py` decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from waltz.store.requests import (
    AskMaxTransactionId,
    AskSessionInfo,
    MetadataEvent,
    ReadMetadata,
    ReplicaAnswer,
    SetLowWaterMark,
    TruncateReplica,
    WriteMetadata,
)
from waltz.types import ReplicaId, TransactionId

# Events


@dataclass(frozen=True, slots=True)
class ReplicaReached:
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaAnswered:
    replica_id: ReplicaId
    request: RecoveryRequest
    answer: ReplicaAnswer


@dataclass(frozen=True, slots=True)
class RecordsCopied:
    """Everything up to `through` is now synced on the replica."""

    replica_id: ReplicaId
    through: TransactionId


@dataclass(frozen=True, slots=True)
class CopyFailed:
    """Nothing was copied to the replica, because of its source."""

    replica_id: ReplicaId
    source: ReplicaId


@dataclass(frozen=True, slots=True)
class ReplicaLeft:
    """The replica cannot be asked any more. It may be reached again, if that is safe."""

    replica_id: ReplicaId


RecoveryRequest: TypeAlias = (
    AskSessionInfo | AskMaxTransactionId | TruncateReplica | SetLowWaterMark
)
RecoveryEvent: TypeAlias = (
    ReplicaReached | ReplicaAnswered | RecordsCopied | CopyFailed | ReplicaLeft | MetadataEvent
)


# Effects


@dataclass(frozen=True, slots=True)
class AskReplica:
    replica_id: ReplicaId
    request: RecoveryRequest


@dataclass(frozen=True, slots=True)
class CopyRecords:
    """Read one bounded batch from `source` and append it to the replica, once."""

    replica_id: ReplicaId
    source: ReplicaId
    first: TransactionId
    through: TransactionId


@dataclass(frozen=True, slots=True)
class HighWaterMarkResolved:
    high_water_mark: TransactionId


@dataclass(frozen=True, slots=True)
class AdmitReplicas:
    """The metadata says that these take part: they may be sent appends. The first time, a majority
    of the assigned replicas, or more: the session is open."""

    replica_ids: tuple[ReplicaId, ...]


@dataclass(frozen=True, slots=True)
class RefuseReplica:
    """Leave the replica alone and take it for absent."""

    replica_id: ReplicaId
    reason: str


@dataclass(frozen=True, slots=True)
class EndRecovery:
    """Another session has taken over."""

    reason: str


RecoveryEffect: TypeAlias = (
    AskReplica
    | CopyRecords
    | HighWaterMarkResolved
    | AdmitReplicas
    | RefuseReplica
    | EndRecovery
    | ReadMetadata
    | WriteMetadata
)
