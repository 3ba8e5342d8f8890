"""Asks servers for their mounted clients: names, marks and lag.

All of it is what a server knows and says, with its age. Names are what clients call themselves:
labels, which prove nothing; `principal` is the name in a verified certificate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from waltz.connections.connection_shell import ServerConnection
from waltz.connections.denial_errors import denial_error
from waltz.connections.logical_handshake import ConnectionSettings
from waltz.errors import (
    ConnectionLostError,
    HandshakeRefusedError,
    OperationTimeoutError,
    ProtocolError,
    UnavailableError,
)
from waltz.host import Host
from waltz.limits import HANDSHAKE_SECONDS_MAX
from waltz.log_fields import printable
from waltz.types import Address, ClientId, Generation, PartitionId, TransactionId
from waltz.wire.clients_protocol import (
    APPLIED_MARKS_MAX,
    UNKNOWN_TIME,
    AppliedMark,
    ClientEntry,
    ClientsRequest,
    ClientsResponse,
    MountEntry,
)
from waltz.wire.denial_protocol import Denied
from waltz.wire.lifecycle_protocol import Feature

CLIENT_PAGES_MAX: Final = 200
"""Answers that are asked for one server; clients beyond them are not shown, and it is said."""

ASKING: Final = ConnectionSettings(features=(Feature.CLIENTS, Feature.DENIALS))


@dataclass(frozen=True, slots=True)
class Lag:
    """The time since the first transaction that was not applied was committed, by the clock of the
    server that committed it: at least `least_seconds`, at most `most_seconds`, None where nobody
    knows."""

    least_seconds: float
    most_seconds: float | None


@dataclass(frozen=True, slots=True)
class ClientMount:
    """A partition that a client has mounted, as its server knows it.

    `applied` is what the client has applied at least, as it said `told_seconds` ago; None if it has
    not said. `sent` is the last transaction that the server has sent it. `lag` is None where nobody
    knows anything of it. Of a client that does not tell its marks, `applied` comes from its last
    append: it may have applied more since, so the lag is less.
    """

    partition_id: PartitionId
    high_water_mark: TransactionId | None
    applied: TransactionId | None
    told_seconds: float | None
    sent: TransactionId | None
    lag: Lag | None
    writes: bool

    @property
    def lag_transactions(self) -> int | None:
        """Return the number of transactions that are not applied as far as is known; None where
        nobody knows, or the client has applied more than its server's log has."""
        if self.applied is None or self.high_water_mark is None:
            return None
        behind = self.high_water_mark - self.applied
        return behind if behind >= 0 else None


