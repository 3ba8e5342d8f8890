"""Batches between clients and servers: version 5 of the client protocol, type codes 64 to 73.

Owns the messages; how columns lie is in `columns.py`. The versions before say one transaction at a
time and leave most refusals unsaid; here one message carries what one turn of a loop has brought,
and every append is in the end either in the feed or told.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Final, NamedTuple

from waltz.limits import BATCH_APPENDS_MAX
from waltz.record import RecordBatch
from waltz.types import PartitionId, TransactionId
from waltz.wire.client_message import ClientMessage
from waltz.wire.columns import (
    APPEND_COLUMNS,
    FEED_COLUMNS,
    RECORD_BLOCK,
    AppendColumns,
    FeedColumns,
)
from waltz.wire.fields import INT, LONG, NULLABLE_TEXT, Enumeration, ListOf, Structure
from waltz.wire.header_columns import HEADER_COLUMNS, HeaderColumns
from waltz.wire.message import Audience, Message, message


class Reason(IntEnum):
    """Why an append is not in the log and never will be under its request ID."""

    LOCKED = 0  # a lock may be newer than the client's mark: `transaction_id`, `lock_hash`
    STALE_GENERATION = 1  # the partition has moved since the client heard of it
    NOT_MOUNTED = 2  # the connection does not speak for its client, or not any more
    NOT_COMMITTED = 3  # the store session changed, and the next one does not have it
    NOT_HERE = 4  # the server does not have the partition, or not any more
    STOPPING = 5  # the server takes nothing more


class Rejection(NamedTuple):
    """The `length` appends from sequence number `first` on. Without a lock, `transaction_id` is -1
    and `lock_hash` 0."""

    first: int
    length: int
    reason: Reason
    transaction_id: TransactionId
    lock_hash: int


class Outcome(IntEnum):
    """The outcome of an append."""

    COMMITTED = 0  # it is transaction `transaction_id`
    NOT_COMMITTED = 1  # it is not in the log and never will be
    UNDECIDED = 2  # nobody can say yet; ask again
    NOT_FOUND = 3  # not through `transaction_id`; ask again from there


REJECTION: Final = Structure(
    "rejection",
    Rejection,
    first=INT,
    length=INT,
    reason=Enumeration(Reason),
    transaction_id=LONG,
    lock_hash=INT,
)
REJECTIONS: Final = ListOf(REJECTION, BATCH_APPENDS_MAX)
OUTCOME: Final = Enumeration(Outcome)


@message(64, since=5, audience=Audience.PARTITION)
class AppendBatch(ClientMessage):
    """Ask a server to append transactions to a partition's log, in order.

    The request ID is that of the first; the sequence numbers of the others follow on it,
    in 32 bits.
    """

    appends: Annotated[AppendColumns, APPEND_COLUMNS]


@message(65, since=5, audience=Audience.STREAM)
class AppendRejected(ClientMessage):
    """Tell which appends of a client and generation are not in the log and never will be.

    The sequence number of the request ID is that of the first.
    """

    rejections: Annotated[tuple[Rejection, ...], REJECTIONS]


@message(66, since=5, audience=Audience.STREAM)
class FeedBatch(Message):
    """Transactions of the feed with dense IDs. All clients at one place get the same bytes."""

    partition_id: Annotated[PartitionId, INT]
    first_transaction_id: Annotated[TransactionId, LONG]
    feed: Annotated[FeedColumns, FEED_COLUMNS]


@message(67, since=5, audience=Audience.PARTITION)
class DataWanted(ClientMessage):
    """Ask for the data along with the feed of a partition, on this connection from now on."""


@message(68, since=5, audience=Audience.PARTITION)
class OutcomeRequest(ClientMessage):
    """Ask what became of the append with this request ID, which is not at `after` or before."""

    after: Annotated[TransactionId, LONG]


@message(69, since=5, audience=Audience.STREAM)
class OutcomeResponse(ClientMessage):
    """Say what became of it. `transaction_id` is where it is, or through where it is not."""

    outcome: Annotated[Outcome, OUTCOME]
    transaction_id: Annotated[TransactionId, LONG]


@message(70, since=5, audience=Audience.PARTITION)
class ReadRequest(ClientMessage):
    """Ask for committed records: at most `count_max`, and no more once `bytes_max` is reached."""

    first_transaction_id: Annotated[TransactionId, LONG]
    count_max: Annotated[int, INT]
    bytes_max: Annotated[int, INT]


@message(71, since=5, audience=Audience.ASKER)
class RecordBlock(ClientMessage):
    """Records from the first one asked for, none if the log ends before it; or, with `error`, why
    there are none."""

    high_water_mark: Annotated[TransactionId, LONG]
    error: Annotated[str | None, NULLABLE_TEXT]
    records: Annotated[RecordBatch, RECORD_BLOCK]


@message(72, since=5, audience=Audience.PARTITION)
class HeadersRequest(ClientMessage):
    """Ask for committed records without their data, at most `count_max`."""

    first_transaction_id: Annotated[TransactionId, LONG]
    count_max: Annotated[int, INT]


@message(73, since=5, audience=Audience.ASKER)
class HeaderBlock(ClientMessage):
    """Headers of records from the first one asked for, none if the log ends before it; or, with
    `error`, why there are none."""

    high_water_mark: Annotated[TransactionId, LONG]
    error: Annotated[str | None, NULLABLE_TEXT]
    headers: Annotated[HeaderColumns, HEADER_COLUMNS]


BATCH_MESSAGES: Final = (
    AppendBatch,
    AppendRejected,
    FeedBatch,
    DataWanted,
    OutcomeRequest,
    OutcomeResponse,
    ReadRequest,
    RecordBlock,
    HeadersRequest,
    HeaderBlock,
)
