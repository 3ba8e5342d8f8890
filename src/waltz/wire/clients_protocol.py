"""Messages about the clients of a server: 84 to 86 of the client protocol.

Owns these messages. A client tells how far its application has applied; tools ask which clients
there are. Everything in them is for people: nothing is decided by a mark that was told.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

from waltz.types import ClientId, Generation, PartitionId, TransactionId
from waltz.wire.fields import BOOLEAN, INT, LONG, NULLABLE_TEXT, TEXT, ListOf, Optional, Structure
from waltz.wire.message import Audience, Message, message

APPLIED_MARKS_MAX: Final = 1_000
"""Marks in one message of a client; more are told in several messages."""

CLIENTS_TOLD_MAX: Final = 200
"""Clients in one answer; the asker asks for those after them."""

MOUNTS_TOLD_MAX: Final = 500
"""Mounts in one answer; of a client that alone has more, the rest is left out and counted."""

PARTITIONS_TOLD_MAX: Final = 10_000
"""Partitions in one answer; more are left out."""

UNKNOWN_TIME: Final = -1
"""Milliseconds that nobody knows."""


class AppliedMark(NamedTuple):
    """The last transaction of a partition that the application has applied; -1 for none."""

    partition_id: PartitionId
    transaction_id: TransactionId


class MarkLag(NamedTuple):
    """The lag of a mark that the asker has named; see `MountEntry`."""

    partition_id: PartitionId
    transaction_id: TransactionId
    lag_min_milliseconds: int
    lag_max_milliseconds: int


class PartitionMark(NamedTuple):
    """A partition of the server; the mark is None until the server knows it."""

    partition_id: PartitionId
    generation: Generation
    high_water_mark: TransactionId | None


class MountEntry(NamedTuple):
    """A partition that a client has mounted.

    `applied` is what the client has applied at least, None if it has not said; it said so
    `told_milliseconds` ago. `sent` is the last transaction that the server has sent it. The lag is
    the time since the first transaction after `applied` was committed: between `lag_min` and
    `lag_max` milliseconds, where UNKNOWN_TIME means that there is no such bound; it is UNKNOWN_TIME
    for both if nothing is known of it.
    """

    partition_id: PartitionId
    applied: TransactionId | None
    told_milliseconds: int
    sent: TransactionId | None
    lag_min_milliseconds: int
    lag_max_milliseconds: int
    writes: bool


class ClientEntry(NamedTuple):
    """A client with mounted partitions: one connection.

    `number` names the connection on this server, and grows. `name` is None if the client has not
    said one; the other texts of its label are empty then. `principal` is the name in its verified
    certificate, empty without one. `tells_marks`: it tells what it has applied, within a second.
    `is_broken`: it has no TCP connection at the moment. `heard_milliseconds` is the time since
    something came from it.
    """

    number: int
    client_id: ClientId
    name: str | None
    instance: str
    program: str
    version: str
    is_consumer: bool
    principal: str
    address: str
    protocol_version: int
    tells_marks: bool
    is_broken: bool
    connected_milliseconds: int
    heard_milliseconds: int
    mounts: tuple[MountEntry, ...]
    mounts_left_out: int


APPLIED_MARK: Final = Structure("applied mark", AppliedMark, partition_id=INT, transaction_id=LONG)
MARK_LAG: Final = Structure(
    "lag of a mark",
    MarkLag,
    partition_id=INT,
    transaction_id=LONG,
    lag_min_milliseconds=LONG,
    lag_max_milliseconds=LONG,
)
PARTITION_MARK: Final = Structure(
    "partition mark",
    PartitionMark,
    partition_id=INT,
    generation=INT,
    high_water_mark=Optional(LONG),
)
MOUNT: Final = Structure(
    "mount",
    MountEntry,
    partition_id=INT,
    applied=Optional(LONG),
    told_milliseconds=LONG,
    sent=Optional(LONG),
    lag_min_milliseconds=LONG,
    lag_max_milliseconds=LONG,
    writes=BOOLEAN,
)
CLIENT: Final = Structure(
    "client",
    ClientEntry,
    number=LONG,
    client_id=INT,
    name=NULLABLE_TEXT,
    instance=TEXT,
    program=TEXT,
    version=TEXT,
    is_consumer=BOOLEAN,
    principal=TEXT,
    address=TEXT,
    protocol_version=INT,
    tells_marks=BOOLEAN,
    is_broken=BOOLEAN,
    connected_milliseconds=LONG,
    heard_milliseconds=LONG,
    mounts=ListOf(MOUNT, MOUNTS_TOLD_MAX),
    mounts_left_out=INT,
)


@message(84, since=5, audience=Audience.STRANGERS_SERVER)
class AppliedMarks(Message):
    """Tell what the application has applied, of partitions that are mounted on this connection;
    only after both have the feature. There is no answer."""

    marks: Annotated[tuple[AppliedMark, ...], ListOf(APPLIED_MARK, APPLIED_MARKS_MAX)]


@message(85, since=5, audience=Audience.STRANGERS_SERVER)
class ClientsRequest(Message):
    """Ask which clients have mounted partitions of this server, on connections whose numbers are
    above `after`, and for the lag of some marks; only after both have the feature."""

    request_number: Annotated[int, LONG]
    after: Annotated[int, LONG]
    marks: Annotated[tuple[AppliedMark, ...], ListOf(APPLIED_MARK, APPLIED_MARKS_MAX)]


@message(86, since=5, audience=Audience.ASKER)
class ClientsResponse(Message):
    """Say it, in the order of the connections' numbers, as it was `age_milliseconds` ago. With
    `has_more` there are connections after the last one here. `lags` are those of now; marks of
    partitions that are not the server's are left out."""

    request_number: Annotated[int, LONG]
    age_milliseconds: Annotated[int, LONG]
    partitions: Annotated[tuple[PartitionMark, ...], ListOf(PARTITION_MARK, PARTITIONS_TOLD_MAX)]
    clients: Annotated[tuple[ClientEntry, ...], ListOf(CLIENT, CLIENTS_TOLD_MAX)]
    has_more: Annotated[bool, BOOLEAN]
    lags: Annotated[tuple[MarkLag, ...], ListOf(MARK_LAG, APPLIED_MARKS_MAX)]


CLIENTS_MESSAGES: Final = (AppliedMarks, ClientsRequest, ClientsResponse)
