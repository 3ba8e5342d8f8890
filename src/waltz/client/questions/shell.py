"""What a server says of itself when it is asked, and what may be asked of it (CI-31).

Each question has a connection of its own: who asks may be no client, and a server that does not
answer holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from waltz.errors import ConnectionLostError, UnavailableError, WaltzError
from waltz.host import Connection, Host
from waltz.limits import CONNECTIVITY_SECONDS_MAX, HANDSHAKE_SECONDS_MAX
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    AddPreferredPartitionRequest,
    AddPreferredPartitionResponse,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    RemovePreferredPartitionRequest,
    RemovePreferredPartitionResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)
from waltz.wire.handshake import Link
from waltz.wire.message import Message

A = TypeVar("A")
T = TypeVar("T", bound=Message)

NOBODY = RequestId(ClientId(-1), Generation(0), PartitionId(0), 0)
"""What tools say that are no client: as the original's."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """`partitions`: of those it has, whether it has opened a store session; `storages`: which
    storage nodes it reaches, asked for only if a partition is not well, or completely; `assigned`:
    what it is to have, asked for only completely."""

    partitions: Mapping[PartitionId, bool]
    storages: Mapping[str, bool]
    assigned: frozenset[PartitionId] = frozenset()

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


async def ask_server(host: Host, address: Address, *, completely: bool = False) -> ServerReport:
    """Raises UnavailableError: it does not answer in time, or not as a server."""
    return await _answered(host, address, lambda asking: _ask(asking, completely))


async def ask_servers(
    host: Host, addresses: Iterable[Address]
) -> dict[Address, ServerReport | UnavailableError]:
    """Ask all of them at once and completely; the error of one that does not answer is its answer.

    Each has as long as `ask_server`.
    """

    async def ask(address: Address) -> ServerReport | UnavailableError:
        try:
            return await ask_server(host, address, completely=True)
        except UnavailableError as error:
            return error

    asked = list(addresses)
    return dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))


async def prefer_partitions(
    host: Host,
    address: Address,
    *,
    add: Sequence[PartitionId] = (),
    remove: Sequence[PartitionId] = (),
) -> bool:
    """Let a server prefer these partitions, or no longer; return whether it has taken note.

    Raises UnavailableError: it does not answer, and may have taken note.
    """

    async def ask(asking: _Asking) -> bool:
        result = True
        if add:
            question = AddPreferredPartitionRequest(NOBODY, tuple(add))
            result &= (await asking.ask(question, AddPreferredPartitionResponse)).result
        if remove:
            other = RemovePreferredPartitionRequest(NOBODY, tuple(remove))
            result &= (await asking.ask(other, RemovePreferredPartitionResponse)).result
        return result

    return await _answered(host, address, ask)


async def _answered(host: Host, address: Address, ask: Callable[[_Asking], Awaitable[A]]) -> A:
    seconds = HANDSHAKE_SECONDS_MAX + 2 * CONNECTIVITY_SECONDS_MAX
    try:
        async with asyncio.timeout(seconds):
            connection = await host.network.connect(address)
            try:
                return await ask(_Asking(connection))
            finally:
                connection.close()
    except TimeoutError:
        raise UnavailableError(f"no answer from {address} in {seconds:g} s") from None


async def _ask(asking: _Asking, completely: bool) -> ServerReport:
    health = await asking.ask(ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse)
    storages: dict[str, bool] = {}
    if completely or not all(is_open for _, is_open in health.health):
        answer = await asking.ask(
            CheckStorageConnectivityRequest(NOBODY), CheckStorageConnectivityResponse
        )
        storages = dict(answer.connectivity)
    if not completely:
        return ServerReport(dict(health.health), storages)
    assigned = await asking.ask(
        ServerPartitionsAssignmentRequest(NOBODY), ServerPartitionsAssignmentResponse
    )
    return ServerReport(dict(health.health), storages, frozenset(assigned.partition_ids))


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
