"""Messages by which a server tells tools of its partitions, replicas, refusals, durations and
coordinator: 80 to 83, 88 to 91, 96 and 97 of the client protocol.

Owns these messages. They are for people and tools, not for clients of the log; nothing in them is
taken from the coordinator, but for its own address.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from waltz.limits import REPORT_REPLICAS_MAX, REPORTS_MAX
from waltz.types import (
    Generation,
    PartitionId,
    ReplicaId,
    RequestId,
    SessionId,
    TransactionId,
)
from waltz.wire.fields import (
    BOOLEAN,
    INT,
    LONG,
    NULLABLE_TEXT,
    PARTITION_IDS,
    REQUEST_ID,
    TEXT,
    ListOf,
    Optional,
    Structure,
)
from waltz.wire.message import Audience, Message, message

NEVER: Final = -1
"""The age of what has never been."""


class Standing(IntEnum):
    """A replica's standing in the store session of its partition; the numbers are on the wire."""

    UNKNOWN = 0
    """It takes part as far as the server knows, and its version cannot say more, or it has not
    been asked yet."""
    CURRENT = 1
    """It has said so: it holds every committed transaction, and would take the next append."""
    BEHIND = 2
    """It takes part, and is sent what it lacks."""
    DAMAGED = 3
    """It takes part, and has damaged records."""
    REFUSING = 4
    """It takes part, and takes no appends."""
    SILENT = 5
    """It takes part as far as the server knows, and does not answer."""
    RECOVERING = 6
    """It is on its way into the session."""
    ABSENT = 7
    """It takes no part in the session."""


@dataclass(frozen=True, slots=True)
class ReplicaEntry:
    """`standing` is a number of `Standing`, or of a later version; `takes_appends`
    is 1 for yes, 0 for no, -1 where nobody can say; the age is that of the replica's last word."""

    replica_id: ReplicaId
    standing: int
    takes_appends: int
    age_milliseconds: int
    text: str


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """A partition of the server. `writable` as `takes_appends`; `reason` is why it is not 1."""

    partition_id: PartitionId
    generation: Generation
    session_id: SessionId
    high_water_mark: TransactionId | None
    writable: int
    reason: str | None
    replicas: tuple[ReplicaEntry, ...]


REPLICA: Final = Structure(
    "replica",
    ReplicaEntry,
    replica_id=TEXT,
    standing=INT,
    takes_appends=INT,
    age_milliseconds=LONG,
    text=TEXT,
)
REPORT: Final = Structure(
    "report",
    PartitionReport,
    partition_id=INT,
    generation=INT,
    session_id=LONG,
    high_water_mark=Optional(LONG),
    writable=INT,
    reason=NULLABLE_TEXT,
    replicas=ListOf(REPLICA, REPORT_REPLICAS_MAX),
)


@message(80, since=5, audience=Audience.STRANGERS_SERVER)
class PartitionReportsRequest(Message):
    """Ask how these partitions are; the server asks their replicas first. Those that are not the
    server's are left out of the answer, and so are those beyond the first REPORTS_MAX."""

    request_number: Annotated[int, LONG]
    partition_ids: Annotated[tuple[PartitionId, ...], PARTITION_IDS]


@message(81, since=5, audience=Audience.ASKER)
class PartitionReports(Message):
    """Say it. The coordinator's age is that of its last answer to this server; `coordinator` is
    what is wrong with it."""

    request_number: Annotated[int, LONG]
    coordinator_milliseconds: Annotated[int, LONG]
    coordinator: Annotated[str | None, NULLABLE_TEXT]
    reports: Annotated[tuple[PartitionReport, ...], ListOf(REPORT, REPORTS_MAX)]


@message(82, since=5, audience=Audience.STRANGERS_SERVER)
class CoordinatorRequest(Message):
    """Ask where the cluster's coordinator is: tools are told one server of the cluster only."""

    request_number: Annotated[int, LONG]


@message(83, since=5, audience=Audience.ASKER)
class CoordinatorLocation(Message):
    """Say where this server has found it, without any secret; None: it does not tell."""

    request_number: Annotated[int, LONG]
    address: Annotated[str | None, NULLABLE_TEXT]


REFUSALS_TOLD_MAX: Final = 1_000
"""Refusals, or locks, per answer."""


@dataclass(frozen=True, slots=True)
class RefusalEntry:
    """An append that was refused for a lock, and its age.

    `is_exact`: `winner` has written the lock. Otherwise `winner` is an estimate: the lock was
    written by `winner`, by an earlier transaction, or by none.
    """

    request_id: RequestId
    lock_hash: int
    winner: TransactionId
    is_exact: bool
    age_milliseconds: int


@dataclass(frozen=True, slots=True)
class HotLock:
    """A lock for which appends were refused: the number of refusals, the number of these whose
    winner is an estimate, and winner and age of the newest."""

    lock_hash: int
    refusals: int
    estimated: int
    winner: TransactionId
    age_milliseconds: int


