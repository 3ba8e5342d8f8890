"""Asks servers how they are, and what they are to prefer: the questions of operators.

Each question has a connection of its own, beside those that a client keeps: a server that is slow
to answer holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from waltz.client.connection.shell import ServerConnection
from waltz.client.conversation.shell import Conversation, conversation
from waltz.errors import HandshakeRefusedError, RemoteProtocolError, UnavailableError
from waltz.host import Host
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
from waltz.wire.discovery_protocol import PartitionProblems, PartitionProblemsRequest

SPOKEN = CLIENT_CODEC.up_to(4)
"""Later versions begin with a handshake, for connections that are kept; a question needs none."""

NOBODY = RequestId(ClientId(-1), Generation(0), PartitionId(0), 0)
"""What tools say that are no client: as the original's."""

ANSWER_SECONDS_MAX = HANDSHAKE_SECONDS_MAX + CONNECTIVITY_SECONDS_MAX
"""For a question: a server takes CONNECTIVITY_SECONDS_MAX to find out whom it reaches."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """`partitions`: of those it has, whether it has opened a store session; `storages`: which
    storage nodes it reaches, asked for only if a partition is not well, or completely; `assigned`:
    what it is to have, asked for only completely; `reasons`: why it takes no appends, in its own
    words, asked for only if a partition is not well, and not known to servers before version 5."""

    partitions: Mapping[PartitionId, bool]
    storages: Mapping[str, bool]
    assigned: frozenset[PartitionId] = frozenset()
    reasons: Mapping[PartitionId, str] = field(default_factory=dict)

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
        reason = self.reasons.get(partition_id, "it has no store session")
        return f"{reason}; its server reaches {reached}{missing}"


@asynccontextmanager
async def talk_to_server(
    host: Host, address: Address, *, seconds: float = ANSWER_SECONDS_MAX
) -> AsyncIterator[Conversation]:
    """Raises UnavailableError: it does not answer in time, or not as a server."""
    async with conversation(host, address, SPOKEN, CLIENT_GREETING, seconds=seconds) as talk:
        yield talk


async def ask_server(host: Host, address: Address, *, completely: bool = False) -> ServerReport:
    """Raises UnavailableError: it does not answer in time, or not as a server."""
    async with talk_to_server(host, address) as talk:
        health = await ask_health(talk)
        is_well = all(health.values())
        storages = {} if is_well and not completely else await ask_connectivity(talk)
        assigned = await ask_assigned(talk) if completely else ()
    reasons = {} if is_well else await ask_reasons(host, address)
    return ServerReport(health, storages, frozenset(assigned), reasons)


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
    result = True
    async with talk_to_server(host, address) as talk:
        if add:
            question = AddPreferredPartitionRequest(NOBODY, tuple(add))
            result &= (await talk.ask(question, AddPreferredPartitionResponse)).result
        if remove:
            other = RemovePreferredPartitionRequest(NOBODY, tuple(remove))
            result &= (await talk.ask(other, RemovePreferredPartitionResponse)).result
    return result


async def ask_health(talk: Conversation) -> Mapping[PartitionId, bool]:
    """Whether each partition of the server takes appends. Raises UnavailableError."""
    answer = await talk.ask(ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse)
    return dict(answer.health)


async def ask_reasons(host: Host, address: Address) -> Mapping[PartitionId, str]:
    """Why the server takes no appends, for those of its partitions where it takes none; nothing
    from one that does not say so much."""
    try:
        connection = await ServerConnection.open(host, address)
        try:
            if connection.send([PartitionProblemsRequest(0)]):
                return {}
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                while (messages := await connection.receive()) is not None:
                    for message in messages:
                        if isinstance(message, PartitionProblems):
                            return {each.partition_id: each.reason for each in message.problems}
        finally:
            connection.close()
    except (UnavailableError, RemoteProtocolError, HandshakeRefusedError, TimeoutError):
        pass  # what it has said before is known without its reasons
    return {}


async def ask_connectivity(talk: Conversation) -> Mapping[str, bool]:
    """Whether the server reaches each storage node, for which it waits itself.

    Raises UnavailableError.
    """
    answer = await talk.ask(
        CheckStorageConnectivityRequest(NOBODY),
        CheckStorageConnectivityResponse,
        seconds_min=ANSWER_SECONDS_MAX,
    )
    return dict(answer.connectivity)


async def ask_assigned(talk: Conversation) -> tuple[PartitionId, ...]:
    """The partitions that the server believes to be its own, sorted. Raises UnavailableError."""
    answer = await talk.ask(
        ServerPartitionsAssignmentRequest(NOBODY), ServerPartitionsAssignmentResponse
    )
    return tuple(sorted(answer.partition_ids))
