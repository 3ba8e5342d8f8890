"""What a server says of itself when a tool asks: which partitions it can write to, and why not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from waltz.cli.conversation import Conversation, conversation
from waltz.host import Host
from waltz.limits import CONNECTIVITY_SECONDS_MAX, HANDSHAKE_SECONDS_MAX
from waltz.types import Address, ClientId, Generation, PartitionId, RequestId
from waltz.wire.client_protocol import (
    CLIENT_CODEC,
    CLIENT_GREETING,
    CheckStorageConnectivityRequest,
    CheckStorageConnectivityResponse,
    ServerPartitionsAssignmentRequest,
    ServerPartitionsAssignmentResponse,
    ServerPartitionsHealthRequest,
    ServerPartitionsHealthResponse,
)

SPOKEN = CLIENT_CODEC.up_to(4)
"""Later versions begin with a handshake, for connections that are kept; a question needs none."""

NOBODY = RequestId(ClientId(-1), Generation(0), PartitionId(0), 0)
"""What tools say that are no client: as the original's."""

ANSWER_SECONDS_MAX = HANDSHAKE_SECONDS_MAX + CONNECTIVITY_SECONDS_MAX
"""For a question: a server takes CONNECTIVITY_SECONDS_MAX to find out whom it reaches."""


@dataclass(frozen=True, slots=True)
class ServerReport:
    """`partitions` is which of them take appends; `storages` is which storage nodes the server
    reaches, asked for only if a partition is not well."""

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


@asynccontextmanager
async def talk_to_server(
    host: Host, address: Address, *, seconds: float = ANSWER_SECONDS_MAX
) -> AsyncIterator[Conversation]:
    """Raises UnavailableError: it does not answer in time, or not as a server."""
    async with conversation(host, address, SPOKEN, CLIENT_GREETING, seconds=seconds) as talk:
        yield talk


async def ask_server(host: Host, address: Address) -> ServerReport:
    """Raises UnavailableError: it does not answer in time, or not as a server."""
    async with talk_to_server(host, address) as talk:
        health = await ask_health(talk)
        storages = {} if all(health.values()) else await ask_connectivity(talk)
        return ServerReport(health, storages)


async def ask_health(talk: Conversation) -> Mapping[PartitionId, bool]:
    """Whether each partition of the server takes appends. Raises UnavailableError."""
    answer = await talk.ask(ServerPartitionsHealthRequest(NOBODY), ServerPartitionsHealthResponse)
    return dict(answer.health)


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
