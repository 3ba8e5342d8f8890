"""Messages by which a server tells tools of its partitions, replicas and coordinator: 80 to 83 of
the client protocol.

Owns these messages. They are for people and tools, not for clients of the log; nothing in them is
taken from the coordinator, but for its own address.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Final

from waltz.limits import REPORT_REPLICAS_MAX, REPORTS_MAX
from waltz.types import Generation, PartitionId, ReplicaId, SessionId, TransactionId
from waltz.wire.fields import (
    INT,
    LONG,
    NULLABLE_TEXT,
    PARTITION_IDS,
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


REPORT_MESSAGES: Final = (
    PartitionReportsRequest,
    PartitionReports,
    CoordinatorRequest,
    CoordinatorLocation,
)
