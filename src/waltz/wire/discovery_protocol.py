"""Messages by which servers tell clients of the cluster: 48 to 55 of the client protocol.

Owns these messages. They carry no request ID: the sender may not have a client ID yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from waltz.limits import METADATA_ENTRIES_MAX, PARTITION_PROBLEMS_MAX, PARTITIONS_MAX
from waltz.types import Address, ClientId, Generation, PartitionId, ServerId
from waltz.wire.fields import (
    BOOLEAN,
    INT,
    LONG,
    NULLABLE_TEXT,
    TEXT,
    UUID_16,
    ListOf,
    Optional,
    Structure,
)
from waltz.wire.message import Audience, Message, message, only_without

SERVER_ADDRESSES_MAX: Final = 16
"""Addresses under which one server may be reached."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server that runs, and where clients reach it: the first address is the one to take."""

    server_id: ServerId
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """A partition's server, under this generation."""

    partition_id: PartitionId
    generation: Generation
    server_id: ServerId


@dataclass(frozen=True, slots=True)
class PartitionProblem:
    """Why a server takes no appends for one of its partitions."""

    partition_id: PartitionId
    reason: str


ADDRESS: Final = Structure("address", Address, host=TEXT, port=INT)
SERVER: Final = Structure(
    "server", ServerEntry, server_id=INT, addresses=ListOf(ADDRESS, SERVER_ADDRESSES_MAX)
)
PARTITION: Final = Structure(
    "partition", PartitionEntry, partition_id=INT, generation=INT, server_id=INT
)
PROBLEM: Final = Structure("problem", PartitionProblem, partition_id=INT, reason=TEXT)


@message(48, since=5, audience=Audience.STRANGERS_SERVER)
class TopologyRequest(Message):
    """Ask what the cluster is; with `subscribe` also to be told whenever that changes."""

    subscribe: Annotated[bool, BOOLEAN]


@message(49, since=5, audience=Audience.ASKER)
class Topology(Message):
    """The cluster as one server knows it; that server may have lost touch with the others.

    `membership_version` grows with every server that comes or goes. Partitions without a server are
    missing.
    """

    cluster_key: Annotated[UUID, UUID_16]
    cluster_name: Annotated[str, TEXT]
    partition_count: Annotated[int, INT]
    membership_version: Annotated[int, INT]
    servers: Annotated[tuple[ServerEntry, ...], ListOf(SERVER, METADATA_ENTRIES_MAX)]
    partitions: Annotated[tuple[PartitionEntry, ...], ListOf(PARTITION, PARTITIONS_MAX)]


@message(50, since=5, audience=Audience.STRANGERS_SERVER)
class ClientIdRequest(Message):
    """Ask for a client ID that nobody else of the cluster has, or will have."""

    request_number: Annotated[int, LONG]


@message(51, since=5, audience=Audience.ASKER)
class ClientIdResponse(Message):
    """Give the client ID or, with `client_id` None, say why there is none now."""

    request_number: Annotated[int, LONG]
    client_id: Annotated[ClientId | None, Optional(INT)]
    error: Annotated[str | None, NULLABLE_TEXT, only_without("client_id", absent=None)]


@message(52, since=5, audience=Audience.STRANGERS_SERVER)
class PartitionProblemsRequest(Message):
    """Ask why the server takes no appends, for those of its partitions where it takes none."""

    request_number: Annotated[int, LONG]


@message(53, since=5, audience=Audience.ASKER)
class PartitionProblems(Message):
    """Say it, for people; of very many partitions some are left out."""

    request_number: Annotated[int, LONG]
    problems: Annotated[tuple[PartitionProblem, ...], ListOf(PROBLEM, PARTITION_PROBLEMS_MAX)]


@message(54, since=5, audience=Audience.STRANGERS_SERVER)
class GrowthRequest(Message):
    """Ask what an operator has to know who adds partitions; only after both have the feature."""

    request_number: Annotated[int, LONG]


@message(55, since=5, audience=Audience.ASKER)
class GrowthReport(Message):
    """The number of partitions that the server knows, and the number of clients with a mounted
    partition that speak an earlier version: clients of the Java original do not follow a growth."""

    request_number: Annotated[int, LONG]
    partition_count: Annotated[int, INT]
    earlier_clients: Annotated[int, INT]


DISCOVERY_MESSAGES: Final = (
    TopologyRequest,
    Topology,
    ClientIdRequest,
    ClientIdResponse,
    PartitionProblemsRequest,
    PartitionProblems,
    GrowthRequest,
    GrowthReport,
)
