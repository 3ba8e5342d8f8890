"""The events of a server's partition, and its effects.

Besides these it hears `MessagesReceived` and the events of the store, and wants `Send`,
`FetchRecords` and the effects of its backlog.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from waltz.record import NewRecords, RecordBatch
from waltz.server.clients.client_connection import MessagesReceived
from waltz.server.feeding.backlog import BacklogEffect
from waltz.server.feeding.fetches import FetchRecords
from waltz.server.feeding.outbox import Send
from waltz.store.events import AppendsFailed, Committed, StoreClosed, StoreOpened
from waltz.types import NO_SESSION, NOTHING, ClientId, SessionId, TransactionId
from waltz.wire.header_columns import HeaderColumns

# What it hears, besides MessagesReceived and the events of the store


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    connection_id: int


@dataclass(frozen=True, slots=True)
class MountWithdrawn:
    """The connection may read the partition no longer; what it has sent is still decided."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class ConnectionDrained:
    """The connection is not full any more."""

    connection_id: int


@dataclass(frozen=True, slots=True)
class RecordsRead:
    """The answer to `FetchRecords`: records from the first one asked for, perhaps fewer, or their
    headers."""

    first_transaction_id: TransactionId
    batch: RecordBatch | HeaderColumns
    with_data: bool = True


@dataclass(frozen=True, slots=True)
class StoreReadFailed:
    """`is_unreadable`: no replica can give the first record, whatever there is of the others."""

    first_transaction_id: TransactionId
    reason: str
    with_data: bool = True
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class PartitionRevoked:
    """The partition is no longer this server's under this generation: close at once.

    With `comes_back` it is under a higher one. Clients do not mount again for a generation alone,
    so those that are mounted have to be cut off.
    """

    comes_back: bool


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """The server stops: take no more appends, and close when all are decided, or soon anyway."""


@dataclass(frozen=True, slots=True)
class HoldRequested:
    """A tool wants the partition to announce no further commits for a time; `HoldBegun` answers."""

    hold_id: int
    connection_id: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HoldReleased:
    """The tool is done, and asks whether the hold was in force all the time; `HoldEnded`
    answers."""

    hold_id: int
    connection_id: int


PartitionEvent: TypeAlias = (
    MessagesReceived
    | ConnectionLost
    | MountWithdrawn
    | ConnectionDrained
    | RecordsRead
    | StoreReadFailed
    | PartitionRevoked
    | ReleaseRequested
    | StoreOpened
    | Committed
    | AppendsFailed
    | StoreClosed
)

HoldEvent: TypeAlias = HoldRequested | HoldReleased
"""The events that `HeldPartition` hears besides."""

# What it wants done, besides Send and ReadRecords


@dataclass(frozen=True, slots=True)
class AppendToStore:
    """Hand `records` to the store, in this order; each gets exactly one outcome."""

    records: NewRecords


@dataclass(frozen=True, slots=True)
class CloseClientConnection:
    """The client breaks the protocol, or has to mount again."""

    connection_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClientMounted:
    """The connection speaks for its client now; for people who ask later who it was."""

    connection_id: int
    client_id: ClientId


@dataclass(frozen=True, slots=True)
class RequestsDropped:
    """Requests got no answer, as the protocol has it; for logs and counters only."""

    connection_id: int
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class HoldBegun:
    """From now on nothing above `high_water_mark` is announced; or, with `refusal`, it is."""

    hold_id: int
    refusal: str | None
    session_id: SessionId = NO_SESSION
    high_water_mark: TransactionId = NOTHING


@dataclass(frozen=True, slots=True)
class HoldEnded:
    """`broken_by` None: the hold was in force from its beginning until now."""

    hold_id: int
    broken_by: str | None


PartitionEffect: TypeAlias = (
    Send
    | AppendToStore
    | FetchRecords
    | ClientMounted
    | CloseClientConnection
    | RequestsDropped
    | HoldBegun
    | HoldEnded
    | BacklogEffect
)