@dataclass(frozen=True, slots=True)
class RefusalsKept:
    """The refusals of a partition since its server opened it: the number of all, the number of the
    newest that the server remembers, and the age of the oldest of these, -1 if there is none."""

    count: int
    kept: int
    oldest_milliseconds: int


REFUSAL_ENTRY: Final = Structure(
    "refusal",
    RefusalEntry,
    request_id=REQUEST_ID,
    lock_hash=INT,
    winner=LONG,
    is_exact=BOOLEAN,
    age_milliseconds=LONG,
)
HOT_LOCK: Final = Structure(
    "lock",
    HotLock,
    lock_hash=INT,
    refusals=INT,
    estimated=INT,
    winner=LONG,
    age_milliseconds=LONG,
)
REFUSALS_KEPT: Final = Structure(
    "refusals kept", RefusalsKept, count=LONG, kept=INT, oldest_milliseconds=LONG
)


@message(88, since=5, audience=Audience.STRANGERS_SERVER)
class RefusalsRequest(Message):
    """Ask for the newest refusals of a partition, at most `count_max`: all, or those with this
    winner, this refused append and this lock."""

    request_number: Annotated[int, LONG]
    partition_id: Annotated[PartitionId, INT]
    count_max: Annotated[int, INT]
    winner: Annotated[TransactionId | None, Optional(LONG)]
    loser: Annotated[RequestId | None, Optional(REQUEST_ID)]
    lock_hash: Annotated[int | None, Optional(INT)]


@message(89, since=5, audience=Audience.ASKER)
class RefusalsReport(Message):
    """Say which there were, the newest first. `kept` is None if the server does not have the
    partition, and at most REFUSALS_TOLD_MAX are told."""

    request_number: Annotated[int, LONG]
    kept: Annotated[RefusalsKept | None, Optional(REFUSALS_KEPT)]
    refusals: Annotated[tuple[RefusalEntry, ...], ListOf(REFUSAL_ENTRY, REFUSALS_TOLD_MAX)]


@message(90, since=5, audience=Audience.STRANGERS_SERVER)
class HotLocksRequest(Message):
    """Ask for the locks of a partition with the most refusals, at most `count_max`."""

    request_number: Annotated[int, LONG]
    partition_id: Annotated[PartitionId, INT]
    count_max: Annotated[int, INT]


@message(91, since=5, audience=Audience.ASKER)
class HotLocksReport(Message):
    """Say which they are, the hottest first, by the refusals that the server remembers. `kept` is
    None if the server does not have the partition, and at most REFUSALS_TOLD_MAX are told."""

    request_number: Annotated[int, LONG]
    kept: Annotated[RefusalsKept | None, Optional(REFUSALS_KEPT)]
    locks: Annotated[tuple[HotLock, ...], ListOf(HOT_LOCK, REFUSALS_TOLD_MAX)]


DURATION_BUCKETS_MAX: Final = 64
"""Buckets of the durations of one stage."""

STAGES_MAX: Final = 16
"""Stages of appends in one answer."""


@dataclass(frozen=True, slots=True)
class DurationBucket:
    """The number of durations up to a bound, and above the bound before; the last one of a list has
    no bound, which is said by -1."""

    bound_microseconds: int
    count: int


@dataclass(frozen=True, slots=True)
class StageDurations:
    """The durations of a stage of the appends of a partition, one per batch, since its server has
    opened it."""

    stage: str
    sum_microseconds: int
    buckets: tuple[DurationBucket, ...]


DURATION_BUCKET: Final = Structure("bucket", DurationBucket, bound_microseconds=LONG, count=LONG)
STAGE_DURATIONS: Final = Structure(
    "stage",
    StageDurations,
    stage=TEXT,
    sum_microseconds=LONG,
    buckets=ListOf(DURATION_BUCKET, DURATION_BUCKETS_MAX),
)


@message(96, since=5, audience=Audience.STRANGERS_SERVER)
class DurationsRequest(Message):
    """Ask for the durations of a partition's appends by stage."""

    request_number: Annotated[int, LONG]
    partition_id: Annotated[PartitionId, INT]


@message(97, since=5, audience=Audience.ASKER)
class DurationsReport(Message):
    """Say them. No stages: the server does not have the partition."""

    request_number: Annotated[int, LONG]
    stages: Annotated[tuple[StageDurations, ...], ListOf(STAGE_DURATIONS, STAGES_MAX)]


REPORT_MESSAGES: Final = (
    PartitionReportsRequest,
    PartitionReports,
    CoordinatorRequest,
    CoordinatorLocation,
    RefusalsRequest,
    RefusalsReport,
    HotLocksRequest,
    HotLocksReport,
    DurationsRequest,
    DurationsReport,
)
