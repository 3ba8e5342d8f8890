"""What a server says of itself when a tool asks: which partitions it can write to, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from waltz.errors import ConnectionLostError, UnavailableError, WaltzError
from waltz.host import Connection, Host
from waltz.limits import CONNECTIVITY_SECONDS_MAX, HANDSHAKE_SECONDS_MAX
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.handshake import Link
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
            connection = await host.network.connect(address)
            try:
                return await _ask(connection)
            finally:
                connection.close()
    except TimeoutError:
        raise UnavailableError(f"no answer from {address} in {seconds:g} s") from None


async def _ask(connection: Connection) -> ServerReport:
    asking = _Asking(connection)
    health = await asking.ask(ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse)
    storages: dict[str, bool] = {}
    if not all(is_open for _, is_open in health.health):
        answer = await asking.ask(
            CheckStorageConnectivityRequest(NOBODY), CheckStorageConnectivityResponse
        )
        storages = dict(answer.connectivity)
    return ServerReport(dict(health.health), storages)


class _Asking:
    """One question at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._link = Link(CLIENT_CODEC, CLIENT_GREETING)
        connection.write(self._link.hello())

    async def ask(self, question: Message, kind: type[T]) -> T:
        try:
            while self._link.version is None:
                await self._hear()
            self._connection.write(self._link.encode(question))
            while True:
                for message in await self._hear():
                    if isinstance(message, kind):
                        return message
        except UnavailableError:
            raise
        except WaltzError as error:
            raise UnavailableError(f"it does not answer as a server: {error}") from error

    async def _hear(self) -> Sequence[Message]:
        data = await self._connection.read()
        if not data:
            raise ConnectionLostError("it has hung up")
        return self._link.receive(data)
