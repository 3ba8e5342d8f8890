"""What a server says of itself when a tool asks: which partitions it can write to, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from waltz.client.connection.shell import ServerConnection
from waltz.errors import ConnectionLostError, ProtocolError, UnavailableError
from waltz.host import Host
from waltz.limits import CONNECTIVITY_SECONDS_MAX, HANDSHAKE_SECONDS_MAX
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import (
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.message import Message

T = TypeVar("T", bound=Message)

NOBODY = RequestId(ClientId(-1), Generation(0), PartitionId(0), 0)
"""What tools say that are no client: as the original's."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """`storages` is which storage nodes the server reaches; asked for only if a partition is not
    well."""

    partitions: Mapping[PartitionId, bool]
    storages: Mapping[str, bool]

    def problem(self, partition_id: PartitionId) -> str | None:
        """Why the server takes no appends for the partition; None if it does."""
        is_open = self.partitions.get(partition_id)
        if is_open is None:
            return "its server has not opened it"
        if is_open:
            return None
        lost = [name for name, is_reached in sorted(self.storages.items()) if not is_reached]
        reached = f"{len(self.storages) - len(lost)} of {len(self.storages)} storage nodes"
        missing = f", not {', '.join(lost)}" if lost else ""
        return f"it has no store session; its server reaches {reached}{missing}"


async def ask_server(host: Host, address: Address) -> ServerReport:
    """Raises UnavailableError: it does not answer in time, or not as a server."""
    seconds = HANDSHAKE_SECONDS_MAX + 2 * CONNECTIVITY_SECONDS_MAX
    try:
        async with asyncio.timeout(seconds):
            connection = await ServerConnection.open(host, address)
            try:
                return await _ask(connection)
            finally:
                connection.close()
    except TimeoutError:
        raise UnavailableError(f"no answer from {address} in {seconds:g} s") from None
    except ProtocolError as error:
        raise UnavailableError(f"it does not answer as a server: {error}") from error


async def _ask(connection: ServerConnection) -> ServerReport:
    health = await _answer(
        connection, ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse
    )
    storages: dict[str, bool] = {}
    if not all(is_open for _, is_open in health.health):
        answer = await _answer(
            connection, CheckStorageConnectivityRequest(NOBODY), CheckStorageConnectivityResponse
        )
        storages = dict(answer.connectivity)
    return ServerReport(dict(health.health), storages)


async def _answer(connection: ServerConnection, question: Message, kind: type[T]) -> T:
    """Raises ProtocolError: what answers does not know the question, or is no server."""
    for _, error in connection.send([question]):
        raise error
    while (messages := await connection.receive()) is not None:
        for message in messages:
            if isinstance(message, kind):
                return message
    raise ConnectionLostError("it has hung up")