@dataclass(frozen=True, slots=True)
class MountedClient:
    """A client with mounted partitions: one connection, whose `number` is its server's.

    `name` None: the client has not said one. `tells_marks`: it tells what it has applied, within a
    second; one that does not is of an earlier release, a reader, or the original's.
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
    is_connected: bool
    connected_seconds: float
    heard_seconds: float
    mounts: tuple[ClientMount, ...]
    mounts_left_out: int


@dataclass(frozen=True, slots=True)
class ServerClients:
    """A server's answer, which was `age_seconds` old when it came. `is_complete`: no client and no
    mount is left out.

    A server that has lost a partition and does not know it yet says of its log what it knew: its
    lags are those of an older end. `named_consumers_shell` asks the coordinator as well."""

    age_seconds: float
    generations: Mapping[PartitionId, Generation]
    high_water_marks: Mapping[PartitionId, TransactionId | None]
    clients: tuple[MountedClient, ...]
    lags: Mapping[tuple[PartitionId, TransactionId], Lag]
    is_complete: bool


async def ask_clients(
    host: Host,
    address: Address,
    marks: Collection[tuple[PartitionId, TransactionId]] = (),
    *,
    seconds: float = HANDSHAKE_SECONDS_MAX,
) -> ServerClients:
    """Return the mounted clients of a server, and the lag of these marks as far as the server knows
    it. Raises UnavailableError: the server does not answer in time, or its release cannot say."""
    cannot_say = f"the release of server {address} cannot say who its clients are"
    try:
        async with asyncio.timeout(seconds):
            connection = await ServerConnection.open(host, address, ASKING)
            try:
                if not connection.has(Feature.CLIENTS):
                    raise UnavailableError(cannot_say)
                return await _ask_pages(connection, sorted(set(marks)))
            finally:
                connection.close()
    except TimeoutError:
        raise OperationTimeoutError(f"no answer from {address} in {seconds:g} s") from None
    except (ConnectionLostError, ProtocolError, HandshakeRefusedError) as error:
        raise UnavailableError(f"{address} does not answer as a server: {error}") from error


async def ask_all_clients(
    host: Host,
    addresses: Iterable[Address],
    marks: Collection[tuple[PartitionId, TransactionId]] = (),
    *,
    seconds: float = HANDSHAKE_SECONDS_MAX,
) -> dict[Address, ServerClients | UnavailableError]:
    """Ask these servers at once; a server that does not answer has its error as its answer."""

    async def ask(address: Address) -> ServerClients | UnavailableError:
        try:
            return await ask_clients(host, address, marks, seconds=seconds)
        except UnavailableError as error:
            return error

    asked = list(addresses)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


async def _ask_pages(
    connection: ServerConnection, wanted: Sequence[tuple[PartitionId, TransactionId]]
) -> ServerClients:
    """Ask until there is nothing after the last client, and no mark is left to ask for."""
    clients: list[MountedClient] = []
    lags: dict[tuple[PartitionId, TransactionId], Lag] = {}
    age = 0
    for page in range(CLIENT_PAGES_MAX):
        after = clients[-1].number if clients else 0
        first = page * APPLIED_MARKS_MAX
        marks = [AppliedMark(*each) for each in wanted[first : first + APPLIED_MARKS_MAX]]
        connection.send([ClientsRequest(0, after, tuple(marks))])
        answer = await _answer(connection, after)
        age = max(age, answer.age_milliseconds)
        ends = {each.partition_id: each.high_water_mark for each in answer.partitions}
        clients += [_client(each, ends) for each in answer.clients]
        for each in answer.lags:
            lag = _lag(each.lag_min_milliseconds, each.lag_max_milliseconds)
            if lag is not None:
                lags[each.partition_id, each.transaction_id] = lag
        has_more = answer.has_more and bool(answer.clients)
        if not has_more and first + APPLIED_MARKS_MAX >= len(wanted):
            break
    return ServerClients(
        age / 1000,
        {each.partition_id: each.generation for each in answer.partitions},
        ends,
        tuple(clients),
        lags,
        not answer.has_more and not any(each.mounts_left_out for each in clients),
    )


async def _answer(connection: ServerConnection, after: int) -> ClientsResponse:
    while (messages := await connection.receive()) is not None:
        for message in messages:
            if isinstance(message, ClientsResponse):
                numbers = [after, *(each.number for each in message.clients)]
                if any(first >= then for first, then in pairwise(numbers)):
                    raise UnavailableError(
                        f"{connection.address} names its clients out of order: {numbers[:3]}"
                    )
                return message
            if isinstance(message, Denied):
                raise UnavailableError(str(denial_error(message)))
    raise ConnectionLostError(f"{connection.address} has ended the connection")


def _client(entry: ClientEntry, marks: Mapping[PartitionId, TransactionId | None]) -> MountedClient:
    return MountedClient(
        entry.number,
        entry.client_id,
        None if entry.name is None else printable(entry.name),
        printable(entry.instance),
        printable(entry.program),
        printable(entry.version),
        entry.is_consumer,
        printable(entry.principal),
        printable(entry.address),
        entry.protocol_version,
        entry.tells_marks,
        not entry.is_broken,
        entry.connected_milliseconds / 1000,
        entry.heard_milliseconds / 1000,
        tuple(_mount(each, marks.get(each.partition_id)) for each in entry.mounts),
        entry.mounts_left_out,
    )


def _mount(entry: MountEntry, high_water_mark: TransactionId | None) -> ClientMount:
    return ClientMount(
        entry.partition_id,
        high_water_mark,
        entry.applied,
        _seconds(entry.told_milliseconds),
        entry.sent,
        _lag(entry.lag_min_milliseconds, entry.lag_max_milliseconds),
        entry.writes,
    )


def _lag(least: int, most: int) -> Lag | None:
    return None if least == UNKNOWN_TIME else Lag(least / 1000, _seconds(most))


def _seconds(milliseconds: int) -> float | None:
    return None if milliseconds == UNKNOWN_TIME else milliseconds / 1000
